"""Values that are made of others arrive as what they left as, or are refused by name."""

from __future__ import annotations

import dataclasses
import datetime as dt
import decimal
import enum
import math
import sys
import zoneinfo

import numpy as np
import pytest
from hypothesis import given
from travelling import VALUES, assert_same, classes

import disco_server.modules.base  # noqa: F401  (imported, as on a rank)
from disco_client import EncodingError
from disco_client.wire.codec import EncodedValue, decode_value, encode_value


def there_and_back(value):
    out = EncodedValue()
    encode_value(out, value)
    return decode_value(EncodedValue.FromString(out.SerializeToString()))


@given(VALUES)
def test_a_value_arrives_as_what_it_left_as(value):
    """With its type, its content and how it prints, and so does what is in it."""
    assert_same(there_and_back(value), value)


@pytest.mark.parametrize(
    "value",
    [
        complex(-0.0, math.inf),
        decimal.Decimal("-sNaN123"),
        decimal.Decimal("-0E-9999999"),
        dt.UTC,
        dt.datetime(2024, 10, 27, 2, 30, fold=1, tzinfo=zoneinfo.ZoneInfo("Europe/Berlin")),
        -(1 << 63) - 1,
        10**5000,
    ],
    ids=["complex", "not a number", "zero", "UTC", "fold", "low", "large"],
)
def test_values_that_compare_strangely_arrive_as_they_are(value):
    """Signs of zero, what is no number, an hour that comes twice, any number of digits."""
    got = there_and_back(value)
    assert type(got) is type(value)
    assert (got if isinstance(value, int) else repr(got)) == (
        value if isinstance(value, int) else repr(value)
    )


def test_no_constructor_is_called():
    """A dataclass is made of its fields, a named tuple of its items."""
    order = classes.Order("a", [1, 2])
    order.items.append(3)
    assert order.twice == 4
    before = classes.Order.made
    got = there_and_back(order)
    assert classes.Order.made == before
    assert (got, got.total) == (order, 2)
    assert "twice" not in vars(got)
    guarded = tuple.__new__(classes.Guarded, (7,))
    assert there_and_back(guarded) == guarded
    assert type(there_and_back(guarded)) is classes.Guarded


def test_arrays_and_references_travel_inside():
    """As anywhere else."""
    got = there_and_back(classes.Point(np.arange(3), {"a": classes.Fixed(np.float32(2))}))
    np.testing.assert_array_equal(got.x, [0, 1, 2])
    assert type(got.y["a"].left) is np.float32
    out = EncodedValue()
    encode_value(out, classes.Fixed(len), register_of=lambda value: 9 if value is len else None)
    assert decode_value(out, registers={9: "nine"}.get) == classes.Fixed("nine")


def _local():
    @dataclasses.dataclass
    class Local:
        x: int = 1

    return Local()


def _with_more():
    order = classes.Order("a")
    order.note = "b"
    return order


def _without_a_value():
    return object.__new__(classes.Fixed)


def _watching():
    return object.__new__(classes.Watching)


class Stamp(dt.datetime):
    """What is derived from a type has more than that."""


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (_local, r"_local.<locals>.Local cannot travel, as the module has something else"),
        (_with_more, r"Order cannot travel, as it has more than its fields: note"),
        (_without_a_value, r"Fixed cannot travel, as its field 'left' has no value"),
        (
            _watching,
            r"Watching cannot travel: setting its field 'field' runs the code of a _Watched",
        ),
        (classes.Failure, r"Failure cannot travel: object.__new__ does not make one"),
        (lambda: classes.Picky.ONE, r"Picky cannot travel: it has a _missing_"),
        (lambda: Stamp(2024, 1, 1), r"Stamp cannot travel; expected None, a number"),
        (
            lambda: classes.Order("a", [1, object()]),
            r"^at \.items\[1\]: a value of type builtins.object",
        ),
        (lambda: [{object()}], r"^at \[0\] in its set: a value of type builtins.object"),
        (lambda: dt.time(1, tzinfo=type("Zone", (dt.tzinfo,), {})()), "in its datetime.time"),
    ],
)
def test_what_would_arrive_as_something_else_is_refused(make, text):
    """Local classes, more than fields, what runs code; the error says where and why."""
    with pytest.raises(EncodingError, match=text):
        encode_value(EncodedValue(), make())


ORDER = "disco_value_classes:Order"


@pytest.mark.parametrize(
    ("record", "text"),
    [
        ({"type": "eval"}, "expected a type that travels, got 'eval'"),
        ({"type": "complex", "items": [{"float": 1}]}, "the parts of a value of type complex"),
        ({"type": "datetime.date", "items": [{"int": 1}, {"bool": True}, {"int": 1}]}, "bool"),
        ({"type": "datetime.date", "items": [{"int": 2024}, {"int": 13}, {"int": 1}]}, "month"),
        ({"type": "decimal.Decimal", "items": [{"str": "x"}]}, "of type decimal.Decimal"),
        ({"type": "set", "items": [{"list": {}}]}, "unhashable"),
        ({"type": "dict", "items": [{"list": {}}, {"int": 1}]}, "unhashable"),
        ({"type": "dict", "items": [{"int": 1}]}, "no parts of a value of type dict"),
        ({"type": "dict", "items": [{"int": 1}] * 4}, "expected keys that differ"),
        ({"type": "zoneinfo.ZoneInfo", "items": [{"str": "../../etc/passwd"}]}, "ZoneInfo"),
        ({"type": "zoneinfo.ZoneInfo", "items": [{"str": "No/Where"}]}, "ZoneInfo"),
        ({"type": "dataclass", "of": "no_such_module:X"}, "'no_such_module' is not imported here"),
        ({"type": "dataclass", "of": "os:system"}, "'os' is imported here and has no such class"),
        ({"type": "dataclass", "of": "subprocess:Popen"}, "which is none here"),
        ({"type": "dataclass", "of": ":"}, "is not imported here"),
        ({"type": "dataclass", "of": "disco_server.modules.base:LoadedModule"}, "no such class"),
        ({"type": "dataclass", "of": "travelling:Device"}, "has no such class"),
        ({"type": "dataclass", "of": ORDER, "fields": ["name"]}, "has the fields name, items, to"),
        ({"type": "dataclass", "of": "disco_value_classes:Watching"}, "runs the code"),
        ({"type": "dataclass", "of": "disco_value_classes:Failure"}, "object.__new__"),
        ({"type": "namedtuple", "of": ORDER}, "which is none here"),
        ({"type": "namedtuple", "of": "disco_value_classes:Point"}, "has the fields x, y here"),
        ({"type": "enum", "of": "disco_value_classes:Colour"}, "has no member None"),
        ({"type": "enum", "of": ORDER, "items": [{"str": "mro"}]}, "has no member 'mro'"),
        ({"type": "flag", "of": "disco_value_classes:Picky", "items": [{"int": 8}]}, "_missing_"),
        ({"type": "flag", "of": "disco_value_classes:Access", "items": [{"int": 8}]}, "no flags 8"),
    ],
    ids=lambda value: str(value)[:60],
)
def test_a_hostile_record_is_refused(record, text):
    """Nothing is imported or called for it."""
    modules = set(sys.modules)
    with pytest.raises(EncodingError, match=text):
        decode_value(EncodedValue(record=record))
    assert not {name for name in set(sys.modules) - modules if not name.startswith("tzdata")}


def test_a_module_is_not_asked_for_what_it_has_not():
    """Its `__getattr__`, which may import others, is not called."""
    asked = []
    module = type(sys)("asking")
    module.__getattr__ = asked.append
    sys.modules["asking"] = module
    try:
        with pytest.raises(EncodingError, match="has no such class"):
            decode_value(EncodedValue(record={"type": "enum", "of": "asking:Late"}))
    finally:
        del sys.modules["asking"]
    assert asked == []


@pytest.mark.parametrize(
    ("member", "plain"),
    [(classes.Level.HIGH, 2), (classes.Word.LONG, "abc"), (classes.Mask.ONE | classes.Mask(8), 9)],
    ids=["number", "text", "flags"],
)
def test_a_member_that_is_a_number_or_a_text_arrives_as_that_without_its_class(
    monkeypatch, member, plain
):
    """Programs pass such members for axes and sizes to workers that have never met the class."""
    assert there_and_back(member) is member
    out = EncodedValue()
    encode_value(out, member)
    monkeypatch.delitem(sys.modules, "disco_value_classes")
    came = decode_value(out)
    assert (type(came), came) == (type(plain), plain)


def test_a_member_of_a_class_that_nobody_could_find_travels_as_what_it_is():
    """One that is neither a number nor a text is refused."""
    assert there_and_back(enum.IntEnum("Level", "LOW HIGH").HIGH) == 2
    with pytest.raises(EncodingError, match="something else under that name"):
        there_and_back(enum.Enum("Level", "LOW HIGH").HIGH)


def test_what_is_wrong_in_a_dict_of_any_keys_is_named_by_its_key():
    """A key as well as a value, whatever the key is."""
    with pytest.raises(EncodingError, match=r"^at \[\(1, 'a'\)\]\[0\]: a value of type "):
        there_and_back({2: 3, (1, "a"): [object()]})
    with pytest.raises(EncodingError, match=r"^in the key <object object"):
        there_and_back({2: 3, object(): 3})
