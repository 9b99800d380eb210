"""What a signal handler raises leaves no block without its end, whatever Python compiles it.

CPython looks for signals where a loop goes back. From 3.12 on its compiler may put that step of a
loop whose body ends with a condition outside of what the ``with`` block around it covers, so that
an exception there does not run ``__exit__``, and a lock is kept for ever. A loop in a function of
its own, which the block calls, is covered.
"""

from __future__ import annotations

import importlib
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

LOOK = r"""
import dis, pathlib, sys, types

def codes(code):
    yield code
    for each in code.co_consts:
        if isinstance(each, types.CodeType):
            yield from codes(each)

def open_steps(code):
    steps = list(dis.get_instructions(code))
    at = {step.offset: index for index, step in enumerate(steps)}
    table = dis._parse_exception_table(code)
    ends = {
        entry.target
        for entry in table
        if steps[at[entry.target] + 1].opname == "WITH_EXCEPT_START"
    }
    def covered(offset):
        return {e.target for e in table if e.start <= offset < e.end} & ends
    for step in steps:
        # Those without a line belong to `await`, which handles what is raised there by itself.
        if step.opname == "JUMP_BACKWARD" and step.positions.lineno is not None:
            if covered(step.argval) - covered(step.offset):
                yield step.positions.lineno

for name in sys.argv[1:]:
    text = pathlib.Path(name).read_text()
    for code in codes(compile(text, name, "exec")):
        for line in open_steps(code):
            print(f"{name}:{line} in {code.co_qualname}")
"""

AFFECTED = ("3.12", "3.13")

CANARY = """
def wait(lock, calls):
    with lock:
        while calls:
            call = calls[0]
            if call():
                calls.pop()
"""


def pythons(monkeypatch):
    """This Python, and those that `make dist` finds, of each version one."""
    monkeypatch.syspath_prepend(ROOT / ".ci")
    found = dict(importlib.import_module("dist").interpreters())
    found["{}.{}".format(*sys.version_info)] = Path(sys.executable)
    return found


def look(python, *files):
    """The steps of files that an exception leaves without the end of their block."""
    done = subprocess.run(
        [python, "-c", LOOK, *map(str, files)], capture_output=True, text=True, check=True
    )
    return done.stdout.splitlines()


@pytest.mark.timeout(180)
def test_no_loop_of_a_client_goes_back_outside_of_its_block(tmp_path, monkeypatch):
    """In any Python that is here; of 3.12 and 3.13 it is known, and they are shown to be seen."""
    folders = ("disco_client", "disco_server/embedded", "disco_server/ipc")
    files = [file for folder in folders for file in sorted((ROOT / folder).rglob("*.py"))]
    canary = tmp_path / "canary.py"
    canary.write_text(CANARY)
    for version, python in pythons(monkeypatch).items():
        if version in AFFECTED:
            assert look(python, canary)
        wrong = look(python, *files)
        assert not wrong, f"{python}: call a function with this loop:\n" + "\n".join(wrong)
