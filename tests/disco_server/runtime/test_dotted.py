"""Dotted names: what an allowed module gives, and what is not reached through it."""

from __future__ import annotations

import sys

import numpy as np
import pytest

from disco_server.config import DEFAULT_MODULES
from disco_server.runtime.dotted import MAX_NAME, REFUSED, find_dotted, function_of, import_allowed
from disco_server.runtime.errors import ArgumentRefused, ModuleNotAllowed
from disco_server.runtime.functions import resolve

TOOLS = """
import os
import subprocess as programs
from functools import partial
from os import system
from subprocess import Popen

import numpy as np

shout = partial(print, "!")
table = {}
norm = np.linalg.norm

def public():
    return "public"

def _hidden():
    return "hidden"

class Runner(Popen):
    def own(self):
        return "own"

class Box:
    @classmethod
    def make(cls):
        return cls()

    helper = staticmethod(system)
"""

EXPORTING = """
__all__ = ["system", "public"]
from os import system, getcwd

def public():
    return "public"

def beside():
    return "beside"
"""


@pytest.fixture
def tools(tmp_path, monkeypatch):
    """Two modules that may be imported: one without ``__all__``, and one with."""
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "disco_tools.py").write_text(TOOLS)
    (tmp_path / "disco_exporting.py").write_text(EXPORTING)
    yield (*DEFAULT_MODULES, "disco_tools", "disco_exporting")
    for name in ("disco_tools", "disco_exporting"):
        sys.modules.pop(name, None)


@pytest.mark.parametrize(
    ("name", "result"),
    [
        ("disco_tools.public", "public"),
        ("disco_exporting.public", "public"),
        ("disco_exporting.beside", "beside"),
        ("disco_tools.np.linalg.norm", None),
        ("disco_tools.norm", None),
        ("disco_tools.Box.make", None),
        ("disco_tools.Runner.own", None),
        ("disco_exporting.system", None),
        ("numpy.add", None),
        ("numpy.add.reduce", None),
        ("numpy.random.rand", None),
        ("numpy.random.default_rng", None),
        ("numpy.ndarray.sum", None),
        ("numpy.float32", None),
        ("numpy.fft.fft", None),
        ("numpy.polynomial.Polynomial.fit", None),
        ("numpy.lib.scimath.sqrt", None),
    ],
)
def test_what_modules_define_or_export_is_found(tools, name, result):
    """Functions, classes and their methods, also of the modules that an allowed one imports."""
    found = find_dotted(name, tools)
    assert callable(found)
    assert result is None or found() == result


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("disco_tools.os.system", "leads into module 'os'"),
        ("disco_tools.programs.run", "leads into module 'subprocess'"),
        ("disco_tools.system", "belongs to module 'posix'"),
        ("disco_tools.Popen", "belongs to module 'subprocess'"),
        ("disco_tools.partial", "belongs to module 'functools'"),
        ("disco_tools.shout", "belongs to module 'functools'"),
        ("disco_tools.Runner.communicate", "belongs to module 'subprocess'"),
        ("disco_tools.Box.helper", "belongs to module 'posix'"),
        ("disco_tools.Box.mro", "belongs to module 'builtins'"),
        ("disco_tools.table.update", "belongs to module 'builtins'"),
        ("disco_tools._hidden", "private name '_hidden'"),
        ("disco_tools.public.__globals__.clear", "private name '__globals__'"),
        ("disco_tools.Box.__subclasses__", "private name '__subclasses__'"),
        ("disco_exporting.getcwd", "belongs to module 'posix'"),
        ("numpy.os.system", "leads into module 'os'"),
        ("numpy.sys.exit", "leads into module 'sys'"),
        ("numpy._core.multiarray.fromfile", "private name '_core'"),
        ("numpy.linalg._linalg.functools.partial", "private name '_linalg'"),
        ("numpy.__dict__.clear", "private name '__dict__'"),
        ("numpy.linalg.norm.__class__", "private name '__class__'"),
    ],
)
def test_what_a_module_only_uses_is_not_reached_through_it(tools, name, words):
    """Imports of its own, inherited methods, what is private: each with what to do."""
    with pytest.raises(ModuleNotAllowed, match=words) as refused:
        find_dotted(name, tools)
    assert "--allow-module" in str(refused.value) or "no setting" in str(refused.value)


@pytest.mark.parametrize(
    "name",
    [
        *("numpy.load", "numpy.save", "numpy.savez", "numpy.loadtxt", "numpy.genfromtxt"),
        *("numpy.fromfile", "numpy.memmap", "numpy.lib.npyio.load", "numpy.lib.format.read_array"),
        *("numpy.rec.fromfile", "numpy.matlib.load", "numpy.ndarray.tofile", "numpy.ndarray.dump"),
        *("numpy.matrix.tofile", "numpy.recarray.dump", "numpy.float64.tofile"),
        *("numpy.testing.runstring", "numpy.testing.measure", "numpy.f2py.compile", "numpy.test"),
        *("numpy.linalg.test", "numpy.ctypeslib.load_library", "numpy.core.multiarray.fromfile"),
        *("numpy.lib.stride_tricks.as_strided", "numpy.ndarray.resize", "numpy.tests.test_all"),
    ],
)
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::PendingDeprecationWarning")
def test_what_does_more_than_compute_is_refused(name):
    """Files, pickles, programs, libraries, raw memory; by every name that leads there."""
    with pytest.raises(ModuleNotAllowed, match=r"--allow-function numpy\."):
        find_dotted(name, DEFAULT_MODULES)


def test_nothing_is_imported_for_a_refused_name():
    """The import of a module is code that runs, too."""
    before = set(sys.modules)
    with pytest.raises(ModuleNotAllowed):
        find_dotted("numpy.f2py.tests.util.build_module", DEFAULT_MODULES)
    assert not {name for name in set(sys.modules) - before if "f2py" in name}


@pytest.mark.filterwarnings("ignore::PendingDeprecationWarning")
def test_a_function_may_be_allowed_by_its_name():
    """By the name that was asked for or that it has where it is defined."""
    for name in ("numpy.save", "numpy.matlib.save"):
        assert find_dotted(name, DEFAULT_MODULES, ("numpy.save",)) is np.save
    assert find_dotted("numpy.ndarray.tofile", DEFAULT_MODULES, ("numpy.ndarray.*",))
    with pytest.raises(ModuleNotAllowed):
        find_dotted("numpy.load", DEFAULT_MODULES, ("numpy.save",))


def test_who_may_import_anything_may_call_anything():
    """As in ``disco local``, which is its user's own; private names stay private."""
    assert find_dotted("numpy.save", ("*",)) is np.save
    assert callable(find_dotted("os.system", ("*",)))
    with pytest.raises(ModuleNotAllowed):
        find_dotted("os._exit", ("*",))


def test_a_module_in_a_register_gives_no_more_than_its_name_does(tools):
    """The same rules hold where a function is asked of a module."""
    module = import_allowed("disco_tools", tools)
    assert function_of(module, "public", tools)() == "public"
    assert function_of(module, "absent", tools) is None
    for name in ("system", "Popen", "_hidden"):
        with pytest.raises(ModuleNotAllowed):
            function_of(module, name, tools)
    with pytest.raises(ModuleNotAllowed, match=r"--allow-function numpy\.load"):
        function_of(np, "load", DEFAULT_MODULES)
    with pytest.raises(ModuleNotAllowed, match="leads into module 'os'"):
        function_of(sys.modules["os"], "system", DEFAULT_MODULES)


def test_every_refused_pattern_names_something():
    """A pattern without its package would refuse nothing."""
    assert all(pattern.split(".")[0] in ("numpy", "cupy") for pattern in REFUSED)
    assert len(REFUSED) == len(set(REFUSED))


def test_names_have_a_longest():
    """Longer ones are refused before anybody looks at them."""
    with pytest.raises(ArgumentRefused, match=f"at most {MAX_NAME} characters, got 5000"):
        resolve("x" * 5000, ("*",))
    with pytest.raises(ModuleNotAllowed) as refused:
        import_allowed("x" * 5000, ("*",))
    assert len(str(refused.value)) < 500
