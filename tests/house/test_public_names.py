"""What the packages offer: each name is there, typed, described, and meant to be there."""

from __future__ import annotations

import ast
import importlib
import inspect
import pkgutil
from pathlib import Path

import pytest

import disco_client
import disco_server

ROOT = Path(__file__).parents[2]
PACKAGES = (disco_client, disco_server)


def modules():
    """Every module of ours that is not generated."""
    for package in PACKAGES:
        for found in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            if ".pb" not in found.name and not found.name.endswith("__main__"):
                yield found.name


def public():
    """Each public name of the client with what it stands for."""
    for name in disco_client.__all__:
        yield name, getattr(disco_client, name)


def methods(kind):
    """The public methods and properties that a class has from our own packages."""
    for name, member in inspect.getmembers(kind):
        if not name.startswith("_"):
            func = member.fget if isinstance(member, property) else member
            if inspect.isfunction(func) and func.__module__.startswith("disco_"):
                yield name, func


@pytest.mark.parametrize("package", PACKAGES, ids=lambda package: package.__name__)
def test_a_package_s_names_resolve_and_are_all_it_offers(package):
    """Lazily, but as if they had been imported; another one is an AttributeError."""
    assert len(set(package.__all__)) == len(package.__all__)
    for name in package.__all__:
        assert getattr(package, name) is not None
    with pytest.raises(AttributeError, match="no_such_name"):
        _ = package.no_such_name


def test_the_client_lists_its_names_sorted():
    """In dir() too, where people look, with the sessions that need the server."""
    embedded = ("ProcessSession", "SocketSession", "ThreadedSession")
    assert dir(disco_client) == sorted((*disco_client.__all__, *embedded))


@pytest.mark.parametrize("name", sorted(modules()))
def test_every_module_says_what_it_is_for_and_what_it_offers(name):
    """A docstring, and an ``__all__`` whose names exist."""
    module = importlib.import_module(name)
    assert module.__doc__, f"{name} wants a docstring"
    if Path(module.__file__).name != "__init__.py":
        assert isinstance(module.__all__, list), f"{name} wants an __all__"
        missing = [each for each in module.__all__ if not hasattr(module, each)]
        assert not missing


def test_the_stub_for_type_checkers_names_the_same():
    """What a checker sees of the lazy package is what it offers at run time."""
    source = (ROOT / "disco_client" / "__init__.py").read_text()
    checking = next(
        node
        for node in ast.parse(source).body
        if isinstance(node, ast.If) and getattr(node.test, "id", "") == "TYPE_CHECKING"
    )
    imported = {
        alias.name
        for node in checking.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    assert set(disco_client.__all__) - {"__version__"} <= imported


def test_every_public_function_and_method_is_typed_and_described():
    """Arguments, result, and a sentence; errors are for the reader of the sentence."""
    bare = []
    for name, thing in public():
        if inspect.isclass(thing):
            found = [(f"{name}.{method}", func) for method, func in methods(thing)]
        elif inspect.isfunction(thing):
            found = [(name, thing)]
        else:
            continue
        for where, func in found:
            hints = set(func.__annotations__)
            wanted = set(inspect.signature(func).parameters) - {"self", "cls"} | {"return"}
            if not wanted <= hints or not inspect.getdoc(func):
                bare.append(where)
    assert not bare, f"types and docstrings for: {', '.join(sorted(set(bare)))}"


def test_the_arguments_of_the_original_keep_their_names_and_order():
    """A program ports by changing an import; more may be given by name only."""
    expected = {
        "empty": "shape dtype device worker0_only in_group",
        "get_global_func": "name",
        "import_python_module": "name",
        "call_packed": "func args keywords",
        "copy_to_worker_0": "host_array remote_array",
        "copy_from_worker_0": "host_array remote_array",
        "init_ccl": "ccl device_ids",
        "broadcast": "src dst in_group",
        "broadcast_from_worker0": "src dst in_group",
        "scatter": "src dst in_group",
        "scatter_from_worker0": "from_array to_array in_group",
        "gather_to_worker0": "from_array to_array in_group",
        "allreduce": "src dst op in_group",
        "allgather": "src dst in_group",
    }
    for name, wanted in expected.items():
        parameters = inspect.signature(getattr(disco_client.Session, name)).parameters
        given = [n for n, each in parameters.items() if each.kind is not each.KEYWORD_ONLY]
        assert given[1:] == wanted.split(), name
        if "in_group" in parameters:
            assert parameters["in_group"].default is True
