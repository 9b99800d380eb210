"""Dotted names to functions of allowed modules: what a name may lead through.

A name leads through modules on the allow-list, and from them to public callables that
such a module exports (in its ``__all__``) or that are defined in one. What a module
imported for its own use is not reached through it, whatever it is called there.

The modules that every worker allows have functions that do more than compute: they
read and write files, load libraries, run text as code, or reach memory outside of
arrays. Those are refused by name unless the node's settings allow the function itself.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Sequence
from fnmatch import fnmatchcase
from importlib import import_module
from types import ModuleType
from typing import Any, Final

from disco_server.config import module_allowed
from disco_server.runtime.errors import FunctionMissing, ModuleNotAllowed

__all__ = ["MAX_NAME", "REFUSED", "find_dotted", "function_of", "import_allowed"]

MAX_NAME: Final = 1024
"""No name of a function or module is longer."""

_FILES = (
    *("load", "save", "savez", "savez_compressed", "loadtxt", "savetxt", "genfromtxt"),
    *("fromfile", "fromregex", "memmap", "DataSource", "rec.fromfile", "ma.mrecords"),
    *("*.tofile", "*.dump", "lib.format", "lib.npyio"),
)
_CODE = (
    *("testing", "f2py", "distutils", "test", "*.test", "tests", "*.tests", "conftest"),
    *("lookfor", "compat"),
)
_MEMORY = (
    *("ctypeslib", "core", "lib.stride_tricks", "lib.mixins", "ndarray.resize"),
    *("cuda", "RawKernel", "RawModule", "ElementwiseKernel", "ReductionKernel"),
)

REFUSED: Final = tuple(
    f"{package}.{what}" for package in ("numpy", "cupy") for what in (*_FILES, *_CODE, *_MEMORY)
)
"""What sessions may not call although its module is allowed; patterns as of modules."""


def import_allowed(name: str, patterns: Sequence[str]) -> ModuleType:
    """Imports a module that the allow-list covers.

    Raises:
        ModuleNotAllowed: It does not.
        FunctionMissing: There is no such module.
    """
    if len(name) > MAX_NAME or not module_allowed(name, patterns):
        allowed = ", ".join(patterns) or "nothing"
        msg = (
            f"module {_short(name)!r} is not on this worker's allow-list ({allowed}); "
            f"start disco-worker with --allow-module {_short(name.split('.', maxsplit=1)[0])}"
        )
        raise ModuleNotAllowed(msg)
    try:
        return import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or not (name == error.name or name.startswith(f"{error.name}.")):
            raise  # the module is there; something it needs is not
        msg = f"no module named {error.name!r} on this worker; its path is {sys.path}"
        raise FunctionMissing(msg) from None


def find_dotted(
    name: str, modules: Sequence[str], functions: Sequence[str] = ()
) -> Callable[..., Any] | None:
    """Finds a function by its dotted name; None where nothing callable has it.

    Args:
        name: Such as ``numpy.linalg.norm``.
        modules: The allow-list of modules.
        functions: Patterns of what may be called although it is among `REFUSED`.

    Raises:
        ModuleNotAllowed: The name leads through something that is not allowed.
    """
    parts = name.split(".")
    for cut in range(len(parts) - 1, 0, -1):
        if module_allowed(".".join(parts[:cut]), modules):
            return _walk(name, parts, cut, modules, functions)
    return None


def function_of(
    module: ModuleType, name: str, modules: Sequence[str], functions: Sequence[str] = ()
) -> Callable[..., Any] | None:
    """Finds a function of a module that was imported; None where it has none of that name.

    Raises:
        ModuleNotAllowed: The module or the function is not allowed.
    """
    whole = f"{module.__name__}.{name}"
    if not module_allowed(module.__name__, modules):
        raise ModuleNotAllowed(_not_on_list(whole, module.__name__))
    found = _enter(module, name, whole, modules)
    if not callable(found):
        return None
    _check_refused((whole, _canonical(found)), modules, functions)
    return found


def _walk(
    name: str, parts: list[str], cut: int, modules: Sequence[str], functions: Sequence[str]
) -> Callable[..., Any] | None:
    for part in parts[1:]:
        _check_public(name, part)
    if not functions:  # otherwise what it leads to may be allowed by its other name
        _check_refused((name,), modules)
    found: Any = None
    while found is None:
        try:
            found = import_allowed(".".join(parts[:cut]), modules)
        except FunctionMissing:
            cut -= 1  # the last part was no module but something inside one
            if not cut:
                raise
    for part in parts[cut:]:
        found = _enter(found, part, name, modules)
    if not callable(found):
        return None
    _check_refused((name, _canonical(found)), modules, functions)
    return found


def _enter(owner: Any, part: str, name: str, modules: Sequence[str]) -> Any:
    """Goes from a module, a class or an object to what it calls by a name."""
    _check_public(name, part)
    found = getattr(owner, part, None)
    if found is None and _is_foreign(owner, part, modules):
        raise ModuleNotAllowed(_not_on_list(name, part))
    if isinstance(found, ModuleType):
        if not module_allowed(found.__name__, modules):
            raise ModuleNotAllowed(_not_on_list(name, found.__name__))
        return found
    if not callable(found) or _exports(owner, part):
        return found
    home = _home(found)
    if not module_allowed(home, modules):
        msg = (
            f"{name!r} leads to what belongs to module {home!r}, which is not allowed; a module "
            "gives it away if its __all__ names it, or start disco-worker with "
            f"--allow-module {home}"
        )
        raise ModuleNotAllowed(msg)
    return found


def _check_public(name: str, part: str) -> None:
    if part.startswith("_"):
        msg = f"{name!r} leads through the private name {part!r}, which no setting allows"
        raise ModuleNotAllowed(msg)


def _is_foreign(owner: Any, part: str, modules: Sequence[str]) -> bool:
    """Whether a module is asked for one of Python's own, which another version of it may have."""
    ours = part in sys.stdlib_module_names and not hasattr(owner, part)
    return isinstance(owner, ModuleType) and ours and not module_allowed(part, modules)


def _exports(owner: Any, part: str) -> bool:
    return isinstance(owner, ModuleType) and part in (getattr(owner, "__all__", None) or ())


def _home(found: Any) -> str:
    """The module in which something is defined, of a method that of its class."""
    module: Any = getattr(found, "__module__", None)
    if isinstance(module, str):
        return module
    owner: Any = getattr(found, "__self__", found)
    kind: Any = getattr(found, "__objclass__", None) or owner.__class__
    return str(kind.__module__)


def _canonical(found: Any) -> str:
    """What something is called where it is defined."""
    called: Any = getattr(found, "__qualname__", None) or getattr(found, "__name__", "")
    return f"{_home(found)}.{called}"


def _check_refused(
    names: Iterable[str], modules: Sequence[str], functions: Sequence[str] = ()
) -> None:
    """Refuses what does more than compute; whoever may import anything may call anything."""
    names = list(names)
    if "*" in modules or any(_covers(functions, name) for name in names):
        return
    for name in names:
        if _covers(REFUSED, name):
            msg = (
                f"{name!r} reaches files, programs or memory outside of arrays, which sessions may "
                f"not by default; start disco-worker with --allow-function {name}"
            )
            raise ModuleNotAllowed(msg)


def _covers(patterns: Iterable[str], name: str) -> bool:
    return any(fnmatchcase(name, p) or fnmatchcase(name, f"{p}.*") for p in patterns)


def _not_on_list(name: str, module: str) -> str:
    return (
        f"{name!r} leads into module {module!r}, which is not allowed; start disco-worker with "
        f"--allow-module {module}"
    )


def _short(name: str) -> str:
    return name if len(name) <= MAX_NAME else f"{name[:40]}..."
