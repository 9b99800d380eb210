"""Values of all kinds, made from the text of an expression, and described to the last bit.

A text makes the same value in a program and on its workers, so that both can say what a value
is, whichever way it came; and where a test fails, it is what the test prints.
"""

from __future__ import annotations

import array
import collections
import dataclasses
import datetime as dt
import decimal
import enum
import fractions
import math
import re
import struct
import tempfile
import warnings
from typing import NamedTuple

import ml_dtypes
import numpy as np

import disco_client
from disco_client.arrays.host_tensor import HostTensor
from disco_server.rank.functions import register_func


class Pair(NamedTuple):
    """Two values with names."""

    first: object
    second: object


@dataclasses.dataclass
class Box:
    """Holds a value."""

    held: object
    label: str = "a"


class Colour(enum.IntEnum):
    """Numbers with names."""

    RED = 1


class Mode(enum.StrEnum):
    """Texts with names."""

    FAST = "fast"


class State(enum.Enum):
    """Names alone."""

    OFF = 0


class Word(str):
    """A text that prints as another one."""

    __slots__ = ()

    def __str__(self):
        return "something else"


class Metres(float):
    """A number of Python's with a unit."""

    unit = "m"


class Kelvin(np.float64):
    """A number of numpy's with a unit."""

    unit = "K"


class Items(list):
    """A list with a name of its own."""


class Length(np.ndarray):
    """An array with a unit, as packages of quantities have."""

    def __array_finalize__(self, other):
        self.unit = getattr(other, "unit", "m")


class Named(np.ndarray):
    """An array with a name, which says nothing of what its numbers mean."""


@dataclasses.dataclass
class Point:
    """Two numbers with names."""

    x: float = 1.0
    y: float = 2.0


class Foreign:
    """An array of another library, which speaks DLPack."""

    def __init__(self, held):
        self.held = held

    def __dlpack__(self, **options):
        return self.held.__dlpack__(**options)

    def __dlpack_device__(self):
        return self.held.__dlpack_device__()


class ArrayLike:
    """What numpy can make an array of."""

    def __init__(self, held):
        self.held = held

    def __array__(self, dtype=None, copy=None):
        return np.array(self.held, dtype, copy=copy, subok=True)


class Sparse:
    """A matrix as packages of sparse ones have."""

    shape, dtype = (2, 2), np.dtype("float64")

    def toarray(self):
        """All of it."""
        return np.eye(2)


def dtype_of(name):
    """The dtype of a name, which may be one of the package ml_dtypes."""
    return np.dtype(getattr(ml_dtypes, name, name))


def filled(name, shape, seed=0):
    """An array whose elements a seed decides, the least usual ones among them."""
    dtype, chance = dtype_of(name), np.random.default_rng(seed)
    count = int(np.prod(shape))
    if dtype.names is not None or dtype.kind == "O" or dtype.type is np.void:
        return np.zeros(shape, dtype)
    if dtype.kind in "SU":
        texts = ["", "a", "ab ", "\x00x", "abcde"]
        return np.array([texts[i] for i in chance.integers(0, 5, count)], dtype).reshape(shape)
    if dtype.kind in "biumM":
        whole = chance.integers(-(1 << 63), (1 << 63) - 1, count, np.int64, endpoint=True)
        wide = dtype.kind in "mM"
        return (whole.view(dtype) if wide else whole.astype(dtype)).reshape(shape)
    if "int" in name:
        least, most = ml_dtypes.iinfo(dtype).min, ml_dtypes.iinfo(dtype).max
        return chance.integers(int(least), int(most) + 1, count).astype(dtype).reshape(shape)
    edges = [0.0, -0.0, 1.0, -1.5, np.inf, -np.inf, np.nan, 6e4, 1e-7, 0.1]
    chosen = np.array([edges[i] for i in chance.integers(0, len(edges), count)])
    with warnings.catch_warnings(action="ignore"), np.errstate(all="ignore"):
        return chosen.astype(dtype).reshape(shape)


def read_only(held):
    """The same array, which cannot be written."""
    held.flags.writeable = False
    return held


def matrix(held):
    """Its rows in the class that numpy advises against."""
    with warnings.catch_warnings(action="ignore"):
        return np.matrix(held)


def mapped(held):
    """The same array in a file; an empty one stays where it is."""
    if not held.nbytes:
        return held
    with tempfile.TemporaryFile() as file:
        found = np.memmap(file, held.dtype, "w+", shape=held.shape)
        found[...] = held
        return found


def big(held):
    """The same array with its bytes in the other order."""
    return held.astype(held.dtype.newbyteorder(">"))


_NAMES = {
    **{each.__name__: each for each in (Pair, Box, Colour, Mode, State, Word, Metres, Kelvin)},
    **{each.__name__: each for each in (Items, Length, Named, Point, Foreign, ArrayLike, Sparse)},
    **{each.__name__: each for each in (filled, read_only, matrix, mapped, big, dtype_of)},
    **{name: getattr(collections, name) for name in ("OrderedDict", "Counter", "deque")},
    **{name: getattr(collections, name) for name in ("defaultdict", "UserDict", "ChainMap")},
    "np": np,
    "ml_dtypes": ml_dtypes,
    "di": disco_client,
    "array": array.array,
    "datetime": dt,
    "Decimal": decimal.Decimal,
    "Fraction": fractions.Fraction,
    "nan": float("nan"),
    "inf": float("inf"),
}


def build(text):
    """Makes the value of an expression."""
    with warnings.catch_warnings(action="ignore"), np.errstate(all="ignore"):
        return eval(text, dict(_NAMES))  # noqa: S307, RUF100  (the tests' own text)


def describe(value):
    """Says of a value its type, dtype, unit, order, shape and every bit of it.

    Not said is what has no meaning: the order of the bytes in memory, padding, which NaN of
    Python's it is, which of two equal integers of C, and whether an array has TVM's methods.
    """
    kind = type(value)
    own = f"{kind.__module__}.".removeprefix("builtins.")
    name = f"{own}{kind.__qualname__}" if kind is not HostTensor else "numpy.ndarray"
    if isinstance(value, np.ndarray):
        return f"{name} {value.dtype.name} {value.shape} {_elements(value)}"
    if isinstance(value, np.generic) and not isinstance(value, (str, bytes)):
        if kind is value.dtype.type and value.dtype.isbuiltin == 1:
            name = f"numpy.{value.dtype.name}"  # longlong is the int64 of another name
        return f"{name} {value.dtype.name} {_elements(np.asarray(value))}"
    if isinstance(value, dict):
        items = (f"{describe(key)}: {describe(item)}" for key, item in value.items())
        return f"{name} {{{', '.join(items)}}}"
    if isinstance(value, (list, tuple)):
        return f"{name} [{', '.join(map(describe, value))}]"
    if isinstance(value, (Foreign, ArrayLike)):
        return f"{name} of {describe(value.held)}"
    if isinstance(value, Box):
        return f"{name} of {describe(value.held)} and {describe(value.label)}"
    return f"{name} {_content(value)}"


def _content(value):
    if isinstance(value, np.dtype):
        return value.name
    if isinstance(value, float):
        return "nan" if math.isnan(value) else struct.pack("d", value).hex()
    if isinstance(value, (int, str)):
        return repr(int(value) if isinstance(value, int) else str.__str__(value))
    return re.sub("0x[0-9a-f]+", "", repr(value))


def _elements(held):
    """The bytes of an array in C order, and what is masked."""
    if held.dtype.hasobject:
        return ", ".join(map(describe, held.reshape(-1).tolist()))
    masked = isinstance(held, np.ma.MaskedArray)
    hidden = f" mask {np.ma.getmaskarray(held).tolist()}" if masked else ""
    plain = np.asarray(held).astype(held.dtype.newbyteorder("=")).reshape(-1)
    parts = plain.view(plain.real.dtype) if plain.dtype.kind == "c" else plain
    raw = np.frombuffer(parts.tobytes(), np.uint8)
    if parts.dtype == np.longdouble and np.finfo(np.longdouble).nmant == 63:  # of x86: 80 bits
        raw = raw.reshape(-1, parts.dtype.itemsize)[:, :10].reshape(-1)
    return raw.tobytes().hex() + hidden


@register_func("hunt.describe")
def described(*values, **named):
    """Describes its arguments."""
    return describe([*values, *named.values()])


@register_func("hunt.echo")
def echo(value):
    """Returns its argument."""
    return value


@register_func("hunt.make")
def make(text):
    """Makes the value of an expression."""
    return build(text)
