"""Values of the program's own classes: members of enumerations, dataclasses and named tuples.

The other side must have imported the class; it is found in the module, and neither imported nor
called. A value is made of its fields without ``__new__``, ``__init__`` and ``__post_init__``.
"""

from __future__ import annotations

import contextlib
import dataclasses
import enum
import functools
import sys
from collections.abc import Callable, Sequence
from pathlib import PurePath
from types import MemberDescriptorType, ModuleType
from typing import Any, cast
from weakref import WeakKeyDictionary

from disco_client.errors import EncodingError
from disco_client.wire.record_parts import RecordParts, is_named_class

__all__ = ["OWN_CLASSES", "own_class_of"]

_DATACLASS, _NAMED_TUPLE, _ENUM, _FLAG = "dataclass", "namedtuple", "enum", "flag"


def own_class_of(value: Any) -> RecordParts | None:
    """What a dataclass, a named tuple or a member of an enumeration is made of; else None.

    Raises:
        EncodingError: Its class cannot be found by the other side, or it has more than its fields.
    """
    cls = cast("Any", type(value))
    if _is_ours(cls.__module__):
        return None
    if isinstance(value, (int, float, str, bytes)):
        return _of_plain_member(value) if isinstance(value, enum.Enum) else None
    if isinstance(value, enum.Flag):
        _check_flag(cls)
        return RecordParts(_FLAG, (value.value,), _name_of(cls))
    if isinstance(value, enum.Enum):
        return RecordParts(_ENUM, (value.name,), _name_of(cls))
    if isinstance(value, tuple):
        return RecordParts(_NAMED_TUPLE, [*value], _name_of(cls), _names_of(cls))
    if not _is_dataclass(cls):
        return None
    fields = _fields_of(cls)
    _check_nothing_beside(value, cls, fields)
    return RecordParts(_DATACLASS, _values_of(value, cls, fields), _name_of(cls), fields)


def _of_plain_member(value: Any) -> RecordParts | None:
    """A member that is a number or a text, which it goes with: others may not know the class.

    None where nobody could find the class, so that the number or text travels alone.
    """
    cls = cast("Any", type(value))
    kind: Any = next(kind for kind in (int, float, str, bytes) if kind in cls.__mro__)
    plain = str.__str__(value) if kind is str else kind(value)
    try:
        if isinstance(value, enum.Flag):
            _check_flag(cls)
            return RecordParts(_FLAG, (plain, plain), _name_of(cls))
        return RecordParts(_ENUM, (value.name, plain), _name_of(cls))
    except EncodingError:
        return None


# Classes by their names -------------------------------------------------------------------


def _name_of(cls: type) -> str:
    module, qualname = cls.__module__, cls.__qualname__
    found = _in_module(sys.modules.get(module), qualname)
    if found is not cls:
        msg = (
            f"a value of {module}.{qualname} cannot travel, as the module has something else under"
            " that name; define the class at the top of a module that workers import, too"
        )
        raise EncodingError(msg)
    if module == "__main__":
        module = _stem_of_main()
        if not module:
            msg = (
                f"a value of {qualname} cannot travel, as workers cannot import the class from a"
                " notebook or a prompt; define it in a file that workers import, too"
            )
            raise EncodingError(msg)
    return f"{module}:{qualname}"


def _is_ours(module: str) -> bool:
    """Whether it is a module of this library, whose own objects are no values of a program."""
    return module.partition(".")[0] in ("disco_client", "disco_server")


def _stem_of_main() -> str:
    """The name under which workers import the program; "" where it is no file."""
    file: Any = getattr(sys.modules.get("__main__"), "__file__", None)
    return PurePath(file).stem if isinstance(file, str) else ""


def _class_of(name: str) -> type:
    """The class of that name, of a module that this process has imported.

    Raises:
        EncodingError: There is none.
    """
    module, _, qualname = name.partition(":")
    found = None if _is_ours(module) else _in_module(sys.modules.get(module), qualname)
    if found is None and module and module == _stem_of_main():
        found = _in_module(sys.modules.get("__main__"), qualname)
    # What a module has imported from another one goes by the other's name, ours by none.
    if isinstance(found, type) and found.__module__ in (module, "__main__"):
        return found
    imported = (
        "is imported here and has no such class"
        if module in sys.modules
        else ("is not imported here")
    )
    msg = (
        f"cannot read a value of {module}.{qualname:.200}: the module {module!r:.200} {imported};"
        " workers get it by session.load_source or session.import_python_module"
    )
    raise EncodingError(msg)


def _in_module(module: ModuleType | None, qualname: str) -> Any:
    """What a module has under a name; nothing is executed for that, as by getattr."""
    found: Any = module
    for part in qualname.split("."):
        if not isinstance(found, (ModuleType, type)):
            return None
        found = vars(found).get(part)
    return found


# Dataclasses ------------------------------------------------------------------------------


def _is_dataclass(cls: Any) -> bool:
    return dataclasses.is_dataclass(cls)


_known: WeakKeyDictionary[type, tuple[str, ...]] = WeakKeyDictionary()


def _fields_of(cls: Any) -> tuple[str, ...]:
    """The names of a dataclass's fields.

    Raises:
        EncodingError: Its values cannot be made of them alone.
    """
    names = _known.get(cls)
    if names is None:
        names = tuple(field.name for field in dataclasses.fields(cls))
        _check_plain(cls, names)
        _known[cls] = names
    return names


def _check_plain(cls: type, names: Sequence[str]) -> None:
    """Makes sure that nothing is executed where fields are set."""
    wrong = ""
    try:
        object.__new__(cls)
    except TypeError as error:
        wrong = f"object.__new__ does not make one: {error}"
    for name in names:
        found: Any = next((vars(each)[name] for each in cls.__mro__ if name in vars(each)), None)
        kind = cast("Any", type(found))
        if hasattr(kind, "__set__") and kind is not MemberDescriptorType:
            wrong = f"setting its field {name!r} runs the code of a {type(found).__name__}"
    if wrong:
        msg = f"a value of {cls.__module__}.{cls.__qualname__} cannot travel: {wrong}"
        raise EncodingError(msg)


def _check_nothing_beside(value: Any, cls: type, fields: Sequence[str]) -> None:
    kept = {*fields} | {
        name
        for each in cls.__mro__
        for name, member in vars(each).items()
        if isinstance(member, functools.cached_property)  # it can be had again
    }
    more = [str(name) for name in getattr(value, "__dict__", ()) if name not in kept]
    if more:
        msg = (
            f"a value of {cls.__module__}.{cls.__qualname__} cannot travel, as it has more than its"
            f" fields: {', '.join(more)}"
        )
        raise EncodingError(msg)


def _values_of(value: Any, cls: type, fields: Sequence[str]) -> list[Any]:
    found: list[Any] = []
    for name in fields:
        try:
            found.append(object.__getattribute__(value, name))
        except AttributeError:
            msg = (
                f"a value of {cls.__module__}.{cls.__qualname__} cannot travel, as its field"
                f" {name!r} has no value"
            )
            raise EncodingError(msg) from None
    return found


def _make_dataclass(parts: RecordParts) -> Any:
    cls: Any = _class_of(parts.of)
    if not _is_dataclass(cls):
        msg = f"expected a dataclass, got {parts.of!r:.200}, which is none here"
        raise EncodingError(msg)
    fields = _fields_of(cls)
    _check_fields(parts, fields)
    made: Any = object.__new__(cls)
    for name, item in zip(fields, parts.items, strict=True):
        object.__setattr__(made, name, item)
    return made


# Named tuples -----------------------------------------------------------------------------


def _names_of(cls: Any) -> tuple[str, ...]:
    names: tuple[str, ...] = cls._fields
    return names


def _make_named_tuple(parts: RecordParts) -> Any:
    cls: Any = _class_of(parts.of)
    if not is_named_class(cls):
        msg = f"expected a named tuple, got {parts.of!r:.200}, which is none here"
        raise EncodingError(msg)
    _check_fields(parts, _names_of(cls))
    made: Any = tuple
    return made.__new__(cls, parts.items)


def _check_fields(parts: RecordParts, here: Sequence[str]) -> None:
    if tuple(parts.fields) != tuple(here) or len(parts.items) != len(here):
        msg = (
            f"{parts.of} has the fields {', '.join(here)} here, and {', '.join(parts.fields):.500}"
            " on the other side; both sides need the same version of the module"
        )
        raise EncodingError(msg)


# Enumerations -----------------------------------------------------------------------------


def _make_member(parts: RecordParts) -> Any:
    if _is_plain_alone(parts):
        return parts.items[1]
    cls: Any = _class_of(parts.of)
    name = parts.items[0] if parts.items else None
    member = None
    if issubclass(cls, enum.Enum) and isinstance(name, str):
        member = cls.__members__.get(name)
    if member is None:
        msg = f"{parts.of:.200} has no member {name!r:.200} here"
        raise EncodingError(msg)
    return member


def _is_plain_alone(parts: RecordParts) -> bool:
    """Whether a member is a number or a text, and this process has not imported its class."""
    if len(parts.items) != 2 or type(parts.items[1]) not in (int, float, str, bytes):  # noqa: PLR2004
        return False
    with contextlib.suppress(EncodingError):
        return not _class_of(parts.of)
    return True


def _check_flag(cls: Any) -> None:
    """Makes sure that no code of the class is executed to find a member."""
    if cls._missing_.__func__ is not enum.Flag._missing_.__func__:  # type: ignore[attr-defined]
        msg = f"a value of {cls.__module__}.{cls.__qualname__} cannot travel: it has a _missing_"
        raise EncodingError(msg)


def _make_flag(parts: RecordParts) -> Any:
    if _is_plain_alone(parts):
        return parts.items[1]
    cls: Any = _class_of(parts.of)
    value = parts.items[0] if parts.items else None
    if issubclass(cls, enum.Flag) and type(value) is int:
        _check_flag(cls)
        with contextlib.suppress(ValueError):
            return cls(value)
    msg = f"{parts.of:.200} has no flags {value!r:.200} here"
    raise EncodingError(msg)


OWN_CLASSES: dict[str, Callable[[RecordParts], Any]] = {
    _DATACLASS: _make_dataclass,
    _NAMED_TUPLE: _make_named_tuple,
    _ENUM: _make_member,
    _FLAG: _make_flag,
}
"""What makes a value of a class of the program, by the name of its kind."""
