"""What the packages offer: each name is there, typed, described, and meant to be there."""

from __future__ import annotations

import ast
import importlib
import inspect
import pkgutil
import re
import sys
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
    """In dir() too, where people look, with its package and the sessions that need the server."""
    others = ("ProcessSession", "SocketSession", "ThreadedSession", "distributed")
    assert dir(disco_client) == sorted((*disco_client.__all__, *others))


@pytest.mark.parametrize("name", sorted(modules()))
def test_every_module_says_what_it_is_for_and_what_it_offers(name, monkeypatch):
    """A docstring, and an ``__all__`` whose names exist."""
    # The import of disco_client.tvm changes which modules a program finds.
    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path])
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


SESSION = """
    empty(shape, dtype, device=None, worker0_only=False, in_group=True)
    shutdown()
    get_global_func(name)
    import_python_module(module_name)
    call_packed(func, *args)
    _sync_worker(worker_id)
    _sync_all()
    sync_worker_0()
    copy_from_worker_0(host_array, remote_array)
    copy_to_worker_0(host_array, remote_array=None)
    load_vm_module(path, device=None)
    init_ccl(ccl, *device_ids)
    broadcast(src, dst=None, in_group=True)
    broadcast_from_worker0(src, dst, in_group=True)
    scatter(src, dst=None, in_group=True)
    scatter_from_worker0(from_array, to_array, in_group=True)
    gather_to_worker0(from_array, to_array, in_group=True)
    allreduce(src, dst, op="sum", in_group=True)
    allgather(src, dst, in_group=True)
"""
ORIGINAL = {
    "disco_client:Session": SESSION,
    "disco_client:ThreadedSession": f"__init__(num_workers, num_groups=1) {SESSION}",
    # Whose default is a module of the original's.
    "disco_client:ProcessSession": f"__init__(num_workers, num_groups=1, entrypoint=...) {SESSION}",
    "disco_client:SocketSession": f"""
        __init__(num_nodes, num_workers_per_node, num_groups, host, port) {SESSION}
    """,
    "disco_client:DRef": "debug_get_from_remote(worker_id) debug_copy_from(worker_id, value)",
    "disco_client:DPackedFunc": "__init__(dref, session) __call__(*args)",
    "disco_client:DModule": "__init__(dref, session) __getitem__(name)",
    "disco_client.distributed:DeviceMesh": "__init__(shape, device_ids)",
    "disco_client.distributed:Placement": "__init__(dim_specs) from_text(text)",
    "disco_client.distributed:PlacementSpec": "sharding(axis) replica()",
    "disco_client.distributed:DTensorStructInfo": """
        __init__(tensor_sinfo, device_mesh, placement, span=None)
    """,
}
"""The public signatures of tvm.runtime.disco and tvm.relax.distributed, as they document them."""


@pytest.mark.parametrize("place", ORIGINAL)
def test_the_signatures_of_the_original_are_kept(place):
    """Names and order of arguments, and defaults; what is ours follows theirs, with defaults."""
    module, _, kind = place.partition(":")
    owner = getattr(importlib.import_module(module), kind)
    for name, listed in re.findall(r"(\w+)\((.*?)\)", ORIGINAL[place]):
        theirs = ast.parse(f"def f({listed}): pass").body[0].args
        found = inspect.signature(getattr(owner, name)).parameters.values()
        ours = [each for each in found if each.name != "self" and each.kind is not each.VAR_KEYWORD]
        where = f"{kind}.{name}{inspect.signature(getattr(owner, name))}"
        positional = [each for each in ours if each.kind is not each.KEYWORD_ONLY]
        names = [each.arg for each in theirs.args] + ([theirs.vararg.arg] if theirs.vararg else [])
        assert [each.name for each in positional[: len(names)]] == names, where
        for each in [*positional[len(names) :], *(e for e in ours if e.kind is e.KEYWORD_ONLY)]:
            assert each.default is not each.empty, where
        for arg, default in zip(theirs.args[::-1], theirs.defaults[::-1], strict=False):
            value = ast.literal_eval(default)
            mine = next(each for each in ours if each.name == arg.arg).default
            assert mine == value or (value is ... and mine is not inspect.Parameter.empty), where
