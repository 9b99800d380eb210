"""Functions and classes that are defined in a notebook's cells."""

from __future__ import annotations

import importlib.util
import linecache
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from disco_client.cells import file_of_cell
from disco_client.errors import ConfigError


class Notebook:
    """The globals of an interactive program, and the cells that were typed."""

    def __init__(self):
        self.space = {"__name__": "__main__"}
        self.files = []

    def type(self, cell):
        name = f"<cell {id(self)} {len(self.files)}>"
        self.files.append(name)
        linecache.cache[name] = len(cell), None, cell.splitlines(keepends=True), name
        exec(compile(cell, name, "exec"), self.space)

    def brought(self, name):
        """What a worker has of it: the file is imported where nothing else is."""
        file = file_of_cell(name, self.space)
        spec = importlib.util.spec_from_file_location(file.stem, file)
        module = sys.modules[file.stem] = importlib.util.module_from_spec(spec)
        try:
            spec.loader.exec_module(module)
        finally:
            del sys.modules[file.stem]
        return getattr(module, name)


@pytest.fixture
def notebook():
    made = Notebook()
    yield made
    for name in made.files:
        linecache.cache.pop(name, None)


def test_a_function_brings_what_it_uses(notebook):
    """Modules, what they define, constants, and functions and classes of other cells."""
    notebook.type(
        "import math as m\nimport os.path\nfrom statistics import fmean\nK, SHAPE = 3, (2, 'a')"
    )
    notebook.type("class Pair:\n    def __init__(self, a):\n        self.a = a * K\n")
    notebook.type("def helper(x):\n    return m.floor(x) + Pair(1).a\n")
    notebook.type(
        "def f(x, k=K, *, s=SHAPE):\n    return [helper(x), k, s, fmean([x]), os.path.sep]\n"
    )
    assert notebook.brought("f")(2.5) == [5, 3, (2, "a"), 2.5, "/"]


def test_names_of_its_own_are_no_globals(notebook):
    """Neither what it assigns, nor attributes, nor annotations."""
    notebook.type("rows = x = [1]\n")
    notebook.type(
        "def f(x: rows) -> rows:\n"
        "    local: rows = x\n"
        "    return [x.real for x in [local]] + [(lambda rows: rows)(2)]\n"
    )
    assert notebook.brought("f")(1) == [1, 2]


def test_it_is_the_newest_definition(notebook):
    """Of two cells with one name; and each of several in a cell."""
    notebook.type("def f():\n    return 1\ndef g():\n    return 2\n")
    notebook.type("def f():\n    return 3\n")
    assert [notebook.brought(name)() for name in "fg"] == [3, 2]


def test_functions_may_call_each_other_and_themselves(notebook):
    """Each is brought once."""
    notebook.type("def even(n):\n    return n == 0 or odd(n - 1)\n")
    notebook.type("def odd(n):\n    return n != 0 and even(n - 1)\n")
    assert notebook.brought("even")(6)


def test_decorators_and_dataclasses_come_along(notebook):
    """With what they use."""
    notebook.type("from dataclasses import dataclass\nimport functools\nTEXT = 'x'\n")
    notebook.type(
        "@dataclass\nclass P:\n    a: int = 2\n    def twice(self):\n        return self.a * 2\n"
    )
    notebook.type("@functools.lru_cache\ndef f(p):\n    return P(p).twice()\n")
    assert notebook.brought("f")(4) == 8


@pytest.mark.parametrize(
    "value", ["[1]", "{'a': 1}", "iter(())", "object()", "(1, [2])", "lambda: 1"]
)
def test_other_globals_are_refused_by_name(notebook, value):
    """With their type; nothing is pickled."""
    notebook.type(f"state = {value}\n")
    notebook.type("def f():\n    return state\n")
    with pytest.raises(ConfigError, match=r"state|<lambda>"):
        notebook.brought("f")


@given(
    value=st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.complex_numbers()
        | st.text() | st.binary(),
        lambda inner: st.lists(inner, max_size=3).map(tuple),
    )
)  # fmt: skip
def test_a_constant_arrives_as_it_is(value):
    """Of any of these types and any value; what is no number, too."""
    notebook = Notebook()
    notebook.space["VALUE"] = value
    notebook.type("def f():\n    return VALUE\n")
    came = notebook.brought("f")()
    linecache.cache.pop(notebook.files[0])
    assert (type(came), repr(came)) == (type(value), repr(value))


SHELL = """
from IPython.core.interactiveshell import InteractiveShell
shell = InteractiveShell.instance()
for cell in {cells!r}:
    shell.run_cell(cell).raise_error()
"""

FUNCTION = """\
def scale(x, bias=FACTOR):
    return helper(x).sum() + bias + disco_server.current_worker().worker_id
"""

CLASS = """\
class Counter:
    def __init__(self, n):
        self.n = n
    def add(self):
        self.n += FACTOR
        return self.n
"""

CELLS = [
    "import numpy as np\nimport disco_client, disco_server\nFACTOR = 2",
    "def helper(x):\n    return x * FACTOR",
    FUNCTION,
    CLASS,
    "session = disco_client.KIND(2)",
    "print(session.function(scale)(session.broadcast(np.ones(3))).get_all())",
    "print(session.create(Counter, 5).add().get_all())",
    "def scale(x):\n    return 'changed'",
    "print(session.function(scale)(1).get_all())\nsession.shutdown()",
]


@pytest.mark.parametrize("kind", ["ThreadedSession", "ProcessSession"])
def test_a_cell_of_ipython_gives_functions_and_classes(kind):
    """As it is typed; a cell that is run again replaces them."""
    program = SHELL.format(cells=[cell.replace("KIND", kind) for cell in CELLS])
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, timeout=55, check=False)
    assert "8.0, 9.0" in done.stdout.replace("np.float64(", "").replace(")", ""), done.stderr
    assert "[7, 7]\n['changed', 'changed']" in done.stdout
