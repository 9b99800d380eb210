"""Values of Python's own types that are made of others: sets, dicts with any keys, times, paths.

A type is taken exactly: what is derived from one, as ``pandas.Timestamp`` is from ``datetime``,
would arrive as less than it is.
"""

from __future__ import annotations

import datetime as dt
import pathlib
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from disco_client.errors import EncodingError
from disco_client.wire.own_classes import OWN_CLASSES, own_class_of
from disco_client.wire.record_parts import DICT, RecordParts

if TYPE_CHECKING:
    import decimal
    import zoneinfo

__all__ = ["make_record", "parts_of"]


class _Schema(NamedTuple):
    """How values of one type are taken apart and made.

    Attributes:
        name: That of the type, on the wire.
        take: The parts of a value.
        make: A value of parts; whatever it raises is an error of the peer.
        kinds: The types that the parts have; empty for any number of whatever may travel.
    """

    name: str
    take: Callable[[Any], Sequence[Any]]
    make: Callable[..., Any]
    kinds: tuple[type | tuple[type, ...], ...] = ()


def parts_of(value: Any) -> RecordParts | None:
    """What a value is made of; None where its type is none of these.

    Raises:
        EncodingError: It is of such a type, and yet cannot travel.
    """
    kind = cast("Any", type(value))
    schema = _BY_TYPE.get(kind) or _late(f"{kind.__module__}.{kind.__qualname__}", kind)
    if schema is None:
        return own_class_of(value)
    return RecordParts(schema.name, schema.take(value))


def make_record(parts: RecordParts) -> Any:
    """Makes the value of some parts, without any code of classes of the program.

    Raises:
        EncodingError: There is no such type, or these are no parts of its values.
    """
    own = OWN_CLASSES.get(parts.type)
    if own is not None:
        return own(parts)
    schema = _BY_NAME.get(parts.type) or _late(parts.type)
    if schema is None:
        msg = f"expected a type that travels, got {parts.type!r:.200}"
        raise EncodingError(msg)
    items = parts.items
    if schema.kinds and not _are_of(items, schema.kinds):
        got = ", ".join(type(item).__name__ for item in items[:10])
        msg = f"expected the parts of a value of type {schema.name}, got ({got})"
        raise EncodingError(msg)
    try:
        return schema.make(*items) if schema.kinds else schema.make(items)
    except (ArithmeticError, KeyError, OSError, TypeError, ValueError) as error:
        msg = f"these are no parts of a value of type {schema.name}: {error!r:.200}"
        raise EncodingError(msg) from None


def _are_of(items: Sequence[Any], kinds: Sequence[type | tuple[type, ...]]) -> bool:
    # A bool is an int, and no part of anything here.
    return len(items) == len(kinds) and all(
        isinstance(item, kind) and type(item) is not bool
        for item, kind in zip(items, kinds, strict=True)
    )


# Numbers ----------------------------------------------------------------------------------


def _take_int(number: int) -> tuple[bytes]:
    return (number.to_bytes(number.bit_length() // 8 + 1, "little", signed=True),)


def _make_int(raw: bytes) -> int:
    return int.from_bytes(raw, "little", signed=True)


def _take_complex(value: complex) -> tuple[float, float]:
    return value.real, value.imag


def _take_text(value: decimal.Decimal) -> tuple[str]:
    return (str(value),)


def _make_decimal(text: str) -> decimal.Decimal:
    import decimal

    with decimal.localcontext() as context:
        context.traps[decimal.InvalidOperation] = True  # else garbage is a NaN
        return decimal.Decimal(text)


# Times ------------------------------------------------------------------------------------


def _take_time(value: dt.time | dt.datetime) -> tuple[Any, ...]:
    return value.hour, value.minute, value.second, value.microsecond, value.fold, value.tzinfo


def _take_date(value: dt.date) -> tuple[int, int, int]:
    return value.year, value.month, value.day


def _take_moment(value: dt.datetime) -> tuple[Any, ...]:
    return *_take_date(value), *_take_time(value)


def _make_time(*parts: Any) -> dt.time:
    hour, minute, second, microsecond, fold, zone = parts
    return dt.time(hour, minute, second, microsecond, zone, fold=fold)


def _make_datetime(year: int, month: int, day: int, *time: Any) -> dt.datetime:
    return dt.datetime.combine(dt.date(year, month, day), _make_time(*time))


def _take_span(value: dt.timedelta) -> tuple[int, int, int]:
    return value.days, value.seconds, value.microseconds


def _take_zone(value: dt.timezone) -> tuple[dt.timedelta, str]:
    offset, name = value.utcoffset(None), value.tzname(None)
    return offset, "" if name == dt.timezone(offset).tzname(None) else name


def _make_zone(offset: dt.timedelta, name: str) -> dt.timezone:
    if not name:
        # Equal to that with an offset of nothing, and yet another object, which prints otherwise.
        return dt.timezone(offset) if offset else dt.UTC
    return dt.timezone(offset, name)


def _make_zone_info(key: str) -> zoneinfo.ZoneInfo:
    from zoneinfo import ZoneInfo

    return ZoneInfo(key)


def _take_zone_info(value: zoneinfo.ZoneInfo) -> tuple[str]:
    if value.key is None:  # type: ignore[redundant-expr]  (of from_file without a key)
        msg = "a ZoneInfo without a key cannot travel, as nothing says where its file is"
        raise EncodingError(msg)
    return (value.key,)


# Paths, sets, dicts -----------------------------------------------------------------------


def _take_path(value: pathlib.PurePath) -> tuple[bytes]:
    text = str(value)
    if type(value)(text) != value:  # as of some of Windows that have several slashes
        msg = f"a path that is not what it prints cannot travel: {value!r}"
        raise EncodingError(msg)
    return (text.encode("utf-8", "surrogateescape"),)  # names of files need not be UTF-8


def _path_maker(kind: type[pathlib.PurePath]) -> Callable[[bytes], pathlib.PurePath]:
    def make(raw: bytes) -> pathlib.PurePath:
        return kind(raw.decode("utf-8", "surrogateescape"))

    return make


def _take_set(value: Iterable[Any]) -> Sequence[Any]:
    return list(value)


def _take_dict(value: dict[Any, Any]) -> Sequence[Any]:
    return [part for item in value.items() for part in item]


def _make_dict(items: Sequence[Any]) -> dict[Any, Any]:
    made = dict(zip(items[::2], items[1::2], strict=True))
    if 2 * len(made) != len(items):
        msg = "expected keys that differ"
        raise ValueError(msg)
    return made


_DATE, _CLOCK, _ZONE = (int,) * 3, (int,) * 5, (type(None), dt.tzinfo)
_BY_TYPE: dict[type, _Schema] = {
    int: _Schema("int", _take_int, _make_int, (bytes,)),
    complex: _Schema("complex", _take_complex, complex, (float, float)),
    dt.date: _Schema("datetime.date", _take_date, dt.date, _DATE),
    dt.time: _Schema("datetime.time", _take_time, _make_time, (*_CLOCK, _ZONE)),
    dt.datetime: _Schema(
        "datetime.datetime", _take_moment, _make_datetime, (*_DATE, *_CLOCK, _ZONE)
    ),
    dt.timedelta: _Schema("datetime.timedelta", _take_span, dt.timedelta, _DATE),
    dt.timezone: _Schema("datetime.timezone", _take_zone, _make_zone, (dt.timedelta, str)),
    set: _Schema("set", _take_set, set),
    frozenset: _Schema("frozenset", _take_set, frozenset),
    dict: _Schema(DICT, _take_dict, _make_dict),
    **{
        kind: _Schema(f"pathlib.{kind.__name__}", _take_path, _path_maker(kind), (bytes,))
        for kind in (pathlib.PurePosixPath, pathlib.PureWindowsPath, pathlib.PosixPath)
    },
}
_BY_NAME = {schema.name: schema for schema in _BY_TYPE.values()}
_LATE = {
    schema.name: schema
    for schema in (
        _Schema("decimal.Decimal", _take_text, _make_decimal, (str,)),
        _Schema("zoneinfo.ZoneInfo", _take_zone_info, _make_zone_info, (str,)),
    )
}
"""Of types whose modules take as long to import as all of this one; few sessions need them."""


def _late(name: str, kind: type | None = None) -> _Schema | None:
    """The schema of such a type, which may be given with its name."""
    schema = _LATE.get(name)
    if schema is None or kind is None:
        return schema
    module, _, attribute = name.partition(".")
    return schema if kind is getattr(sys.modules.get(module), attribute, None) else None
