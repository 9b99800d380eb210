"""Nothing is left behind where code was moved: headings, second imports, branches.

Each of them misleads its reader: a heading has no code, a name seems to come from two places, a
branch seems to be taken.
"""

from __future__ import annotations

import ast
import re
from collections import Counter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FILES = [
    path
    for folder in ("disco_client", "disco_server", "benchmarks", "examples", "tests")
    for path in sorted((ROOT / folder).rglob("*.py"))
    if "pb" not in path.parts
]
HEADING = re.compile(r" *# \S.* -{3,}$")


def headings_without_code(text):
    """The lines of headings that another heading, the end of their block or of the file follows."""
    lines = [(number, line) for number, line in enumerate(text.split("\n"), 1) if line.strip()]
    found = []
    for (number, line), (_, after) in zip(lines, [*lines[1:], (0, "")], strict=True):
        if HEADING.match(line):
            indent = len(line) - len(line.lstrip())
            ends = len(after) - len(after.lstrip()) < indent
            if not after or ends or HEADING.match(after):
                found.append(number)
    return found


def imported_twice(text):
    """The names that two imports of a module bind, at run time or for types."""
    names: Counter[str] = Counter()
    for node in ast.parse(text).body:
        inner = node.body if isinstance(node, ast.If) else [node]
        for each in inner:
            if isinstance(each, (ast.Import, ast.ImportFrom)):
                names.update(alias.asname or alias.name for alias in each.names)
    return {name for name, count in names.items() if count > 1}


def _classes(pattern):
    """The classes of which a pattern takes every instance."""
    if isinstance(pattern, ast.MatchOr):
        return {name for each in pattern.patterns for name in _classes(each)}
    if isinstance(pattern, ast.MatchAs) and pattern.pattern is not None:
        return _classes(pattern.pattern)
    if not isinstance(pattern, ast.MatchClass):
        return set()
    parts = [*pattern.patterns, *pattern.kwd_patterns]
    if any(not isinstance(part, ast.MatchAs) or part.pattern is not None for part in parts):
        return set()
    return {ast.unparse(pattern.cls)}


class _Cases:
    """Looks through the ``match`` statements of a file, and from each into the one that goes on.

    Attributes:
        found: The lines of cases whose class an earlier case takes.
    """

    def __init__(self, tree):
        self.found = set()
        self._functions = {n.name: n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef)}
        for node in ast.walk(tree):
            if isinstance(node, ast.Match):
                self._look(node, frozenset())

    def _look(self, match, taken):
        for case in match.cases:
            classes = _classes(case.pattern)
            if classes and classes <= taken:
                self.found.add(case.pattern.lineno)
            if case.guard is None:
                taken |= classes
        rest = match.cases[-1]
        if isinstance(rest.pattern, ast.MatchAs) and rest.pattern.pattern is None:
            for goes_on in self._followed(rest, ast.unparse(match.subject)):
                self._look(goes_on, taken)

    def _followed(self, case, subject):
        """The matches of a function that a case calls with what is matched."""
        nodes = (node for part in case.body for node in ast.walk(part))
        for call in (node for node in nodes if isinstance(node, ast.Call)):
            if isinstance(call, ast.Call) and [ast.unparse(each) for each in call.args] == [
                subject
            ]:
                name = getattr(call.func, "attr", getattr(call.func, "id", ""))
                function = self._functions.get(name)
                yield from (n for n in getattr(function, "body", ()) if isinstance(n, ast.Match))


def unreachable_cases(text):
    """The lines of cases whose class an earlier case takes, also of the caller's ``match``."""
    # Most files have none, and walking through each of them takes seconds together.
    return _Cases(ast.parse(text)).found if re.search(r"^ *match ", text, re.MULTILINE) else set()


@pytest.mark.parametrize("look", [headings_without_code, imported_twice, unreachable_cases])
def test_nothing_is_left_behind(look):
    """In no file of the project."""
    found = {str(path.relative_to(ROOT)): look(path.read_text()) for path in FILES}
    assert {name: each for name, each in found.items() if each} == {}


def test_each_of_them_is_found():
    """A heading at the end of a class, one before another, a second import, a case of a caller."""
    rule = "-" * 30
    text = f"""
from typing import TYPE_CHECKING
from a import One, Two
if TYPE_CHECKING:
    from b import One

# First {rule}

# Second {rule}

class C:
    def f(self, x):
        match x:
            case One(y):
                return y
            case Two(value=1):
                return 1
            case _:
                self.g(x)

    def g(self, x):
        match x:
            case One():
                pass
            case Two():
                pass

    # Last {rule}

x = 1
"""
    assert headings_without_code(text) == [7, 28]
    assert imported_twice(text) == {"One"}
    assert unreachable_cases(text) == {23}
