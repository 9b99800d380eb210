"""The closed set of values that may travel, and the small types it needs.

===================== =================================================
Python                arrives on the other side as
===================== =================================================
``None``, ``bool``    the same
``int``               the same, of any size
``float``             ``float`` (64 bits)
``complex``           the same
``str``               ``str``
``bytes``             ``bytes`` (also from ``bytearray``, ``memoryview``)
``Decimal``           the same
dates and times       the same, with their zone
paths                 the same
numpy scalar          the same: its type and dtype, and of times the unit
``numpy.str_``        ``str``
``numpy.bytes_``      ``bytes``
``numpy.dtype``       ``numpy.dtype``; also from ``tvm_ffi.dtype``
:class:`Device`       :class:`Device`; also from TVM's and torch's
:class:`Shape`        :class:`Shape`; also from ``tvm_ffi.Shape``
``list``, ``tuple``   the same
sets                  the same, frozen or not
``dict``              ``dict``, with its keys in the same order
dataclass, enum,      the same, where that side has imported the class;
named tuple           no code of the class is executed for it
``numpy.ndarray``     ``numpy.ndarray`` in C order; also from what
                      speaks DLPack, in the CPU's memory
``DRef``              on a worker: what its register holds
===================== =================================================

What is derived from a Python type otherwise arrives as that type: an ``OrderedDict`` as a ``dict``,
a class derived from ``str`` as a ``str``. What would lose its meaning so is refused: a number with
a unit, and arrays of :mod:`disco_client.wire.array_likes`.
"""

from __future__ import annotations

import contextlib
import math
import operator
import re
import sys
from collections.abc import Generator, Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal, Self, TypeAlias, TypeGuard

import numpy as np

from disco_client.errors import ConfigError, DtypeError, EncodingError
from disco_client.wire.arrays import byte_view, in_pieces

__all__ = [
    "DLPACK_KINDS",
    "INLINE_ARRAY_BYTES",
    "MAX_DEPTH",
    "MAX_STEPS",
    "STREAM_END",
    "ArrayPorter",
    "Device",
    "Opaque",
    "ReduceName",
    "Shape",
    "as_device",
    "checked_dtype",
    "cpu",
    "cuda",
    "device_of",
    "dtype_from_name",
    "dtype_name",
    "extents_of",
    "ffi_shape",
    "is_array",
    "is_extension",
    "is_floating",
    "is_int64",
    "not_int64",
    "rocm",
    "shown",
]


INLINE_ARRAY_BYTES = 64 * 1024
"""Arrays up to this many bytes travel inside a command; larger ones beside the log."""

_MAX_ARRAY_BYTES = 1 << 46

_SHOWN = 200
"""How many characters of a value's repr an error shows."""

MAX_DEPTH = 32
"""How deep lists and maps may nest."""

ReduceName: TypeAlias = Literal["sum", "prod", "min", "max", "avg"]
"""How collectives combine elements."""

MAX_STEPS = 1 << 16
"""How many steps a captured program may have, those of programs inside it included."""

DLPACK_KINDS = {1: "cpu", 2: "cuda", 10: "rocm"}
"""Kinds of devices by their numbers in DLPack."""

_DEVICE = re.compile(r"(cpu|cuda|rocm)(?:[:(](\d+)\)?)?")
_EXTENSION_TYPES = (
    "bfloat16",
    "float8_e4m3fn",
    "float8_e4m3fnuz",
    "float8_e5m2",
    "float8_e5m2fnuz",
    "float8_e8m0fnu",
    "int4",
    "uint4",
)

_OF_ANOTHER_PACKAGE = 2
"""What ``numpy.dtype.isbuiltin`` says of dtypes that are not numpy's own."""


@dataclass(frozen=True, slots=True)
class Device:
    """A device of a worker: its kind ("cpu", "cuda" or "rocm") and its index.

    Examples:
        >>> device = disco_client.Device("cpu", 0)
        >>> session.empty((2,), "float32", device=device).numpy().shape
        (2,)
    """

    kind: str
    index: int = 0

    @classmethod
    def parse(cls, text: str) -> Device:
        """Reads ``"cpu"``, ``"cuda:1"`` or ``"rocm(0)"``.

        Raises:
            ConfigError: The text is none of these.
        """
        match = _DEVICE.fullmatch(text.strip())
        if match is None:
            msg = f"expected a device such as 'cpu', 'cuda:0' or 'rocm:1', got {text!r}"
            raise ConfigError(msg)
        return cls(match[1], int(match[2] or 0))

    def __str__(self) -> str:
        return f"{self.kind}:{self.index}"


def cpu(index: int = 0) -> Device:
    """The CPU.

    Examples:
        >>> disco_client.cpu(0)
        Device(kind='cpu', index=0)
    """
    return Device("cpu", index)


def cuda(index: int = 0) -> Device:
    """The NVIDIA GPU of that index.

    Examples:
        >>> disco_client.cuda(1).kind
        'cuda'
    """
    return Device("cuda", index)


def rocm(index: int = 0) -> Device:
    """The AMD GPU of that index.

    Examples:
        >>> disco_client.rocm(0) == disco_client.Device("rocm", 0)
        True
    """
    return Device("rocm", index)


def as_device(value: Any) -> Device | None:
    """The device that an object of another library stands for; None where it is no device.

    Those of TVM and DLPack have ``dlpack_device_type()`` or ``device_type``, and
    ``device_id`` or ``index``; torch's have a ``type`` that names it, and an ``index``.

    Raises:
        ConfigError: It is a device of a kind that no worker has.
    """
    if isinstance(value, (Device, type)):
        return value if isinstance(value, Device) else None
    number: Any = getattr(value, "dlpack_device_type", getattr(value, "device_type", None))
    number = number() if callable(number) else number
    numbered = isinstance(number, int)
    kind: Any = DLPACK_KINDS.get(number) if numbered else getattr(value, "type", None)
    index = getattr(value, "device_id", getattr(value, "index", ""))
    index = 0 if index is None else index  # of torch.device("cpu")
    if isinstance(kind, str) and kind in DLPACK_KINDS.values() and isinstance(index, int):
        return Device(kind, index)
    if not numbered:
        return None
    msg = f"expected a device of kind {', '.join(DLPACK_KINDS.values())}, got {value}"
    raise ConfigError(msg)


def device_of(value: object) -> Device | None:
    """The device that a program's argument names; None stands for each worker's own.

    Args:
        value: None, a device of this or another library, or a text such as ``"cuda:0"``.

    Raises:
        ConfigError: It names none.
    """
    if value is None:
        return None
    device = Device.parse(value) if isinstance(value, str) else as_device(value)
    if device is None:
        msg = f"expected a device such as 'cpu' or 'cuda:0', got {value!r}"
        raise ConfigError(msg)
    return device


class Shape(tuple[int, ...]):
    """The extents of an array, or other numbers that TVM's functions take in this form.

    A tuple that keeps its meaning on the wire. Numbers may be negative, as the parents in a tree
    are, where -1 stands for the root's; what allocates an array refuses them.

    Examples:
        >>> session.get_global_func("numpy.ones")(disco_client.Shape((2, 3))).numpy().shape
        (2, 3)
    """

    __slots__ = ()

    def __new__(cls, dims: Iterable[int] = ()) -> Self:
        """Makes a shape of any integers.

        Raises:
            DtypeError: A dimension is not an integer.
        """
        values = tuple(_dimension(dim) for dim in dims)
        return super().__new__(cls, values)

    def __repr__(self) -> str:
        return f"Shape({list(self)})"


def ffi_shape() -> type[tuple[int, ...]] | None:
    """The class ``tvm_ffi.Shape`` where the program has loaded it, else None."""
    return getattr(sys.modules.get("tvm_ffi"), "Shape", None)


def _dimension(dim: Any) -> int:
    try:
        value = operator.index(dim)
    except TypeError:
        value = None
    if value is None or isinstance(dim, bool):
        msg = f"expected integer dimensions, got {shown(dim)} of type {type(dim).__name__}"
        raise DtypeError(msg)
    return value


def extents_of(dims: Iterable[Any]) -> Shape:
    """The extents of an array.

    Args:
        dims: Them, each an integer of zero or more.

    Raises:
        DtypeError: One is not an integer.
        ConfigError: One is negative.
    """
    shape = Shape(dims)
    least = min(shape, default=0)
    if least < 0:
        msg = f"expected dimensions of zero or more, got {shown(least)}"
        raise ConfigError(msg)
    return shape


@dataclass(frozen=True, slots=True)
class Opaque:
    """Stands at the client for a worker's object that cannot travel.

    Attributes:
        type: The qualified name of its type.
        text: How it prints.

    Examples:
        >>> with disco_client.ProcessSession(1) as processes:
        ...     function = processes.get_global_func("numpy.add")
        ...     print(type(function.get()).__name__)
        Opaque
    """

    type: str
    text: str

    def __str__(self) -> str:
        return f"<{self.type} on the worker: {self.text}>"


STREAM_END = Opaque("disco_client.Stream", "the end of a stream")
"""What a step of a generator has for a result where that has yielded its last item before."""


def is_array(value: object) -> TypeGuard[np.ndarray[Any, Any]]:
    """Whether a value is a numpy array."""
    return isinstance(value, np.ndarray)


def is_extension(name: object) -> TypeGuard[str]:
    """Whether it names a dtype of the ``ml_dtypes`` package, which only workers need."""
    return isinstance(name, str) and name in _EXTENSION_TYPES


def shown(value: object) -> str:
    """The beginning of a value's repr for an error; a repr is code that may raise."""
    try:
        return repr(value)[:_SHOWN]
    except Exception as error:  # noqa: BLE001  (whatever the value's author did)
        return f"<its repr raised {type(error).__name__}>"


def is_int64(number: int) -> bool:
    """Whether an integer has a place among those of 64 bits, as which it travels."""
    return -(1 << 63) <= number < 1 << 63


def not_int64(number: int) -> str:
    """Says of an integer that it has no place there."""
    bits = int(number).bit_length()
    return (
        f"expected a signed integer of 64 bits, got {shown(number)} ({bits} bits without its sign)"
    )


def is_floating(name: str) -> bool:
    """Whether the dtype of that name holds real floating-point numbers."""
    return name.startswith(("float", "bfloat"))


@lru_cache(maxsize=256)  # numpy makes the name of a dtype anew each time
def dtype_name(dtype: np.dtype[Any]) -> str:
    """The name under which a dtype travels.

    Raises:
        ConfigError: The dtype is structured, or holds Python objects.
    """
    bare = issubclass(dtype.type, np.void)  # bfloat16 and its kind have types of their own
    unknown = dtype.isbuiltin == _OF_ANOTHER_PACKAGE and not is_extension(dtype.name)
    if bare or unknown or dtype.hasobject or dtype.subdtype is not None:
        msg = f"expected a plain numeric dtype, got {dtype}"
        raise ConfigError(msg)
    if dtype.kind in "SUmM":
        return dtype.str
    return dtype.name


def dtype_from_name(name: object) -> np.dtype[Any]:
    """Finds a dtype by name; bfloat16 and its kind need the ``ml_dtypes`` package.

    Raises:
        ConfigError: No such dtype, or ``ml_dtypes`` is not installed.
    """
    if is_extension(name):
        return _extension_dtype(name)
    try:
        dtype: np.dtype[Any] = np.dtype(name)  # type: ignore[call-overload]
    except (TypeError, ValueError, SyntaxError):
        msg = f"expected the name of a dtype such as 'float32', got {name!r}"
        raise ConfigError(msg) from None
    dtype_name(dtype)
    return dtype


def checked_dtype(shape: Sequence[int], dtype: object) -> np.dtype[Any]:
    """The dtype of an array that is to be allocated.

    Args:
        shape: Its extents.
        dtype: It, or its name.

    Raises:
        ConfigError: There is no such dtype or shape, or the array would be absurdly large.
    """
    kind, extents = dtype_from_name(dtype), extents_of(shape)
    # As numpy does, which refuses axes beyond all memory beside an empty one, too.
    nbytes = kind.itemsize * math.prod(filter(None, extents))
    if nbytes > _MAX_ARRAY_BYTES:
        what = f"{kind}{shown(list(extents))}"
        msg = f"expected an array of at most {_MAX_ARRAY_BYTES} bytes, got {what}"
        raise ConfigError(msg)
    return kind


def _extension_dtype(name: str) -> np.dtype[Any]:
    try:
        import ml_dtypes
    except ImportError:
        msg = f"dtype {name!r} needs the package ml_dtypes: pip install ml_dtypes"
        raise ConfigError(msg) from None
    return np.dtype(getattr(ml_dtypes, name))


# What moves the arrays of values that are too large for a command; no I/O here.


class ArrayPorter:
    """Moves arrays that are too large for a command; the base refuses them.

    It also knows arrays that are not numpy's, where there are such.
    """

    def knows(self, value: object) -> bool:  # noqa: ARG002  (nothing, here)
        """Whether a value is an array of another kind, that it can offer."""
        return False

    def from_device(self, value: Any) -> Any:  # noqa: ARG002  (none, here)
        """Returns an array of another library on a GPU as one that it can offer, or None."""
        return None

    def content(self, array: Any) -> bytes:
        """The bytes of a small array in C order."""
        content: bytes = array.tobytes()
        return content

    def arrived(self, array: np.ndarray[Any, Any]) -> Any:
        """Converts an array that arrived inside a value."""
        return array

    def offer(self, array: Any) -> int:
        """Hands over an array and returns its ticket."""
        msg = f"an array of {array.nbytes} bytes cannot travel inside a value here"
        raise EncodingError(msg)

    def offer_pieces(self, nbytes: int, pieces: Iterable[memoryview]) -> int:
        """Hands over an array whose bytes arrive piece by piece, and returns its ticket."""
        whole = np.empty(nbytes, np.uint8)
        at = 0
        for piece in pieces:
            whole[at : at + len(piece)] = piece
            at += len(piece)
        return self.offer(whole)

    def withdraw(self) -> None:
        """Takes back what was offered since the last reply, because no reply will name it."""

    def collect(self, ticket: int, dtype: np.dtype[Any], shape: Sequence[int]) -> Any:
        """Returns the array that was offered under this ticket."""
        msg = f"no array can be collected here (ticket {ticket}, {dtype}, {tuple(shape)})"
        raise EncodingError(msg)

    def collect_into(self, ticket: int, out: np.ndarray[Any, Any]) -> None:
        """Fills an array with the one of its dtype and size under this ticket."""
        out[...] = self.collect(ticket, out.dtype, out.shape)

    def discard(self, ticket: int) -> None:
        """Discards the array under this ticket, now or when it arrives."""

    @contextlib.contextmanager
    def lend(
        self, ticket: int, dtype: np.dtype[Any], shape: Sequence[int]
    ) -> Generator[np.ndarray[Any, Any]]:
        """Gives access to the array under this ticket, while a block runs."""
        yield self.collect(ticket, dtype, shape)

    def collect_pieces(
        self, ticket: int, dtype: np.dtype[Any], shape: Sequence[int]
    ) -> Generator[memoryview]:
        """Yields the bytes of the array under this ticket in order, piece by piece.

        Each piece has at most PIECE_BYTES, and is valid until the next is requested.
        """
        with self.lend(ticket, dtype, shape) as array:
            yield from in_pieces(byte_view(array))
