"""Who looks again and again for what is printed does not empty the file that it looks into.

``capfd.readouterr`` reads a file and then empties it. What another thread or process writes in
between is lost, so a test that looks until a line has come may wait for it in vain.
"""

from __future__ import annotations

import ast
from pathlib import Path

TESTS = Path(__file__).parents[1]
WAITS = {"eventually", "wait_until"}


def reading_again_and_again(text):
    """The lines where ``readouterr`` is the condition of a loop, or of what is waited for."""
    tree = ast.parse(text)
    repeated = [node.test for node in ast.walk(tree) if isinstance(node, ast.While)]
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    awaited = [c.args[0] for c in calls if isinstance(c.func, ast.Name) and c.func.id in WAITS]
    names = {node.id for node in awaited if isinstance(node, ast.Name)}
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
    repeated += [each for each in functions if each.name in names]
    repeated += [node for node in awaited if isinstance(node, ast.Lambda)]
    return {
        node.lineno
        for outer in repeated
        for node in ast.walk(outer)
        if isinstance(node, ast.Attribute) and node.attr == "readouterr"
    }


def test_what_is_waited_for_is_read_from_the_fixture_printed():
    """In every test; the fixture reads without emptying."""
    found = {
        f"{path.relative_to(TESTS)}:{line}"
        for path in TESTS.rglob("*.py")
        for line in reading_again_and_again(path.read_text())
    }
    assert not found


def test_such_a_loop_is_found():
    """A lambda, a function that is waited for, and a loop; not what is read once."""
    text = """
def test(capfd, eventually):
    def told():
        return capfd.readouterr().err
    eventually(told)
    eventually(lambda: "x" in capfd.readouterr().err)
    while "y" not in capfd.readouterr().err:
        pass
    assert "z" in capfd.readouterr().err
"""
    assert reading_again_and_again(text) == {4, 6, 7}
