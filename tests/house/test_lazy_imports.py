"""Imports in functions of the client, which an exception may come into."""

from __future__ import annotations

import ast
from pathlib import Path

ROOT = Path(__file__).parents[2]

BEFORE_SESSIONS = ("disco_client/__init__.py", "disco_client/telemetry/")
"""What is imported before there is a session, whose threads would wait for the lock."""


def is_module(name):
    path = ROOT.joinpath(*name.split("."))
    return path.with_suffix(".py").exists() or (path / "__init__.py").exists()


def own_modules(imports):
    """The modules of this project that a statement imports."""
    if isinstance(imports, ast.Import):
        names = [alias.name for alias in imports.names]
    else:
        inner = [f"{imports.module}.{alias.name}" for alias in imports.names]
        names = [name if is_module(name) else imports.module for name in inner]
    return {name for name in names if name and name.startswith("disco_")}


def in_functions(tree):
    """The modules that each function imports, and those that it imports uninterrupted."""
    for function in ast.walk(tree):
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
            imported, safe = set(), set()
            for node in ast.walk(function):
                if isinstance(node, ast.Import | ast.ImportFrom):
                    imported |= own_modules(node)
                elif (
                    isinstance(node, ast.Call) and ast.unparse(node.func) == "import_uninterrupted"
                ):
                    safe.add(ast.literal_eval(node.args[0]) if node.args else "")
            yield function.name, imported, safe


def test_no_exception_comes_into_an_import():
    """It would leave the module locked, and all threads that import it would wait for ever."""
    found = {}
    for path in sorted((ROOT / "disco_client").rglob("*.py")):
        name = path.relative_to(ROOT).as_posix()
        if name.startswith(BEFORE_SESSIONS):
            continue
        for function, imported, safe in in_functions(ast.parse(path.read_text())):
            if imported - safe:
                found[f"{name}: {function}"] = sorted(imported - safe)
    assert found == {}, "call import_uninterrupted with these names before"


def test_an_import_in_a_function_is_found():
    """Of a module, and of what a module has."""
    text = """
def f():
    import_uninterrupted("disco_client.weights")
    from disco_client import weights
    from disco_client.errors import DiscoError
"""
    ((_, imported, safe),) = in_functions(ast.parse(text))
    assert imported - safe == {"disco_client.errors"}
