"""Loads the functions of a file by the loader for its kind.

Every rank imports this, and few load a file: what only loading needs is imported then.
"""

from __future__ import annotations

import ast
import functools
import hashlib
import inspect
import linecache
import os
import stat
import sys
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import CodeType, ModuleType
from typing import TYPE_CHECKING, Any

from disco_client.arguments import importing
from disco_server.modules.base import FileRefused, Functions, LoadedModule, Loader
from disco_server.modules.children import publish

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

    from disco_client.wire.values import Device

__all__ = [
    "GROUP",
    "PACKAGE",
    "compile_cell",
    "compile_script",
    "digest_of",
    "import_brought",
    "import_in_child",
    "import_lock",
    "import_source",
    "load",
    "load_python",
    "outdate_sources",
    "refuse_kind",
]


GROUP = "disco.module_loaders"
"""The entry-point group of loaders for other kinds of files (see `Loader`)."""

PACKAGE = ".disco-package"
"""How the names of archives of packages end, which are unpacked and not loaded; see `packages`."""

_TVM = (".so", ".tar")
_BUILT_IN = (".py", *_TVM)


def digest_of(path: Path) -> str:
    """The SHA-256 of a file's content, in hexadecimal; computed once for each state of it.

    Raises:
        FileRefused: There is no such file, or it cannot be read.
    """
    try:
        found = path.stat()
        if stat.S_ISREG(found.st_mode):
            return _digest(path, found.st_ino, found.st_size, found.st_mtime_ns)
    except OSError as error:
        msg = f"cannot read {str(path)!r} on this worker: {error.strerror or error}"
        raise FileRefused(msg) from None
    msg = f"expected a file, {str(path)!r} is something else"
    raise FileRefused(msg)


@functools.lru_cache(maxsize=256)
def _digest(path: Path, _inode: int, _size: int, _changed: int) -> str:
    import hashlib

    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def load(path: Path, name: str, device: Device, serve: Functions) -> LoadedModule:
    """Loads a file by the loader for its kind.

    Args:
        path: The file, without links.
        name: Its name at the client; its suffix says what kind it is.
        device: Where its functions run.
        serve: Functions of this process that a compiled module may call by name.

    Raises:
        FileRefused: There is no loader for this kind, or the file is not of the kind its
            name says, or it needs something that is missing.
    """
    suffix = refuse_kind(name)
    if suffix == PACKAGE:
        msg = f"{Path(name).name!r} is the archive of a package, which session.include brings"
        raise FileRefused(msg)
    if suffix == ".py":
        functions = load_python(path, digest_of(path), name)
    elif suffix in _TVM:
        from disco_server.modules import tvm

        functions = tvm.load(path, digest_of(path), device, serve)
    else:
        functions = _foreign_loader(suffix)(path, device)
        if not hasattr(functions, "get"):
            msg = (
                f"the loader for {suffix!r} returned {type(functions).__name__}, expected a "
                "mapping from names to functions"
            )
            raise FileRefused(msg)
    return LoadedModule(Path(name).name, functions)


def refuse_kind(name: str) -> str:
    """Returns the suffix of a file's name.

    Raises:
        FileRefused: There is no loader for it.
    """
    suffix = Path(name).suffix.lower()
    if suffix not in (*_BUILT_IN, PACKAGE) and not _entries(suffix):
        others = sorted({f".{entry.name}" for entry in _entries()})
        msg = (
            f"no loader for {Path(name).name!r}: expected a file ending in "
            f"{', '.join((*_BUILT_IN, *others))}; packages add others by the entry-point group "
            f"{GROUP!r}"
        )
        raise FileRefused(msg)
    return suffix


def _entries(suffix: str | None = None) -> list[EntryPoint]:
    """The entry points of one kind of file, or of all."""
    from importlib.metadata import entry_points

    found = entry_points(group=GROUP)
    return [e for e in found if suffix is None or f".{e.name}" == suffix]


def _foreign_loader(suffix: str) -> Loader:
    found = _entries(suffix)
    if len({entry.value for entry in found}) > 1:
        named = ", ".join(sorted(entry.value for entry in found))
        msg = f"several packages bring a loader for {suffix!r}: {named}"
        raise FileRefused(msg)
    loader: Loader = found[0].load()
    return loader


# Loads Python files: their public functions, or under a name as an import does.


import_lock = threading.RLock()
"""Is held while what clients brought is imported, or replaced."""

_loaded: dict[tuple[Path, str], Functions] = {}
_sources: dict[str, tuple[str, ModuleType]] = {}
"""What was imported from clients' files, and the SHA-256 of each, by the module's name."""


def load_python(path: Path, digest: str, name: str) -> Functions:
    """Runs a Python file once in this process and returns its public functions.

    These are the callables that ``__all__`` names, or without it the functions that
    the file itself defines and whose names do not begin with an underscore. The
    file's module has a name that no import statement can spell.

    Args:
        path: The file, without links.
        digest: The SHA-256 of its content, in hexadecimal.
        name: The name of the file, for tracebacks.

    Raises:
        FileRefused: The content is not that of the digest.
        SyntaxError: It is no Python.
    """
    with import_lock:
        functions = _loaded.get((path, digest))
        if functions is None:
            key = hashlib.sha256(f"{path}\0{digest}".encode()).hexdigest()[:16]
            source = _read(path, digest)
            module = _run(source, f"{Path(name).stem}@{key}", path, name)
            functions = _loaded[path, digest] = _public_functions(module)
        return functions


def program_module(path: Path, module_name: str) -> ModuleType | None:
    """The module that the program of this process has of a file; None where it has none.

    Args:
        path: The file, without links.
        module_name: The name that it has unless it is the program's own file.
    """
    here = (sys.modules.get(name) for name in ("__main__", module_name))
    return next((module for module in here if module and _is_from(module, path)), None)


def import_source(path: Path, digest: str, name: str, module_name: str) -> ModuleType:
    """Imports a Python file under a name, unless that was done with the same content.

    A module that was imported here from the same file in the usual way, as a program
    whose workers are threads may have done, stays what ``import`` finds.

    Args:
        path: The file, without links.
        digest: The SHA-256 of its content, in hexadecimal.
        name: The name of the file at the client, for tracebacks.
        module_name: The name of the module.

    Raises:
        FileRefused: This process has another module of that name, the content is not that
            of the digest, or something that it imports is missing.
        SyntaxError: It is no Python.
    """
    with import_lock:
        known, module = _sources.get(module_name, ("", None))
        if module is not None and known == digest:
            return module
        here = sys.modules.get(module_name)
        ordinary = here is not None and module_name not in _sources
        if ordinary and not _is_from(here, path):
            where = getattr(here, "__file__", None) or "no file"
            msg = (
                f"this worker has another module {module_name!r} already, from {where}; give"
                f" {Path(name).name!r} another name"
            )
            raise FileRefused(msg)
        source = _read(path, digest)
        module = import_brought(
            name, lambda: _run(source, module_name, path, name, listed=not ordinary)
        )
        if not ordinary:
            publish(module_name, str(path), digest, name)
        _sources[module_name] = digest, module
        return module


def import_brought(name: str, run: Callable[[], ModuleType]) -> ModuleType:
    """Imports what a client brought.

    Args:
        name: The name of its file at the client, or of the module.
        run: Imports it.

    Raises:
        FileRefused: Something that it imports is missing, or it is a program.
    """
    try:
        with importing(name):
            return run()
    except ModuleNotFoundError as error:
        raise _missing(error, name) from error
    except SystemExit as error:
        msg = (
            f"{Path(name).name!r} is a program: its import ended with exit status"
            f" {error.code}; put what it does below 'if __name__ == \"__main__\":'"
        )
        raise FileRefused(msg) from error
    except ImportError as error:
        if error.name is not None:
            raise
        raise _missing(error, name) from error  # a relative import


def outdate_sources(name: str, *, every: bool) -> None:
    """Lets files that clients brought be imported anew when they are next brought.

    Args:
        name: Of a module that is a package from now on.
        every: Whether that holds for all of them, because they may have imported another version
            of the package.
    """
    _sources.pop(name, None)
    if every:
        for each, (_, module) in _sources.items():
            _sources[each] = "", module


def _is_from(module: object, path: Path) -> bool:
    file = getattr(module, "__file__", None)
    return isinstance(file, str) and os.path.realpath(file) == str(path)


def _missing(error: ImportError, name: str) -> FileRefused:
    msg = (
        f"{Path(name).name!r} cannot be imported on this worker: {error}; a file is brought alone,"
        " without what stands beside it: install what it imports on the workers, or bring it before"
        " by session.include"
    )
    lacks = error.name or ""
    is_top = lacks != "" and "." not in lacks
    return FileRefused(msg, str(Path(name).with_name(lacks)) if is_top else "")


def _read(path: Path, digest: str) -> bytes:
    source = path.read_bytes()
    if hashlib.sha256(source).hexdigest() != digest:
        msg = f"{str(path)!r} changed while it was loaded"
        raise FileRefused(msg)
    return source


def _run(
    source: bytes, module_name: str, path: Path, name: str, *, listed: bool = True
) -> ModuleType:
    """Executes a file in a new module.

    No bytecode is read or written beside it: that is found by time and size, and
    a file may change within one tick of the clock.
    """
    module = ModuleType(module_name)
    before = sys.modules.get(module_name)
    if listed:
        # Dataclasses, pickles and annotations look their module up.
        sys.modules[module_name] = module
    try:
        _execute(source, module, path, name)
    except BaseException:
        if listed:
            del sys.modules[module_name]
            if before is not None:
                sys.modules[module_name] = before
        raise
    return module


def compile_cell(path: Path, digest: str, name: str) -> tuple[CodeType, CodeType | None]:
    """Compiles a file as a notebook does a cell.

    Args:
        path: The file, without links.
        digest: The SHA-256 of its content, in hexadecimal.
        name: The name of the cell, for tracebacks.

    Returns:
        Its statements, and the expression after them if it ends in one.

    Raises:
        FileRefused: The content is not that of the digest.
        SyntaxError: It is no Python.
    """
    source = _read(path, digest)
    _show_in_tracebacks(source, name)
    tree = ast.parse(source, name)
    last = tree.body[-1] if tree.body else None
    if not isinstance(last, ast.Expr):
        return compile(tree, name, "exec", dont_inherit=True), None
    del tree.body[-1]
    value = compile(ast.Expression(last.value), name, "eval", dont_inherit=True)
    return compile(tree, name, "exec", dont_inherit=True), value


def compile_script(path: Path, digest: str, name: str) -> CodeType:
    """Compiles a file as Python does the one that it runs.

    Args:
        path: The file, without links.
        digest: The SHA-256 of its content, in hexadecimal.
        name: The name of the file at the client, for tracebacks.

    Raises:
        FileRefused: The content is not that of the digest.
        SyntaxError: It is no Python.
    """
    source = _read(path, digest)
    _show_in_tracebacks(source, name)
    return compile(source, name, "exec", dont_inherit=True)


def _show_in_tracebacks(source: bytes, name: str) -> None:
    """Lets tracebacks name a file as the program knows it, and show its lines."""
    lines = source.decode(errors="replace").splitlines(keepends=True)
    linecache.cache[name] = len(source), None, lines, name


def _execute(source: bytes, module: ModuleType, path: Path, name: str) -> None:
    module.__file__ = str(path)
    _show_in_tracebacks(source, name)
    exec(compile(source, name, "exec", dont_inherit=True), module.__dict__)  # noqa: S102  (allowed by the node)


def import_in_child(module_name: str, path: str, digest: str, name: str) -> None:
    """Runs the file of a module in a child of the worker that imported it; see `children`.

    Where that fails, the module has functions of every name, which raise a FileRefused: a pool
    replaces a child that fails before its first call, and its caller would wait for ever.
    """
    module, where = sys.modules[module_name], Path(path)
    try:
        _execute(_read(where, digest), module, where, name)
    except BaseException as error:  # noqa: BLE001  (a file may raise anything)
        msg = (
            f"{Path(name).name!r} cannot be imported in a child process of this worker:"
            f" {type(error).__name__}: {error}"
        )
        vars(module)["__getattr__"] = partial(_stand_in, msg)


def _stand_in(msg: str, name: str) -> Callable[..., Any]:
    if name.startswith("__"):
        raise AttributeError(name)

    def fail(*_args: Any, **_named: Any) -> None:
        raise FileRefused(msg)

    return fail


def _public_functions(module: ModuleType) -> dict[str, Callable[..., Any]]:
    named: Any = getattr(module, "__all__", None)
    if named is not None:
        found = {str(name): getattr(module, str(name)) for name in named}
        return {name: value for name, value in found.items() if callable(value)}
    return {
        name: value
        for name, value in vars(module).items()
        if not name.startswith("_")
        and inspect.isroutine(value)
        and getattr(value, "__module__", None) == module.__name__
    }
