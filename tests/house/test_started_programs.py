"""Programs that tests and benchmarks start are text there, which no checker of types reads."""

from __future__ import annotations

import ast
import importlib
import importlib.util
import textwrap
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
OURS = ("disco_client", "disco_server")


def imports_of(program: str) -> Iterator[tuple[str, str]]:
    """Each name that a program imports from our packages, with the module."""
    try:
        tree = ast.parse(textwrap.dedent(program))
    except (SyntaxError, ValueError):
        return  # it is another kind of text
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] in OURS:
            yield from ((str(node.module), each.name) for each in node.names)


def is_there(module: str, name: str) -> bool:
    """Whether a module has a name, or a module of that name."""
    try:
        found = importlib.import_module(module)
    except ModuleNotFoundError:
        return False
    if name == "*" or hasattr(found, name):
        return True
    return hasattr(found, "__path__") and bool(importlib.util.find_spec(f"{module}.{name}"))


def missing_in(text: str) -> set[tuple[str, str]]:
    """What is not there of what the programs in a file import."""
    texts = [
        node.value
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and "import" in node.value
    ]
    return {each for program in texts for each in imports_of(program) if not is_there(*each)}


def test_what_started_programs_import_is_there():
    """In every text that is a program."""
    files = [path for place in ("tests", "benchmarks") for path in (ROOT / place).rglob("*.py")]
    found = {str(path.relative_to(ROOT)): missing_in(path.read_text()) for path in files}
    assert {name: each for name, each in found.items() if each} == {}


def test_a_name_that_is_gone_is_found():
    """Of a module, and a module; not what is there, and not what is no program."""
    text = '''
PROGRAM = """
from disco_client.transport import channel
from disco_client.transport.channel import gone
from disco_client.none import any
"""
PROSE = "import what you need from disco_client"
'''
    assert missing_in(text) == {
        ("disco_client.transport.channel", "gone"),
        ("disco_client.none", "any"),
    }
