"""Names that a stranger can guess: one class a name, and none of the words that nobody knew."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from disco_server.cli.main import main
from disco_server.config import ControllerConfig, WorkerConfig
from disco_server.settings import RANK_VARIABLES

ROOT = Path(__file__).parents[2]
GENERATED = ROOT / "disco_client" / "pb"
PLACES = ("disco_client", "disco_server", "benchmarks")

# The field says process group, channel, endpoint, payload, counters and so on.
UNKNOWN = frozenset(
    re.findall(
        r"\w+",
        """again apart circle deaths desk door finding fitting gate growing knock lane lasting
        lent life loan meeting mover norms offered outlet rider side spares tally verdict wording
        """,
    )
)


def modules() -> Iterator[tuple[str, ast.Module]]:
    """Each file of ours with its tree, generated ones left out."""
    for place in PLACES:
        for file in sorted((ROOT / place).rglob("*.py")):
            if GENERATED not in file.parents:
                yield file.relative_to(ROOT).as_posix(), ast.parse(file.read_text())


def defined(tree: ast.Module, *kinds: type[ast.AST]) -> Iterator[str]:
    """The names of all classes or functions, wherever they are defined."""
    for node in ast.walk(tree):
        if isinstance(node, kinds):
            yield node.name  # type: ignore[attr-defined]


def unknown(name: str) -> set[str]:
    """The words of a name, in whatever case and number, that nobody could guess."""
    words = [each.lower() for each in re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+", name)]
    return UNKNOWN.intersection(words) | UNKNOWN.intersection(each.rstrip("s") for each in words)


def commands(command: click.Command, path: str) -> Iterator[str]:
    """A command of the CLI with its options, and all below it."""
    yield path
    for each in command.params:
        yield from (f"{path} {option}" for option in each.opts)
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            found = command.get_command(context, name)
            assert found is not None
            yield from commands(found, f"{path} {name}")


def test_no_two_classes_have_one_name():
    """Private ones too: who searches for a class finds one."""
    where: dict[str, list[str]] = {}
    for file, tree in modules():
        for name in defined(tree, ast.ClassDef):
            where.setdefault(name, []).append(file)
    assert not {name: files for name, files in where.items() if len(files) > 1}


@pytest.mark.parametrize("name", ["ArrayDoor", "free_gates", "Tally", "disco_lent_arrays", "lanes"])
def test_an_unknown_word_is_seen(name):
    """In classes, functions and metrics, alone and among others."""
    assert unknown(name)


def test_modules_classes_and_functions_bear_known_words():
    """Each of their words is one that an engineer of the field would search for."""
    found = {
        f"{file}: {name}"
        for file, tree in modules()
        for name in [
            Path(file).stem,
            *defined(tree, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef),
        ]
        if unknown(name)
    }
    assert not found


def test_commands_options_settings_and_metrics_bear_known_words():
    """What people type, set and draw."""
    typed = list(commands(main, "disco"))
    assert len(typed) > 50
    assert any("--slots" in each for each in typed)
    rows = [*ControllerConfig.table().values(), *WorkerConfig.table().values()]
    settings = [each.variable for each in rows] + [each.name for each in RANK_VARIABLES]
    metrics = [
        node.value
        for _, tree in modules()
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant)
        and isinstance(node.value, str)
        and re.fullmatch(r"disco_[a-z_]+", node.value)
    ]
    assert "disco_commands" in metrics
    assert not [each for each in [*typed, *settings, *metrics] if unknown(each)]
