"""Dotted names: what an allowed module gives, and what is not reached through it."""

from __future__ import annotations

import sys

import numpy as np
import pytest
from numpy_names import documented

from disco_server.rank.errors import ArgumentRefused, FunctionMissing, ModuleNotAllowed
from disco_server.rank.functions import MAX_NAME, find_dotted, function_of, import_allowed, resolve
from disco_server.rank.numpy_functions import is_supported, reason_against, supported_functions

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
    yield ("disco_tools", "disco_exporting")
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
        find_dotted(name, ())


def test_nothing_is_imported_for_a_refused_name():
    """The import of a module is code that runs, too."""
    before = set(sys.modules)
    with pytest.raises(ModuleNotAllowed):
        find_dotted("numpy.f2py.tests.util.build_module", ())
    assert not {name for name in set(sys.modules) - before if "f2py" in name}


@pytest.mark.filterwarnings("ignore::PendingDeprecationWarning")
def test_a_function_may_be_allowed_by_its_name():
    """By the name that is asked for, and by no other that leads there."""
    assert find_dotted("numpy.save", (), ("numpy.save",)) is np.save
    with pytest.raises(ModuleNotAllowed):
        find_dotted("numpy.matlib.save", (), ("numpy.save",))
    assert find_dotted("numpy.ndarray.tofile", (), ("numpy.ndarray.*",))
    with pytest.raises(ModuleNotAllowed):
        find_dotted("numpy.load", (), ("numpy.save",))


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
        function_of(np, "load", ())
    with pytest.raises(ModuleNotAllowed, match="leads into module 'os'"):
        function_of(sys.modules["os"], "system", ())


@pytest.mark.filterwarnings("ignore::PendingDeprecationWarning")
def test_all_of_numpy_is_there_where_a_person_names_it():
    """``--allow-module numpy`` trusts clients with all that it offers, as for any package."""
    for name in ("numpy.save", "numpy.random.set_state", "numpy.matlib.save"):
        assert callable(find_dotted(name, ("numpy",)))
    assert callable(find_dotted("numpy.random.set_state", ("numpy.random",)))
    with pytest.raises(ModuleNotAllowed):
        find_dotted("numpy.save", ("numpy.random",))
    with pytest.raises(ModuleNotAllowed, match="no setting allows"):
        find_dotted("numpy._core.multiarray.fromfile", ("numpy",))


def test_what_a_newer_release_adds_is_refused_in_words_that_say_so(monkeypatch):
    """A function, a method or a module that the list does not know, with the release."""
    monkeypatch.setattr(np, "frobnicate", np.add, raising=False)
    monkeypatch.setattr(np.linalg, "frobnicate", np.add, raising=False)
    for name in ("numpy.frobnicate", "numpy.linalg.frobnicate", "numpy.random.mtrand.set_state"):
        with pytest.raises(ModuleNotAllowed) as refused:
            find_dotted(name, ())
        text = str(refused.value)
        assert f"{name!r} exists in numpy {np.__version__}, but is not on the list" in text
        assert f"--allow-function {name}" in text
        assert callable(find_dotted(name, (), (name,)))
    assert find_dotted("numpy.no_such", ()) is None
    assert find_dotted("numpy.linalg.no_such.either", ()) is None


@pytest.mark.parametrize(
    "name",
    [
        "numpy.random.Generator.normal",
        "numpy.random.PCG64.random_raw",
        "numpy.random.SeedSequence.spawn",
    ],
)
def test_methods_take_only_objects_of_their_class(name):
    """The compiled generators of numpy would read any object as one of theirs."""
    method = find_dotted(name, ())
    for wrong in (np.zeros(3), object(), "text"):
        with pytest.raises(TypeError):
            method(wrong, 1)
    kind = find_dotted(name.rpartition(".")[0], ())
    made = kind(np.random.PCG64(1)) if kind is np.random.Generator else kind(1)
    method(made, 1)


def test_methods_of_ufuncs_are_called_by_name():
    """``numpy.add.reduce`` and its kin, of ufuncs that are on the list, and of nothing else."""
    assert find_dotted("numpy.add.reduce", ())([1, 2]) == 3
    for name in ("numpy.sum.reduce", "numpy.add.at.reduce"):
        assert find_dotted(name, ()) is None


def test_the_list_names_all_that_numpy_documents():
    """Each name is on the list, or there is a reason against it; what is new is named here."""
    names = set(documented("numpy"))
    assert len(names) > 1000
    unknown = [name for name in sorted(names) if not (is_supported(name) or reason_against(name))]
    assert not unknown, f"decide about these, then run make functions: {unknown}"
    assert not [name for name in supported_functions() if reason_against(name)]


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_every_name_on_the_list_leads_to_numpy_s_own():
    """To a function that can be called, or to nothing in a release that has it not."""
    names = [name for name in supported_functions() if name.startswith("numpy.")]
    found = {name: find_dotted(name, ()) for name in names}
    assert sum(function is not None for function in found.values()) > 800
    for name, function in found.items():
        assert function is None or callable(function), name
    for name in ("load", "fromfile", "memmap", "frompyfunc", "ndarray"):
        assert getattr(np, name) not in [f for f in found.values() if f is not None]


def test_programs_are_not_imported(tools, tmp_path):
    """Neither what is called so, nor what turns out to be one by ending its process."""
    with pytest.raises(ModuleNotAllowed, match=r"'numpy\.f2py\.__main__' is a program"):
        import_allowed("numpy.f2py.__main__", ("*",))
    (tmp_path / "disco_tools.py").write_text("import sys\nsys.exit(3)\n")
    with pytest.raises(FunctionMissing, match=r"'disco_tools' is a program.* exit status 3"):
        import_allowed("disco_tools", tools)


def test_names_have_a_longest():
    """Longer ones are refused before anybody looks at them."""
    with pytest.raises(ArgumentRefused, match=f"at most {MAX_NAME} characters, got 5000"):
        resolve("x" * 5000, ("*",))
    with pytest.raises(ModuleNotAllowed) as refused:
        import_allowed("x" * 5000, ("*",))
    assert len(str(refused.value)) < 500
