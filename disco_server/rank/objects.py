"""Objects that sessions make on workers: of which classes, and what of an object is reached.

A class is open to sessions if a module registered it, or if the worker's allow-list covers
the module that defines it. Of an object of such a class a session reaches, by a public name:

- methods, which are looked up on the class, and only where an open module defines them: what
  an instance holds under that name does not count, and what a class inherits or takes from
  other modules is refused;
- values: properties that such a module defines, slots, and what the instance or the class
  holds. Only plain values and arrays come out; of anything else a description.

So nothing that can be called is reached but functions of modules that are open anyway.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import cached_property, partial
from types import MemberDescriptorType
from typing import Any, Final, TypeVar, cast

import numpy as np

from disco_client.errors import EncodingError
from disco_client.wire.codec import type_name
from disco_client.wire.values import MAX_DEPTH, Device, Shape
from disco_server.modules.unfinished import refuse_unfinished
from disco_server.rank.errors import (
    ArgumentRefused,
    FunctionMissing,
    ModuleNotAllowed,
    opaque_of,
)
from disco_server.rank.functions import (
    MAX_NAME,
    NamedCall,
    check_entry_name,
    enter_name,
    find_dotted,
    home_of,
)
from disco_server.rank.numpy_functions import PACKAGES
from disco_server.rank.registers import is_any_array
from disco_server.settings import module_allowed

__all__ = [
    "BoundMethod",
    "find_class",
    "has_state",
    "load_object",
    "member_of",
    "needs_torch",
    "offer_class",
    "register_class",
    "save_object",
]


_Class = TypeVar("_Class", bound=type)

_SAVE: Final = "__disco_state__"
_LOAD: Final = "__disco_load__"

_PLAIN: Any = (type(None), bool, int, float, str, bytes, bytearray, Device, np.dtype, np.generic)

_classes: dict[str, type] = {}
_open: set[type] = set()
"""Every class that was registered; of a module that is reloaded, the former one too."""

_with_torch: set[type] = set()
"""Those whose objects use the process group of torch."""


# Classes ---------------------------------------------------------------------------------


def register_class(
    name: str, *, override: bool = False, torch: bool = False
) -> Callable[[_Class], _Class]:
    """Registers a class, of which sessions may make objects; a decorator.

    Args:
        name: The name for ``session.create``, such as ``"my.Model"``.
        override: Replace a class of that name instead of refusing.
        torch: Whether each worker has the process group of torch before it makes an object, as
            by ``current_worker().torch_group()``; all workers must make the first one together.

    Raises:
        ValueError: Another class has that name, or it is no name.

    Examples:
        >>> import disco_server
        >>> @disco_server.register_class("docs.Model")
        ... class Model:
        ...     def __init__(self, size):
        ...         self.weight = np.zeros(size)
        ...     def step(self, gradient):
        ...         self.weight -= disco_server.current_worker().allreduce(gradient, op="avg")
        >>> model = session.create("docs.Model", 2)
        >>> _ = model.step(session.broadcast(np.ones(2)))
        >>> model.weight.numpy()
        array([-1., -1.])
    """
    check_entry_name(name, "@register_class('my.Model')")

    def register(kind: _Class) -> _Class:
        if not isinstance(kind, type):
            msg = f"expected a class to register as {name!r}, got {kind!r}"
            raise ValueError(msg)  # noqa: TRY004  (as for a name that is none)
        enter_name(_classes, name, kind, override=override)
        _open.add(kind)
        if torch:
            _with_torch.add(kind)
        return kind

    return register


def needs_torch(kind: type) -> bool:
    """Whether the process group of torch has to be there before objects of a class are."""
    return kind in _with_torch


def offer_class(name: str, kind: type) -> None:
    """Opens a class of a file that a session has brought, by its dotted name."""
    _classes[name] = kind
    _open.add(kind)


def find_class(name: str, patterns: Sequence[str]) -> type:
    """Finds a class by its registered or dotted name.

    Args:
        name: The name.
        patterns: The allow-list of modules.

    Raises:
        ArgumentRefused: It is no name, or longer than any.
        FunctionMissing: No class has that name.
        ModuleNotAllowed: The allow-list does not cover its module.
    """
    if not isinstance(name, str) or not 0 < len(name) <= MAX_NAME:
        msg = f"expected the name of a class, of at most {MAX_NAME} characters"
        raise ArgumentRefused(msg)
    found: Any = _classes.get(name)
    if found is not None:
        return found
    parts, module, why = name.split("."), name.rpartition(".")[0], ""
    if any(module_allowed(".".join(parts[:cut]), patterns) for cut in range(1, len(parts))):
        try:
            found = find_dotted(name, patterns)
        except FunctionMissing as error:
            why = f"; {error}"
        if isinstance(found, type):
            _check_open(found, patterns)
            return found
        if found is not None:
            why = f"; what has that name is {_kind_of(found)}"
    elif parts[0] in PACKAGES:
        msg = (
            f"workers make no objects of {parts[0]}'s classes, such as {name!r}, by default; "
            f"start disco-worker with --allow-module {module}"
        )
        raise ModuleNotAllowed(msg)
    elif module:
        why = f", and module {module!r} is not on its allow-list (--allow-module)"
    msg = f"no class named {name!r} is registered on this worker{_near(name, _classes)}{why}"
    raise FunctionMissing(msg, name)


def _check_open(kind: type, patterns: Sequence[str]) -> None:
    if kind in _open or module_allowed(kind.__module__, patterns):
        return
    msg = (
        f"{_name_of(kind)!r} is not registered on this worker (@disco_server.register_class), and "
        f"module {kind.__module__!r} is not on its allow-list (--allow-module)"
    )
    raise ModuleNotAllowed(msg)


def _name_of(kind: type) -> str:
    """The name under which :func:`find_class` finds a class, if it finds it."""
    registered = next((name for name, each in _classes.items() if each is kind), None)
    return registered or f"{kind.__module__}.{kind.__qualname__}"


# Members ---------------------------------------------------------------------------------


class BoundMethod(NamedCall):
    """A method of an object.

    Args:
        held: The object.
        member: The method's name.
        function: The method, bound to the object.
    """

    __slots__ = ("held", "member")

    def __init__(self, held: object, member: str, function: Callable[..., Any]) -> None:
        super().__init__(f"{type(held).__qualname__}.{member}", function)
        self.held = held
        self.member = member


def member_of(held: object, name: str, patterns: Sequence[str]) -> Any:
    """What an object has under a name: a method to be called, or a value.

    Args:
        held: The object.
        name: The name.
        patterns: The allow-list of modules.

    Returns:
        A method; a plain value or an array; an ``Opaque`` of anything else.

    Raises:
        ArgumentRefused: That is no name.
        ConfigError: A property is a generator or a coroutine.
        FunctionMissing: There is nothing of that name.
        ModuleNotAllowed: The object's class is not open, the name is private, or leads to
            what another module defines.
    """
    kind = type(held)
    if not isinstance(name, str) or not name.isidentifier() or len(name) > MAX_NAME:
        msg = f"expected the name of a method or an attribute, got {name!r:.80}"
        raise ArgumentRefused(msg)
    whole = f"{_name_of(kind)}.{name}"
    if name.startswith("_"):
        msg = f"{whole!r} is a private name, which no setting allows"
        raise ModuleNotAllowed(msg)
    _check_open(kind, patterns)
    owner = next((each for each in kind.__mro__ if name in vars(each)), None)
    found: Any = None if owner is None else vars(owner)[name]
    function = _function_of(found)
    if function is not None:
        home = home_of(function)
        if not (module_allowed(home, patterns) or home in _open_homes(kind)):
            msg = (
                f"{whole!r} belongs to module {home!r}, which is not allowed; define a method of"
                f" {kind.__qualname__} that calls it, or start disco-worker with"
                f" --allow-module {home}"
            )
            raise ModuleNotAllowed(msg)
        bound = found.__get__(held, kind)
        if isinstance(found, (property, cached_property)):
            refuse_unfinished(bound)
            return _described(bound)
        return BoundMethod(held, name, bound)
    return _described(_value_of(held, kind, name, owner, found))


def _function_of(found: Any) -> Any:
    """The function behind what a class has: of a method or a property; None for a value."""
    if isinstance(found, (staticmethod, classmethod)):
        return cast("Any", found).__func__
    if isinstance(found, property):
        return found.fget
    if isinstance(found, cached_property):
        return cast("Any", found).func
    is_method = callable(found) and hasattr(type(found), "__get__")
    # A class is none, nor is a partial, which has __get__ from Python 3.13 on, to warn of a change.
    return found if is_method and not isinstance(found, (type, partial)) else None


def _open_homes(kind: type) -> set[str]:
    """The modules of the registered classes that an object is of."""
    return {each.__module__ for each in kind.__mro__ if each in _open}


def _value_of(held: object, kind: type, name: str, owner: type | None, found: Any) -> Any:
    """What a slot, the object or its class holds, without any code of theirs."""
    inside: dict[str, Any] = {}
    try:
        if isinstance(found, MemberDescriptorType):
            return found.__get__(held, kind)
        inside = object.__getattribute__(held, "__dict__")
        return inside[name]
    except (AttributeError, KeyError):  # an empty slot, or not in the object itself
        pass
    if owner is None or isinstance(found, MemberDescriptorType):
        names = [each for each in (*dir(kind), *map(str, inside)) if not each.startswith("_")]
        msg = f"an object of class {_name_of(kind)!r} has no method or attribute {name!r}"
        raise FunctionMissing(f"{msg}{_near(name, names)}")
    return found


def _described(value: Any) -> Any:
    """A value as it may leave its object: another object's description instead of it."""
    try:
        return _plain(value)
    except EncodingError as error:
        return opaque_of(value, error)


def _plain(value: Any, depth: int = 0) -> Any:
    """A plain value: arrays as they are, and copies of lists, which the object may change later.

    Raises:
        EncodingError: It is no such value, or something inside it is none.
    """
    if depth <= MAX_DEPTH and not callable(value):
        if isinstance(value, (list, tuple)):
            items = [
                _plain_inside(f"[{at}]", item, depth)
                for at, item in enumerate(cast("Sequence[Any]", value))
            ]
            return value if isinstance(value, Shape) else items
        if type(value) is dict:
            pairs = cast("dict[Any, Any]", value).items()
            return {
                _plain_key(key): _plain_inside(f"[{key!r}]", item, depth) for key, item in pairs
            }
        if isinstance(value, _PLAIN) or _is_array(value):
            # What holds Python's objects may hold functions.
            dtype: Any = getattr(value, "dtype", value)
            if not getattr(dtype, "hasobject", False):
                return value
    raise EncodingError(f"a value of type {type_name(value)} cannot leave its object")


def _plain_inside(step: str, item: Any, depth: int) -> Any:
    try:
        return _plain(item, depth + 1)
    except EncodingError as error:
        raise error.within(step) from None


def _plain_key(key: Any) -> str:
    if type(key) is not str:
        raise EncodingError(f"expected string keys, got one of type {type_name(key)}")
    return key


def _is_array(value: object) -> bool:
    """Whether it is an array, of another library too."""
    return is_any_array(value) or hasattr(type(value), "__dlpack__")


def _kind_of(value: object) -> str:
    return f"an object of type {type_name(value)}"


def _near(name: str, names: Iterable[str]) -> str:
    import difflib  # needed only for a message

    close = difflib.get_close_matches(name, list(names), n=3, cutoff=0.75)
    return f"; did you mean {' or '.join(map(repr, dict.fromkeys(close)))}?" if close else ""


# Checkpoints -----------------------------------------------------------------------------


def has_state(value: object) -> bool:
    """Whether a checkpoint has to ask an object for what it consists of."""
    return hasattr(type(value), _SAVE) or type(value) in _open


def save_object(held: object, patterns: Sequence[str]) -> tuple[str, dict[str, Any]]:
    """Asks an object for what it consists of.

    Returns:
        The name by which its class is found again, and arrays and plain values by name.

    Raises:
        EncodingError: Its class would not be found, or does not save and load.
        ArgumentRefused: What it returns is no such dict.
    """
    kind = type(held)
    name = _name_of(kind)
    try:
        found = find_class(name, patterns)
    except (ArgumentRefused, FunctionMissing, ModuleNotAllowed) as error:
        raise EncodingError(f"cannot save {_kind_of(held)}: {error}") from None
    if found is not kind or not (hasattr(kind, _LOAD) and hasattr(kind, _SAVE)):
        msg = f"cannot save {_kind_of(held)}: its class needs {_SAVE} and {_LOAD}"
        raise EncodingError(msg)
    state: Any = getattr(kind, _SAVE)(held)
    parts = cast("dict[str, Any]", state)
    if type(state) is not dict or not all(type(part) is str for part in parts):
        msg = f"expected a dict of names and plain values from {name}.{_SAVE}, got {state!r:.80}"
        raise ArgumentRefused(msg)
    return name, parts


def load_object(name: str, state: dict[str, Any], patterns: Sequence[str]) -> Any:
    """Makes an object of a saved state, without calling its ``__init__``.

    Raises:
        FunctionMissing: There is no such class here.
        ModuleNotAllowed: Sessions may make no objects of it.
    """
    kind: Any = find_class(name, patterns)
    held = kind.__new__(kind)
    getattr(kind, _LOAD)(held, state)
    return held
