"""The page about threads and locks: it has those that the code has."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from disco_client.locks import ORDER

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "threads.md"
MAKERS = ("Thread", "Background", "BackgroundWriter")
ROW = re.compile(r"^\| `(\w+)` \| [^|]* \| (.*) \|$", re.MULTILINE)


def modules() -> Iterator[tuple[Path, ast.Module]]:
    for package in ("disco_client", "disco_server"):
        for file in sorted((ROOT / package).rglob("*.py")):
            if "pb" not in file.parts:
                yield file, ast.parse(file.read_text())


def calls(tree: ast.AST, *names: str) -> Iterator[ast.Call]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and ast.unparse(node.func).rpartition(".")[2] in names:
            yield node


def fixed_parts(node: ast.expr) -> Iterator[str]:
    """What is fixed of the name of a thread; the rest stands for a name or a number."""
    parts = node.values if isinstance(node, ast.JoinedStr) else [node]
    for part in parts:
        if isinstance(part, ast.Constant) and isinstance(part.value, str):
            yield part.value


def test_every_thread_with_a_name_is_in_the_table():
    """By the parts of its name that are fixed."""
    text, missing = PAGE.read_text(), set()
    for _, tree in modules():
        for call in calls(tree, *MAKERS):
            named = [word.value for word in call.keywords if word.arg == "name"]
            for name in named or call.args[:1]:
                missing |= {part for part in fixed_parts(name) if part not in text}
    assert not missing


def test_every_lock_with_a_place_is_in_its_row():
    """The rows are in the order that is checked, and name the class that has the lock."""
    rows = dict(ROW.findall(PAGE.read_text()))
    assert tuple(rows) == ORDER
    for file, tree in modules():
        for owner in ast.walk(tree):
            if not isinstance(owner, ast.ClassDef):
                continue
            for call in calls(owner, "make_lock"):
                places = [each.value for each in call.args if isinstance(each, ast.Constant)]
                for place in places:
                    link = f"[`{owner.name}`](../{file.relative_to(ROOT)})"
                    assert link in rows[place], f"{link} is missing in the row {place}"


def test_every_lock_that_is_linked_is_one():
    """Each class of a row makes a lock of its place."""
    for place, row in ROW.findall(PAGE.read_text()):
        for name, path in re.findall(r"\[`(\w+)`\]\(\.\./([^)]*)\)", row):
            tree = ast.parse((ROOT / path).read_text())
            (owner,) = (n for n in ast.walk(tree) if isinstance(n, ast.ClassDef) and n.name == name)
            made = {ast.unparse(each) for call in calls(owner, "make_lock") for each in call.args}
            assert repr(place) in made, f"{name} makes no lock of the place {place}"
