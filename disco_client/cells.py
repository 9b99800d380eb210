"""Functions and classes of a notebook's cells, as files that workers can import."""

from __future__ import annotations

import ast
import atexit
import hashlib
import linecache
import shutil
import symtable
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import Any, cast

from disco_client.errors import ConfigError

__all__ = ["file_of_cell", "file_of_text", "kept_file"]

_CONSTANTS = (type(None), bool, int, float, complex, str, bytes)


def file_of_cell(name: str, space: Mapping[str, Any]) -> Path:
    """Writes what a function or a class of an interactive program needs into a file.

    That is its own source, with its defaults and decorators, and of the globals that it uses:
    imports of modules and of what modules define, constants, and the sources of other functions
    and classes of the program, of which the same holds.

    Args:
        name: Its name.
        space: The globals of the program.

    Returns:
        The file. Its name is that of its content, so that equal sources are one file.

    Raises:
        ConfigError: There is no source, or it uses a global of another kind, which is named.
    """
    cell = _Cell(space)
    cell.add(name)
    if cell.refused:
        msg = (
            f"{name!r} uses {', '.join(cell.refused)} of this program; workers get functions,"
            " classes, modules, numbers and text with it, so pass anything else as an argument"
        )
        raise ConfigError(msg)
    return file_of_text(cell.text())


def file_of_text(text: str) -> Path:
    """Writes the text of a cell, or of what is used of one, into a file that lives as the program.

    Args:
        text: The text.

    Returns:
        The file. Its name is that of its content, so that equal texts are one file.
    """
    return kept_file(text.encode(), "cell", ".py")


def kept_file(content: bytes, kind: str, suffix: str) -> Path:
    """Writes a file that lives as the program.

    Args:
        content: What is in it.
        kind: How its name begins.
        suffix: How its name ends.

    Returns:
        The file. Its name is that of its content, so that equal contents are one file.
    """
    digest = hashlib.sha256(content).hexdigest()
    file = _files.get(digest)
    if file is None or not file.exists():
        # In a folder of its own, which nobody else can have made before.
        folder = tempfile.mkdtemp(prefix=f"disco-{kind}-")
        atexit.register(shutil.rmtree, folder, ignore_errors=True)
        file = Path(folder) / f"{kind}_{digest[:12]}{suffix}"
        file.write_bytes(content)
        _files[digest] = file
    return file


_files: dict[str, Path] = {}
"""By the SHA-256 of their content."""


class _Cell:
    """Collects sources, and the statements that make what they use.

    Attributes:
        refused: The globals that cannot be brought, each with its type.
    """

    def __init__(self, space: Mapping[str, Any]) -> None:
        self.refused: list[str] = []
        self._space = space
        self._known: set[str] = set()
        self._made: list[str] = []
        self._sources: list[str] = []

    def text(self) -> str:
        """The module."""
        # Annotations are not executed: what they name may be missing.
        return "\n".join(
            ["from __future__ import annotations", "", *self._made, "", "", *self._sources]
        )

    def add(self, name: str) -> None:
        """Adds a function or a class, and before it what it uses."""
        self._known.add(name)
        source = _source_of(name, self._space[name])
        for used in sorted(_globals_of(source)):
            if used in self._space and used not in self._known:
                self._known.add(used)
                self._add_global(used, self._space[used])
        self._sources.append(f"{source}\n\n")

    def _add_global(self, name: str, value: Any) -> None:
        module: Any = getattr(value, "__module__", None)
        if isinstance(value, ModuleType):
            self._made.append(f"import {value.__name__} as {name}")
        elif _is_constant(value):
            self._made.append(f"{name} = {_text_of(value)}")
        elif isinstance(value, (FunctionType, type)) and module == "__main__":
            self.add(name)
        elif module in sys.modules and _is_found(sys.modules[module], value):
            self._made.append(f"from {module} import {value.__name__} as {name}")
        else:
            self.refused.append(f"{name} (of type {type(value).__name__})")


def _is_constant(value: object) -> bool:
    if type(value) is tuple:
        return all(map(_is_constant, cast("tuple[object, ...]", value)))
    return type(value) in _CONSTANTS


def _text_of(value: Any) -> str:
    """The expression of a constant."""
    if type(value) is tuple:
        items = cast("tuple[object, ...]", value)
        return f"({''.join(f'{_text_of(each)}, ' for each in items)})"
    # Infinities and what is no number have no literals.
    return (
        f"{type(value).__name__}({str(value)!r})"
        if type(value) in (float, complex)
        else repr(value)
    )


def _is_found(module: ModuleType, value: Any) -> bool:
    name = getattr(value, "__name__", None)
    return isinstance(name, str) and getattr(module, name, None) is value


# Sources ------------------------------------------------------------------------------


def _source_of(name: str, thing: Any) -> str:
    """The source of a function or a class, from the cell in which it was defined."""
    for code in _codes_of(thing):
        lines = linecache.getlines(code.co_filename)
        try:
            tree = ast.parse("".join(lines))
        except SyntaxError:
            continue
        for node in tree.body:
            if (
                isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
                and node.name == name
            ):
                first = min([node.lineno, *(each.lineno for each in node.decorator_list)])
                if first <= code.co_firstlineno <= (node.end_lineno or first):
                    return "".join(lines[first - 1 : node.end_lineno])
    msg = (
        f"the source of {name!r} is not known here, as of what was typed at Python's own prompt;"
        " put it into a file and import it from there, or use IPython or a notebook"
    )
    raise ConfigError(msg)


def _codes_of(thing: Any) -> Iterator[CodeType]:
    """The code of a function, or of the methods of a class."""
    function = getattr(thing, "__wrapped__", thing)
    if isinstance(function, FunctionType):
        yield function.__code__
    for member in vars(thing).values() if isinstance(thing, type) else ():
        inner = getattr(member, "__func__", getattr(member, "fget", member))
        if isinstance(inner, FunctionType):
            yield inner.__code__


class _Unannotated(ast.NodeTransformer):
    """Takes the annotations away, which are not executed."""

    def visit_arg(self, node: ast.arg) -> ast.AST:
        node.annotation = None
        return node

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        node.returns = None
        return self.generic_visit(node)

    def visit_AsyncFunctionDef(self, node: ast.AsyncFunctionDef) -> ast.AST:
        node.returns = None
        return self.generic_visit(node)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AST:
        node.annotation = ast.Constant(None)
        return self.generic_visit(node)


def _globals_of(source: str) -> set[str]:
    """The names that a source reads of its module, builtins among them."""
    plain = ast.unparse(_Unannotated().visit(ast.parse(source)))
    top = symtable.symtable(plain, "cell", "exec")
    found = {each.get_name() for each in top.get_symbols() if each.is_referenced()}
    tables = list(top.get_children())
    while tables:
        table = tables.pop()
        found |= {each.get_name() for each in table.get_symbols() if each.is_global()}
        tables += table.get_children()
    return found
