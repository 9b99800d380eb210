"""A machine compiles the language model's functions once, whichever process needs them first."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from llm_serving import EXAMPLES

pytest.importorskip("numba", reason="numba is not installed")

COUNT = """
from llm.compiling import import_compiled
kernels = import_compiled("kernels")
stats = kernels.multiply.stats
print(sum(stats.cache_misses.values()), sum(stats.cache_hits.values()), kernels.__file__)
"""


def start(program, **environ):
    """A process that runs a program beside the examples."""
    return subprocess.Popen(
        [sys.executable, "-c", program],
        env={**os.environ, "PYTHONPATH": str(EXAMPLES), **environ},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def words_of(process):
    """What a process printed, once it has ended well."""
    out, err = process.communicate(timeout=100)
    assert process.returncode == 0, err
    return out.split()


def test_one_of_two_processes_compiles(tmp_path):
    """The other one waits for it, and finds everything in the user's cache."""
    both = [start(COUNT, XDG_CACHE_HOME=str(tmp_path)) for _ in range(2)]
    found = sorted(words_of(each) for each in both)
    assert [each[:2] for each in found] == [["0", "2"], ["2", "0"]]
    assert all(each[2].startswith(str(tmp_path)) for each in found)


def test_a_full_disk_keeps_nothing_and_ends_nothing(tmp_path):
    """What cannot be kept is compiled all the same."""
    cache = str(tmp_path)
    words_of(
        start(
            "from llm.compiling import import_compiled as i; i('kernels')",
            XDG_CACHE_HOME=cache,
            NUMBA_DISABLE_JIT="1",
        )
    )
    full = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))\n"
    misses, hits, file = words_of(start(full + COUNT, XDG_CACHE_HOME=cache))
    assert (hits, file.startswith(cache)) == ("0", True), misses


def test_a_cache_that_cannot_be_written_is_done_without(tmp_path):
    """Then the modules are imported from where they are."""
    (tmp_path / "file").touch()
    program = COUNT.replace("stats = kernels.multiply.stats", "").replace(
        "print(sum(stats.cache_misses.values()), sum(stats.cache_hits.values()), ", "print("
    )
    # Nothing is compiled, which takes seconds.
    process = start(program, XDG_CACHE_HOME=str(tmp_path / "file"), NUMBA_DISABLE_JIT="1")
    assert words_of(process) == [str(EXAMPLES / "llm" / "kernels.py")]
