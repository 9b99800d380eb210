"""Loads Python files: their public functions."""

from __future__ import annotations

import hashlib
import inspect
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

from disco_server.modules.base import FileRefused, Functions

__all__ = ["load"]

_lock = threading.RLock()
_loaded: dict[tuple[Path, str], Functions] = {}


def load(path: Path, digest: str, name: str) -> Functions:
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
    with _lock:
        functions = _loaded.get((path, digest))
        if functions is None:
            source = path.read_bytes()
            if hashlib.sha256(source).hexdigest() != digest:
                msg = f"{str(path)!r} changed while it was loaded"
                raise FileRefused(msg)
            functions = _public_functions(_run(source, path, digest, name))
            _loaded[path, digest] = functions
        return functions


def _run(source: bytes, path: Path, digest: str, name: str) -> ModuleType:
    """Executes a file in a module of its own.

    No bytecode is read or written beside it: that is found by time and size, and
    a file may change within one tick of the clock.
    """
    key = hashlib.sha256(f"{path}\0{digest}".encode()).hexdigest()[:16]
    module = ModuleType(f"{Path(name).stem}@{key}")
    module.__file__ = str(path)
    # Dataclasses, pickles and annotations look their module up.
    sys.modules[module.__name__] = module
    try:
        exec(compile(source, str(path), "exec", dont_inherit=True), module.__dict__)  # noqa: S102  (allowed by the node)
    except BaseException:
        del sys.modules[module.__name__]
        raise
    return module


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
