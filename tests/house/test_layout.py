"""The tree's own rules: a sentence for each test, no circle of imports, and calls left out."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
GENERATED = ROOT / "disco_client" / "pb"
PLAIN_LOCKS = ("threading.Lock()", "_thread.allocate_lock()", "Lock()", "threading.RLock()")


def sources(*places: str) -> Iterator[Path]:
    """The Python files in some folders, generated ones left out."""
    for place in places:
        for file in sorted((ROOT / place).rglob("*.py")):
            if GENERATED not in file.parents:
                yield file


def name(file: Path) -> str:
    return file.relative_to(ROOT).as_posix()


def test_every_test_says_what_it_shows():
    """Each test function has a docstring that states the behaviour."""
    silent = [
        f"{name(file)}:{node.lineno} {node.name}"
        for file in sources("tests")
        for node in ast.walk(ast.parse(file.read_text()))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and node.name.startswith("test_")
        and not ast.get_docstring(node)
    ]
    assert not silent, "give a docstring to each of:\n" + "\n".join(silent)


def imported_by(file: Path, known: set[str]) -> set[str]:
    """The modules of ours that a file imports, in functions and for types too."""
    found = set[str]()
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            found.update(each.name for each in node.names)
        elif isinstance(node, ast.ImportFrom):
            whole = {f"{node.module}.{each.name}" for each in node.names}
            found |= {each if each in known else str(node.module) for each in whole}
    return (found & known) - {module_of(file)}


def module_of(file: Path) -> str:
    return name(file).removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def test_no_module_imports_itself_by_way_of_others():
    """Neither when it is loaded, nor later in a function, nor for the sake of a type."""
    files = list(sources("disco_client", "disco_server"))
    known = {module_of(file) for file in files}
    graph = {module_of(file): imported_by(file, known) for file in files}
    assert len(graph) > 100
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        raise AssertionError(" -> ".join(error.args[1])) from None


# Calls of the standard library that the tree leaves out ---------------------------------

CLOCK = ROOT / "disco_client" / "clock.py"
PACKAGES = ("disco_client", "disco_server")
EVERYWHERE = (*PACKAGES, "tests", "benchmarks", "examples", "docs", "deploy")


def uses(tree: ast.AST, module: str, names: set[str]) -> list[int]:
    """The lines in which a module's names are used, or imported from there."""
    return [
        node.lineno
        for node in ast.walk(tree)
        if (
            isinstance(node, ast.Attribute)
            and isinstance(node.value, ast.Name)
            and (node.value.id, node.attr in names) == (module, True)
        )
        or (
            isinstance(node, ast.ImportFrom)
            and node.module == module
            and names & {each.name for each in node.names}
        )
    ]


LEFT_OUT = (
    (EVERYWHERE, "select", {"select"}, "select.poll: select takes no descriptor from 1024 on"),
    (EVERYWHERE, "selectors", {"SelectSelector"}, "selectors.DefaultSelector, for the same"),
    (
        PACKAGES,
        "time",
        {"monotonic", "monotonic_ns"},
        "disco_client.clock: programs freeze and move that of the module",
    ),
)


def test_what_is_replaced_is_not_called():
    """Neither by its module nor as a name that was imported."""
    found = [
        f"{name(file)}:{line} takes {instead}"
        for file in sources(*EVERYWHERE)
        if file != CLOCK
        for tree in (ast.parse(file.read_text()),)
        for places, module, names, instead in LEFT_OUT
        if name(file).partition("/")[0] in places
        for line in uses(tree, module, names)
    ]
    assert not found, "\n".join(found)


@pytest.mark.parametrize(
    "text", ["import select\nselect.select([], [], [])", "\nfrom select import select, poll"]
)
def test_both_ways_to_call_are_found(text):
    """The rule itself can fail."""
    assert uses(ast.parse(text), "select", {"select"}) == [2]


def test_threads_are_started_where_a_refusal_is_typed():
    """In the client and in embedded sessions only `start_thread` and `check_threads` start some."""
    bare = [
        f"{name(file)}:{node.lineno}"
        for file in sources("disco_client", "disco_server/embedded")
        if name(file) != "disco_client/threads.py"
        for tree in [ast.parse(file.read_text())]
        for made in [set(threads_of(tree))]
        for node in ast.walk(tree)
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr == "start"
        and (is_thread(node.func.value) or ast.unparse(node.func.value) in made)
    ]
    assert not bare, f"use disco_client.threads.start_thread: {bare}"


def is_thread(node: ast.expr) -> bool:
    """Whether an expression makes a thread."""
    return isinstance(node, ast.Call) and ast.unparse(node.func).endswith("Thread")


def threads_of(tree: ast.Module) -> Iterator[str]:
    """What threads are assigned to in a file."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign) and is_thread(node.value):
            yield from map(ast.unparse, node.targets)


def test_no_lock_of_a_client_keeps_out_the_thread_that_has_it():
    """A signal handler or a finalizer comes between any two steps of a block, and may enter it.

    Nor does it wait there for others that need the lock, as those of `make_lock` are known.
    """
    wrong: list[str] = []
    for file in sources("disco_client", "disco_server/embedded", "disco_server/ipc"):
        nodes = list(ast.walk(ast.parse(file.read_text())))
        plain = {
            ast.unparse(target)
            for node in nodes
            if isinstance(node, ast.Assign) and ast.unparse(node.value) in PLAIN_LOCKS
            for target in node.targets
        }
        wrong += [
            f"{name(file)}:{node.lineno} with {ast.unparse(item.context_expr)}"
            for node in nodes
            if isinstance(node, ast.With)
            for item in node.items
            if ast.unparse(item.context_expr) in plain
        ]
    assert not wrong, "take one of disco_client.locks.make_lock for each of:\n" + "\n".join(wrong)
