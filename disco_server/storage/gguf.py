"""GGUF files: their headers, and tensors whose numbers are stored in blocks.

The format (https://github.com/ggml-org/ggml/blob/master/docs/gguf.md), little-endian: the magic
``GGUF``, the version, how many tensors and how many metadata; the metadata, each with a key, a
type and a value; of each tensor its name, its extents with the fastest first, its type and where
its bytes begin; then, aligned, the bytes. A type is a plain dtype, or a block: a few numbers
that share a scale, side by side along the last axis. What is in a block the package ``gguf`` knows.
"""

from __future__ import annotations

import importlib
import math
import struct
from typing import TYPE_CHECKING, Any

import numpy as np

from disco_client.wire.arrays import empty_array
from disco_server.storage.files import (
    DataFile,
    FileError,
    Record,
    check_layout,
    first_twice,
    read_shape,
)
from disco_server.storage.slices import plan_part, read_strips

if TYPE_CHECKING:
    from collections.abc import Callable

    from disco_client.wire.partition import Intervals

__all__ = ["MAGIC", "read_blocks", "read_header"]

MAGIC = b"GGUF"
_VERSIONS = (2, 3)
_MAX_AXES = 4
_MAX_NAME = 1 << 16
_MAX_NESTING = 8
_ALIGNMENT = "general.alignment"
_MAX_ALIGNMENT = 1 << 20
_CHUNK = 1 << 20
_AT_ONCE = 4 << 20
"""How many numbers are read out of blocks at once; meanwhile they take several times their size."""

_PLAIN = {
    0: ("float32", 4),
    1: ("float16", 2),
    24: ("int8", 1),
    25: ("int16", 2),
    26: ("int32", 4),
    27: ("int64", 8),
    28: ("float64", 8),
    30: ("bfloat16", 2),
}
"""The types of one number each: the dtype, and its bytes."""

_FIXED = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}
"""The bytes of a metadata value of each type; those that are missing here are texts and arrays."""

_UINT32, _STRING, _ARRAY = 4, 8, 9


class _Header:
    """Reads a header from its beginning.

    Args:
        file: The file.
    """

    def __init__(self, file: DataFile) -> None:
        self.at = 0
        self._file = file
        self._held = b""
        self._from = 0

    def take(self, count: int, what: str) -> bytes:
        """The next bytes.

        Raises:
            FileError: The file ends before.
        """
        if count > self._file.size - self.at:
            problem = f"its header is cut off in {what} at byte {self.at}"
            raise FileError(self._file.path, problem)
        skip = self.at - self._from
        if skip + count > len(self._held):
            size = min(max(count, _CHUNK), self._file.size - self.at)
            self._held, self._from, skip = self._file.read(size, self.at), self.at, 0
        self.at += count
        return self._held[skip : skip + count]

    def skip(self, count: int, what: str) -> None:
        """Leaves bytes out, as `take` does."""
        if count > self._file.size - self.at:
            self.take(count, what)
        self.at += count

    def number(self, kind: str, what: str) -> int:
        """The next integer, of a format of `struct`."""
        return int(struct.unpack(f"<{kind}", self.take(struct.calcsize(kind), what))[0])

    def text(self, what: str, most: int) -> str:
        """The next text, of a limited length."""
        length = self.number("Q", what)
        if length > most:
            problem = f"expected {what} of at most {most} bytes, it says {length}"
            raise FileError(self._file.path, problem)
        raw = self.take(length, what)
        try:
            return raw.decode()
        except UnicodeDecodeError:
            raise FileError(self._file.path, f"expected UTF-8 as {what}, got {raw!r:.80}") from None


def read_header(file: DataFile) -> list[Record]:
    """Reads and checks what a GGUF file says of its tensors.

    Returns:
        The tensors in the order of their bytes.

    Raises:
        FileError: The file is no GGUF file of this format, or was cut off; or its tensors have
            blocks, and the package ``gguf`` is not installed or does not know them.
    """
    header = _Header(file)
    if header.take(len(MAGIC), "the magic") != MAGIC:
        raise FileError(file.path, f"expected a GGUF file, which begins with {MAGIC!r}")
    version = header.number("I", "the version")
    if version not in _VERSIONS:
        problem = f"expected GGUF of version 2 or 3 in little-endian order, got version {version}"
        raise FileError(file.path, problem)
    tensors, metadata = header.number("Q", "the counts"), header.number("Q", "the counts")
    alignment = _read_alignment(file, header, metadata)
    found: list[tuple[str, tuple[int, ...], int, int]] = []
    while len(found) < tensors:
        found.append(_read_tensor(file, header))
    twice = first_twice(name for name, *_ in found)
    if twice is not None:
        raise FileError(file.path, "it is there twice", tensor=twice)
    base = -(-header.at // alignment) * alignment
    records: list[Record] = []
    for name, shape, kind, offset in found:
        if offset % alignment:
            problem = f"expected an offset that {alignment} divides, got {offset}"
            raise FileError(file.path, problem, tensor=name)
        records.append(_record(file, name, shape, kind, base + offset))
    check_layout(file.path, records, base, file.size)
    return sorted(records, key=lambda record: (record.offset, record.nbytes))


def _read_alignment(file: DataFile, header: _Header, metadata: int) -> int:
    """Reads over the metadata; returns how tensors are aligned."""
    alignment = 32
    for _ in range(metadata):
        key = header.text("a metadata key", _MAX_NAME)
        kind = header.number("I", f"the type of {key!r:.80}")
        if key != _ALIGNMENT:
            _skip_value(file, header, kind, f"{key!r:.80}")
            continue
        alignment = header.number("I", key) if kind == _UINT32 else 0
        if alignment.bit_count() != 1 or alignment > _MAX_ALIGNMENT:
            problem = f"expected a power of two as {key}, got {alignment} of type {kind}"
            raise FileError(file.path, problem)
    return alignment


def _skip_value(file: DataFile, header: _Header, kind: int, what: str, depth: int = 0) -> None:
    if kind in _FIXED:
        header.skip(_FIXED[kind], what)
    elif kind == _STRING:
        header.skip(header.number("Q", what), what)
    elif kind == _ARRAY and depth < _MAX_NESTING:
        kind, count = header.number("I", what), header.number("Q", what)
        if kind in _FIXED:
            header.skip(count * _FIXED[kind], what)
            return
        for _ in range(count):
            _skip_value(file, header, kind, what, depth + 1)
    else:
        raise FileError(file.path, f"expected a type of metadata for {what}, got {kind}")


def _read_tensor(file: DataFile, header: _Header) -> tuple[str, tuple[int, ...], int, int]:
    """Reads name, shape, type and offset of a tensor."""
    name = header.text("the name of a tensor", _MAX_NAME)
    axes = header.number("I", f"the extents of {name!r:.80}")
    if not name or axes > _MAX_AXES:
        problem = f"expected a name and at most {_MAX_AXES} axes, got {name!r:.80} and {axes}"
        raise FileError(file.path, problem)
    extents = [header.number("Q", f"the extents of {name!r:.80}") for _ in range(axes)]
    shape = read_shape(extents[::-1])
    if shape is None:
        raise FileError(file.path, f"expected a shape, got {extents[::-1]}", tensor=name)
    kind = header.number("I", f"the type of {name!r:.80}")
    return name, shape, kind, header.number("Q", f"the offset of {name!r:.80}")


def _record(file: DataFile, name: str, shape: tuple[int, ...], kind: int, offset: int) -> Record:
    if kind in _PLAIN:
        dtype, size = _PLAIN[kind]
        return Record(name, shape, dtype, dtype, file.path, offset, math.prod(shape) * size)
    word, (numbers, nbytes) = _block_of(file, name, kind)
    if not shape or shape[-1] % numbers:
        problem = f"expected a last axis in blocks of {numbers} for {word}, got {list(shape)}"
        raise FileError(file.path, problem, tensor=name)
    total = math.prod(shape) // numbers * nbytes
    return Record(name, shape, "float32", word, file.path, offset, total, (numbers, nbytes))


def _block_of(file: DataFile, name: str, kind: int) -> tuple[str, tuple[int, int]]:
    """What a type of blocks is called; how many numbers and bytes are in one."""
    library = _library(file, name)
    try:
        known = library.GGMLQuantizationType(kind)
        return known.name, library.GGML_QUANT_SIZES[known]
    except (ValueError, KeyError):
        problem = f"the package gguf on this worker does not know its type {kind}"
        raise FileError(file.path, problem, tensor=name) from None


def _library(file: DataFile, name: str) -> Any:
    try:
        return importlib.import_module("gguf")
    except ImportError as error:
        problem = (
            "its numbers are stored in blocks, which the package gguf reads, and that cannot be"
            f" imported on this worker ({error}): pip install 'disco-runtime[gguf]'"
        )
        raise FileError(file.path, problem, tensor=name) from None


# Reading ------------------------------------------------------------------------------------


def read_blocks(
    file: DataFile, record: Record, axis: int, pieces: Intervals, target: np.dtype[Any]
) -> np.ndarray[Any, Any]:
    """Reads a share of a tensor that is stored in blocks.

    Args:
        file: The tensor's file.
        record: The tensor.
        axis: The axis that is divided. Along the last one, blocks that are cut are read whole.
        pieces: Ranges of its indices, ascending, not overlapping.
        target: The dtype of the numbers.

    Raises:
        FileError: The file ends before, or the read failed, or the blocks cannot be read.
    """
    numbers, nbytes = record.block
    last = len(record.shape) - 1
    blocks = _covering(pieces, numbers) if axis == last else pieces
    in_row = record.shape[-1] // numbers
    strips = plan_part((*record.shape[:-1], in_row), nbytes, axis, blocks)
    raw = np.empty(strips.nbytes, np.uint8)
    read_strips(file, record.offset, strips, raw)
    extent = sum(stop - start for start, stop in pieces)
    out = empty_array((*record.shape[:axis], extent, *record.shape[axis + 1 :]), target)
    if not out.size:
        return out
    if axis == last:
        in_row = sum(stop - start for start, stop in blocks)
    wanted = _places(pieces, blocks, numbers) if axis == last else slice(None)
    plain = _reader(file, record)
    rows, lines = out.reshape(-1, out.shape[-1]), raw.reshape(-1, in_row * nbytes)
    each = max(1, _AT_ONCE // (in_row * numbers))
    for first in range(0, len(lines), each):
        rows[first : first + each] = plain(lines[first : first + each])[:, wanted]
    return out


def _reader(file: DataFile, record: Record) -> Callable[[np.ndarray[Any, Any]], Any]:
    """What turns rows of blocks into rows of float32."""
    library = _library(file, record.name)
    kind = library.GGMLQuantizationType[record.stored]

    def read(rows: np.ndarray[Any, Any]) -> Any:
        try:
            # Scales of a damaged file may be infinite, and so are their numbers then.
            with np.errstate(all="ignore"):
                return library.dequantize(rows, kind)
        except NotImplementedError:  # the package has sizes of more formats than it reads
            problem = f"the package gguf on this worker cannot read {record.stored}"
            raise FileError(file.path, problem, tensor=record.name) from None

    return read


def _covering(pieces: Intervals, numbers: int) -> Intervals:
    """The blocks that have some of the pieces' numbers."""
    blocks: list[tuple[int, int]] = []
    for start, stop in pieces:
        first, end = start // numbers, -(-stop // numbers)
        if start == stop:
            continue
        if blocks and first <= blocks[-1][1]:
            first = blocks.pop()[0]
        blocks.append((first, end))
    return tuple(blocks)


def _places(
    pieces: Intervals, blocks: Intervals, numbers: int
) -> slice | np.ndarray[Any, np.dtype[np.intp]]:
    """Where in a row of these blocks the pieces' numbers are."""
    if tuple((first * numbers, end * numbers) for first, end in blocks) == tuple(pieces):
        return slice(None)
    held = np.concatenate([np.arange(first * numbers, end * numbers) for first, end in blocks])
    wanted = np.concatenate([np.arange(start, stop) for start, stop in pieces])
    return np.searchsorted(held, wanted)
