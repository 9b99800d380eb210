"""Which modules that stand beside a script it imports, found in its source."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

__all__ = ["imports_beside"]


def imports_beside(script: Path) -> list[Path]:
    """Finds what a script imports from its own folder, and what that imports from there.

    Import statements are read wherever they stand. A name that the program makes as it runs, for
    ``importlib.import_module``, is not found.

    Args:
        script: The script.

    Returns:
        The files of modules, and the folders of packages, in no order that matters.

    Raises:
        OSError: A file cannot be read.
    """
    folder = script.resolve().parent
    found: dict[str, Path] = {}
    waiting = [script]
    while waiting:
        for name in sorted(_imported_by(waiting.pop())):
            path = None if name in found else _find(folder, name)
            if path is not None:
                found[name] = path
                waiting += [path] if path.is_file() else sorted(path.rglob("*.py"))
    return [*found.values()]


def _imported_by(file: Path) -> set[str]:
    """The first parts of the names that a file imports; none of one that is no Python."""
    try:
        tree = ast.parse(file.read_bytes())
    except (SyntaxError, ValueError):  # its import says so
        return set()
    return {name.partition(".")[0] for name in _names_in(tree)}


def _names_in(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (each.name for each in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            yield node.module or ""


def _find(folder: Path, name: str) -> Path | None:
    """What Python would import from a folder; None where it would look elsewhere."""
    package, module = folder / name, folder / f"{name}.py"
    if not name or (package / "__init__.py").is_file():
        return package if name else None
    if module.is_file():
        return module
    # Python prefers every other place to a folder without __init__.py.
    plain = name not in sys.stdlib_module_names and package.is_dir()
    return package if plain and any(package.glob("*.py")) else None
