"""Names to functions: what was registered here, and what allowed modules offer."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, TypeVar

from disco_server.config import module_allowed
from disco_server.modules.tvm_runtime import find_global
from disco_server.runtime.dotted import MAX_NAME, find_dotted, import_allowed
from disco_server.runtime.errors import ArgumentRefused, FunctionMissing

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


def resolve(
    name: str, patterns: Sequence[str], functions: Sequence[str] = ()
) -> Callable[..., Any]:
    """Finds a function by its registered or dotted name, else in TVM's registry.

    TVM's functions may do anything, so they need an allow-list that covers ``tvm``.

    Args:
        name: The name.
        patterns: The allow-list of modules.
        functions: Patterns of what may be called although it does more than compute
            (see `disco_server.runtime.dotted`).

    Raises:
        ArgumentRefused: The name is longer than any.
        FunctionMissing: Nothing callable has that name.
        ModuleNotAllowed: The name leads through a module that is not allowed.
    """
    func = _registry.get(name)
    if func is not None:
        return func
    if len(name) > MAX_NAME:
        msg = f"expected a name of at most {MAX_NAME} characters, got {len(name)}"
        raise ArgumentRefused(msg)
    missing = FunctionMissing(_missing(name, patterns))
    try:
        func = find_dotted(name, patterns, functions)
    except FunctionMissing as error:
        missing = error
    if func is None and module_allowed("tvm", patterns):
        func = find_global(name)
    if func is None:
        raise missing
    return func


def _missing(name: str, patterns: Sequence[str]) -> str:
    msg = f"no function named {name!r} on this worker"
    module, dot, _ = name.rpartition(".")
    if dot and not module_allowed(module, patterns):
        msg += f", and module {module!r} is not on its allow-list (--allow-module)"
    return f"{msg}{_near(name)}"


def _near(name: str) -> str:
    import difflib

    close = difflib.get_close_matches(name, _registry, n=1, cutoff=0.75)
    return f"; did you mean {close[0]!r}?" if close else ""
