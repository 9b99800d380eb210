"""Classes of whose values some travel: dataclasses, named tuples, enumerations."""

from __future__ import annotations

import dataclasses
import enum
import functools
import sys
from types import ModuleType
from typing import Any, ClassVar, NamedTuple

import disco_server


class Colour(enum.Enum):
    """Members of one value count as one."""

    RED = 1
    GREEN = (2, "b")
    ROT = 1  # noqa: PIE796  (another name of RED)


class Access(enum.Flag):
    """Flags, also several of them."""

    READ = enum.auto()
    WRITE = enum.auto()


class Level(enum.IntEnum):
    """Members that are numbers, and print as these."""

    LOW = 1
    HIGH = 2


class Word(enum.StrEnum):
    """Members that are texts."""

    SHORT = "a"
    LONG = "abc"


class Mask(enum.IntFlag):
    """Flags that are numbers, and may have more than these."""

    ONE = 1
    TWO = 2


class Corner(tuple, enum.Enum):  # noqa: SLOT001  (an enumeration has none)
    """Members that are tuples."""

    LEFT = (0, 0)
    RIGHT = (1, 0)


class Picky(enum.Flag):
    """Flags that look for members by code of their own."""

    ONE = 1

    @classmethod
    def _missing_(cls, value):
        raise AssertionError(f"asked for {value}")


class Point(NamedTuple):
    """A named tuple."""

    x: Any
    y: Any = 0


class Guarded(NamedTuple("Guarded", [("x", int)])):
    """A named tuple whose constructor must not be called."""

    __slots__ = ()

    def __new__(cls, *_):
        raise AssertionError("called")


@dataclasses.dataclass
class Order:
    """A dataclass whose constructor counts, and checks."""

    made: ClassVar[int] = 0

    name: str
    items: Any = None
    total: Any = dataclasses.field(default=0, init=False)

    def __post_init__(self):
        Order.made += 1
        self.total = len(self.items or ())

    @functools.cached_property
    def twice(self):
        """Is kept in the value."""
        return 2 * self.total


@dataclasses.dataclass(frozen=True, slots=True)
class Fixed:
    """A dataclass without a dictionary, that cannot be changed."""

    left: Any
    right: Any = None


@dataclasses.dataclass
class Outer(Order):
    """A dataclass that is derived from another one."""

    inner: Any = None

    @dataclasses.dataclass
    class Inner:
        """A class within a class."""

        deep: Any = 1


class _Watched:
    """Runs code where it is set."""

    def __set__(self, _instance, value):
        raise AssertionError(f"set to {value}")

    def __get__(self, _instance, _owner=None):
        return 1


@dataclasses.dataclass
class Watching:
    """A dataclass with a field that runs code."""

    field: int = _Watched()


@dataclasses.dataclass
class Failure(Exception):
    """A dataclass that is an exception, which cannot be made of its fields."""

    why: str = ""


@disco_server.register_func("values.order")
def order(name):
    """An order, made by its constructor."""
    return Order(name, [Point(1, Fixed({2})), Colour.GREEN])


@disco_server.register_func("values.foreign")
def foreign():
    """A value of a class that the program has not imported."""
    only = ModuleType("disco_only_on_workers")
    only.Sample = dataclasses.make_dataclass("Sample", ["x"])
    only.Sample.__module__ = only.__name__
    sys.modules[only.__name__] = only
    return only.Sample(1)


@disco_server.register_func("values.made")
def made():
    """How often the constructor was called on this worker."""
    return Order.made


@disco_server.register_func("values.kinds")
def kinds(value):
    """The type of a value, and of its parts."""
    inner = dataclasses.fields(value) if dataclasses.is_dataclass(value) else ()
    return [type(value).__name__, *(type(getattr(value, each.name)).__name__ for each in inner)]
