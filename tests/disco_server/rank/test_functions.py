"""Names to functions: what was registered, and what the allow-list lets through."""

from __future__ import annotations

import sys

import numpy as np
import pytest

from disco_server.rank import functions
from disco_server.rank.builtins import core
from disco_server.rank.errors import FunctionMissing, ModuleNotAllowed
from disco_server.rank.functions import import_allowed, register_func, registered, resolve

NUMPY = ("numpy", "numpy.*")


@pytest.fixture(autouse=True)
def _registry():
    """Leaves the registry as it was."""
    before = dict(functions._registry)
    yield
    functions._registry.clear()
    functions._registry.update(before)


@pytest.fixture
def package(tmp_path, monkeypatch):
    """Writes the package disco_trial for one test: module name to source."""
    monkeypatch.syspath_prepend(tmp_path)

    def write(**sources):
        folder = tmp_path / "disco_trial"
        folder.mkdir()
        for name, source in {"__init__": "", **sources}.items():
            (folder / f"{name}.py").write_text(source)
        return "disco_trial"

    yield write
    for name in [name for name in sys.modules if name.split(".")[0] == "disco_trial"]:
        del sys.modules[name]


def first():
    return "first"


def second():
    return "second"


def test_a_name_is_registered_once():
    """A second function of that name is refused with the way out, and the first stays."""
    assert register_func("trial.f")(first) is first
    with pytest.raises(ValueError, match=r"'trial\.f' is registered already; override=True"):
        register_func("trial.f")(second)
    assert resolve("trial.f", ()) is first
    register_func("trial.f", override=True)(second)
    assert resolve("trial.f", ()) is second
    assert "trial.f" in registered()
    assert list(registered()) == sorted(registered())


def test_a_module_that_is_loaded_again_replaces_its_own_functions():
    """The same qualified name is the same function in a newer form."""
    register_func("trial.f")(first)

    def newer():
        return "newer"

    newer.__qualname__ = first.__qualname__
    register_func("trial.f")(newer)
    assert resolve("trial.f", ()) is newer


@pytest.mark.parametrize("name", ["", None, first])
def test_a_decorator_without_a_name_says_how_it_is_written(name):
    """As when the brackets were forgotten, which would otherwise fail much later."""
    with pytest.raises(ValueError, match=r"@register_func\('my\.scale'\)"):
        register_func(name)


def test_dotted_names_lead_through_allowed_modules(package):
    """To functions, to classes and their methods, to modules not yet imported, and back."""
    assert resolve("numpy.linalg.norm", NUMPY) is np.linalg.norm
    assert resolve("numpy.ndarray.sum", NUMPY) is np.ndarray.sum
    name = package(deep="class Tool:\n    @staticmethod\n    def use():\n        return 5\n")
    assert f"{name}.deep" not in sys.modules
    assert resolve(f"{name}.deep.Tool.use", (name,))() == 5


def test_a_registered_name_comes_before_a_module_s():
    """Registering numpy.sum is a person's right, and needs no allow-list."""
    register_func("numpy.sum")(first)
    assert resolve("numpy.sum", ()) is first


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("numpy.ndarray.__subclasses__", "private name '__subclasses__'"),
        ("numpy.linalg.norm.__globals__.get", "private name '__globals__'"),
        ("numpy.ctypeslib._ctypeslib.os.system", "private name '_ctypeslib'"),
        ("disco_trial.deep.os.system", "leads into module 'os'"),
        ("disco_trial.deep.os.path.exists", "leads into module 'os'"),
        ("disco_trial.deep._hidden", "private name '_hidden'"),
    ],
)
def test_no_name_leads_out_of_the_allowed_modules(package, name, text):
    """What a module imported for itself, and what is private, is nobody's business."""
    package(deep="import os\ndef _hidden(): pass\n")
    with pytest.raises(ModuleNotAllowed, match=text):
        resolve(name, (*NUMPY, "disco_trial"))


def test_an_unknown_name_is_missing_with_the_nearest_one_if_any():
    """A typing error is seen at a glance; what resembles nothing suggests nothing."""
    register_func("trial.scale")(first)
    with pytest.raises(FunctionMissing, match=r"did you mean 'trial\.scale'\?"):
        resolve("trial.scael", ())
    with pytest.raises(FunctionMissing) as missing:
        resolve("wholly_different", NUMPY)
    assert "did you mean" not in str(missing.value)
    assert "allow-list" not in str(missing.value)


@pytest.mark.parametrize("patterns", [NUMPY, ("*",), ("runtime",)])
def test_a_missing_function_of_our_own_says_what_is_near(patterns):
    """Whatever may be imported: it is no module's."""
    assert core.__doc__  # it registers them
    with pytest.raises(FunctionMissing) as missing:
        resolve("runtime.disco.alreduce", patterns)
    said = str(missing.value)
    assert "no function named 'runtime.disco.alreduce' is registered" in said
    assert "did you mean 'runtime.disco.allreduce'" in said
    assert "module" not in said


def test_a_name_in_a_module_that_is_not_allowed_says_so():
    """It may be meant as a registered name or as a module's, so the answer names both."""
    with pytest.raises(FunctionMissing, match="module 'os' is not on its allow-list"):
        resolve("os.system", NUMPY)


@pytest.mark.parametrize("name", ["numpy.no_such", "numpy.pi", "numpy.linalg", "numpy.pi.nothing"])
def test_what_cannot_be_called_is_no_function(name):
    """Absent, a constant, a module: none of them is found."""
    with pytest.raises(FunctionMissing, match=name.replace(".", r"\.")):
        resolve(name, NUMPY)


@pytest.mark.parametrize("name", ["", ".", "numpy.", ".numpy", "numpy..sum", "numpy.sum()", "a b"])
def test_malformed_names_are_missing_and_import_nothing(name):
    """Whatever a client sends, only dotted names of identifiers reach the import system."""
    with pytest.raises(FunctionMissing):
        resolve(name, ("*",))


def test_importing_what_is_not_allowed_names_the_list_and_the_option():
    """So that whoever runs the daemon knows what to add."""
    with pytest.raises(ModuleNotAllowed) as refused:
        import_allowed("os.path", NUMPY)
    assert "numpy, numpy.*" in str(refused.value)
    assert "--allow-module os" in str(refused.value)
    with pytest.raises(ModuleNotAllowed, match=r"\(functions of numpy and cupy\)"):
        import_allowed("os", ())


def test_an_allowed_module_that_is_not_there_is_missing():
    """With the path on which this worker looked."""
    with pytest.raises(FunctionMissing, match=r"no module named 'disco_trial'.*path"):
        import_allowed("disco_trial.deep", ("disco_trial",))


def test_a_missing_dependency_is_not_a_missing_module(package):
    """Whoever reads the error must learn which of the two is to be installed."""
    package(deep="import a_dependency_of_disco_trial\n", near="import disco_trial.absent\n")
    for load in (
        lambda: import_allowed("disco_trial.deep", ("disco_trial",)),
        lambda: resolve("disco_trial.deep.func", ("disco_trial",)),
    ):
        with pytest.raises(ModuleNotFoundError, match="a_dependency_of_disco_trial"):
            load()
    with pytest.raises(ModuleNotFoundError, match=r"disco_trial\.absent"):
        import_allowed("disco_trial.near", ("disco_trial",))


def test_what_a_module_raises_when_imported_is_its_own(package):
    """The traceback is the user's, not ours to translate."""
    package(deep="raise RuntimeError('half made')\n")
    with pytest.raises(RuntimeError, match="half made"):
        resolve("disco_trial.deep.func", ("disco_trial",))
