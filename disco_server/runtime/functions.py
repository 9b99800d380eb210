"""Names to functions: what was registered here, and what allowed modules offer."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from types import MappingProxyType, ModuleType
from typing import Any, TypeVar

from disco_server.config import module_allowed
from disco_server.modules.tvm_runtime import find_global
from disco_server.runtime.errors import FunctionMissing, ModuleNotAllowed

__all__ = ["NamedCall", "import_allowed", "register_func", "registered", "registry", "resolve"]

_F = TypeVar("_F", bound=Callable[..., Any])
_registry: dict[str, Callable[..., Any]] = {}


class NamedCall:
    """A function that a call returned, with the name that messages call it by.

    Args:
        name: The name.
        function: The function.
    """

    __slots__ = ("_function", "name")

    def __init__(self, name: str, function: Callable[..., Any]) -> None:
        self.name = name
        self._function = function

    def __call__(self, *args: Any) -> Any:
        """Calls the function."""
        return self._function(*args)


def register_func(name: str, *, override: bool = False) -> Callable[[_F], _F]:
    """Makes a function known to sessions under a name; a decorator.

    Args:
        name: What ``session.get_global_func`` asks for, such as ``"my.scale"``.
        override: Replace a function of that name instead of refusing.

    Raises:
        ValueError: Another function has that name.
    """
    if not isinstance(name, str) or not name:
        msg = f"expected a name, as in @register_func('my.scale'), got {name!r}"
        raise ValueError(msg)

    def register(func: _F) -> _F:
        known = _registry.get(name)
        # A module that is reloaded registers its functions again.
        again = known is not None and (known.__module__, known.__qualname__) == (
            getattr(func, "__module__", None),
            getattr(func, "__qualname__", None),
        )
        if known is not None and not override and not again:
            msg = f"{name!r} is registered already; override=True replaces it"
            raise ValueError(msg)
        _registry[name] = func
        return func

    return register


def registered() -> tuple[str, ...]:
    """Every registered name, sorted."""
    return tuple(sorted(_registry))


def registry() -> Mapping[str, Callable[..., Any]]:
    """The registered functions by name, as they are at the time of each look."""
    return MappingProxyType(_registry)


def import_allowed(name: str, patterns: Sequence[str]) -> ModuleType:
    """Imports a module that the allow-list covers.

    Raises:
        ModuleNotAllowed: It does not.
        FunctionMissing: There is no such module.
    """
    if not module_allowed(name, patterns):
        allowed = ", ".join(patterns) or "nothing"
        msg = (
            f"module {name!r} is not on this worker's allow-list ({allowed}); "
            f"start disco-worker with --allow-module {name.split('.', maxsplit=1)[0]}"
        )
        raise ModuleNotAllowed(msg)
    try:
        return import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or not (name == error.name or name.startswith(f"{error.name}.")):
            raise  # the module is there; something it needs is not
        msg = f"no module named {error.name!r} on this worker; its path is {sys.path}"
        raise FunctionMissing(msg) from None


def resolve(name: str, patterns: Sequence[str]) -> Callable[..., Any]:
    """Finds a function by its registered or dotted name, else in TVM's registry.

    TVM's functions may do anything, so they need an allow-list that covers ``tvm``.

    Raises:
        FunctionMissing: Nothing callable has that name.
        ModuleNotAllowed: The name leads through a module that is not allowed.
    """
    func = _registry.get(name)
    if func is not None:
        return func
    try:
        return _resolve_dotted(name, patterns)
    except FunctionMissing:
        func = find_global(name) if module_allowed("tvm", patterns) else None
        if func is None:
            raise
        return func


def _resolve_dotted(name: str, patterns: Sequence[str]) -> Callable[..., Any]:
    parts = name.split(".")
    for cut in range(len(parts) - 1, 0, -1):
        if module_allowed(".".join(parts[:cut]), patterns):
            return _walk(name, parts, cut, patterns)
    msg = f"no function named {name!r} on this worker"
    if len(parts) > 1:
        msg += f", and module {'.'.join(parts[:-1])!r} is not on its allow-list"
    raise FunctionMissing(f"{msg}{_near(name)}")


def _walk(name: str, parts: list[str], cut: int, patterns: Sequence[str]) -> Callable[..., Any]:
    found: Any = None
    while found is None:
        try:
            found = import_allowed(".".join(parts[:cut]), patterns)
        except FunctionMissing:
            cut -= 1  # the last part was no module but something inside one
            if not cut:
                raise
    for part in parts[cut:]:
        if part.startswith("_"):
            msg = f"{name!r} leads through the private name {part!r}"
            raise ModuleNotAllowed(msg)
        found = getattr(found, part, None)
        if isinstance(found, ModuleType) and not module_allowed(found.__name__, patterns):
            msg = f"{name!r} leads into module {found.__name__!r}, which is not allowed"
            raise ModuleNotAllowed(msg)
    if not callable(found):
        msg = f"no function named {name!r} on this worker"
        raise FunctionMissing(f"{msg}{_near(name)}")
    return found


def _near(name: str) -> str:
    import difflib

    close = difflib.get_close_matches(name, _registry, n=1, cutoff=0.75)
    return f"; did you mean {close[0]!r}?" if close else ""
