"""Python files as modules."""

from __future__ import annotations

import hashlib
import os
import sys
import threading

import pytest

from disco_server.modules import loading
from disco_server.modules.base import FileRefused


@pytest.fixture
def write(tmp_path):
    """Writes a Python file; returns how to load it."""

    def writes(source, name="model.py"):
        path = tmp_path / name
        path.write_text(source)
        return lambda: loading.load_python(path, hashlib.sha256(source.encode()).hexdigest(), name)

    return writes


def test_its_public_functions_are_those_it_defines(write):
    """Not what it imports, not classes, not values, and nothing with an underscore."""
    functions = write(
        "from os.path import join\nimport os\nx = 1\nclass A: pass\n"
        "def twice(a): return 2 * a\ndef _hidden(): pass\n"
    )()
    assert list(functions) == ["twice"]
    assert functions["twice"](4) == 8


def test_a_list_of_names_decides_where_there_is_one(write):
    """What __all__ names may come from elsewhere; what is no function is left out."""
    functions = write("from math import sqrt\nx = 1\n__all__ = ['sqrt', 'x']\ndef f(): pass\n")()
    assert list(functions) == ["sqrt"]


def test_it_runs_once_for_each_content(write):
    """Loading again gives the same functions; a changed file is another module."""
    source = "state = []\ndef add(x):\n    state.append(x)\n    return len(state)\n"
    load = write(source)
    assert load()["add"](1) == 1
    assert load()["add"](1) == 2
    assert write(source + "# changed\n")()["add"](1) == 1


def test_its_module_cannot_be_imported_by_name(write):
    """So that it neither hides another module nor is taken for one; dataclasses work."""
    functions = write(
        "import dataclasses\n@dataclasses.dataclass\nclass Point:\n    x: 'int'\n"
        "def make(x): return Point(x).x\n",
        "json.py",
    )()
    assert functions["make"](3) == 3
    assert "dumps" in dir(sys.modules.get("json") or __import__("json"))
    assert not functions["make"].__module__.isidentifier()


def test_what_its_code_raises_comes_out(write):
    """And a later try runs it again; nothing of it stays."""
    before = set(sys.modules)
    for _ in range(2):
        with pytest.raises(ZeroDivisionError):
            write("1 / 0")()
    with pytest.raises(SyntaxError):
        write("def")()
    assert not [name for name in set(sys.modules) - before if name.startswith("model@")]


def test_no_bytecode_is_read_or_written(write, tmp_path):
    """A file that changes within a tick of the clock is not mistaken for its old self."""
    load = write("def f(): return 1\n")
    assert load()["f"]() == 1
    before = (tmp_path / "model.py").stat()
    load = write("def f(): return 2\n")
    os.utime(tmp_path / "model.py", ns=(before.st_atime_ns, before.st_mtime_ns))
    assert load()["f"]() == 2
    assert [path.name for path in tmp_path.iterdir()] == ["model.py"]


def test_a_file_that_changed_since_it_was_hashed_is_refused(tmp_path):
    """What runs is what was checked."""
    (tmp_path / "model.py").write_text("x = 1")
    with pytest.raises(FileRefused, match="changed while"):
        loading.load_python(tmp_path / "model.py", "0" * 64, "model.py")


def test_threads_get_the_same_module(write):
    """Ranks that are threads of one process share it, as they share what they import."""
    load = write("import time\ntime.sleep(0.05)\ndef f(): pass\n")
    got = []
    threads = [threading.Thread(target=lambda: got.append(load()["f"])) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(got) == 4
    assert len(set(got)) == 1
