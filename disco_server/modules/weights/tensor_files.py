"""One tensor of a file on this worker's disk, of which each worker reads its own part."""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from tokenize import TokenError
from typing import Any

import numpy as np

from disco_client.errors import ConfigError
from disco_client.wire.arrays import empty_array
from disco_client.wire.layout import Bounds, shape_within
from disco_client.wire.values import dtype_name
from disco_server.modules.weights.boxes import read_box
from disco_server.modules.weights.checkpoint import open_checkpoint
from disco_server.modules.weights.errors import FileError
from disco_server.modules.weights.files import DataFile, absolute_path
from disco_server.modules.weights.records import find_dtype

__all__ = ["TensorFile", "open_npy", "open_safetensors"]

_MAX_HEADER = 16 << 10
_NAMED = 5


@dataclass(frozen=True, slots=True)
class TensorFile:
    """Where a tensor lies in a file.

    Attributes:
        path: The file.
        shape: The tensor's extents.
        dtype: The name of its dtype.
        stored: The dtype of its bytes.
        offset: Of its first byte.
        reversed: Whether its bytes are in Fortran's order, the first axis the fastest.
    """

    path: Path
    shape: tuple[int, ...]
    dtype: str
    stored: np.dtype[Any]
    offset: int
    reversed: bool = False

    def read(self, bounds: Bounds, allowed: Sequence[str]) -> np.ndarray[Any, Any]:
        """Reads a part.

        Args:
            bounds: Of the part.
            allowed: What may be read (see `file_allowed`).

        Raises:
            FileNotAllowed: The allow-list does not cover the file.
            FileError: It is gone or was cut short, or the disk does not deliver.
        """
        order = slice(None, None, -1 if self.reversed else None)
        part = bounds[order]
        array = empty_array(shape_within(part), self.stored)
        with DataFile(self.path, allowed) as file:
            read_box(file, self.offset, self.shape[order], part, array)
        if self.reversed:
            array = array.T
        target = find_dtype(self.dtype) or self.stored
        if target == self.stored and array.flags.c_contiguous:
            return array
        out = empty_array(shape_within(bounds), target)
        out[...] = array
        return out


def open_safetensors(path: str, name: str, allowed: Sequence[str]) -> TensorFile:
    """Finds a tensor in any of the files that ``open_checkpoint`` reads.

    Raises:
        FileNotAllowed: The allow-list does not cover the file.
        FileError: It is missing or malformed, or has no such tensor.
    """
    opened = open_checkpoint(path, allowed)
    found = {record.name: record for record in opened.records}
    record = found.get(name)
    if record is None:
        more = ", ..." if len(found) > _NAMED else ""
        has = ", ".join(map(repr, list(found)[:_NAMED])) + more if found else "none"
        raise FileError(opened.path, f"it has no tensor {name!r}; it has {has}")
    stored = find_dtype(record.stored)
    if stored is None or not record.dtype:
        raise FileError(
            record.file, f"no array can have its dtype {record.stored}", tensor=record.name
        )
    return TensorFile(record.file, record.shape, record.dtype, stored, record.offset)


def open_npy(path: str, allowed: Sequence[str]) -> TensorFile:
    """Reads the header of a file that ``numpy.save`` wrote.

    Raises:
        FileNotAllowed: The allow-list does not cover the file.
        FileError: It is missing, cut short, or has no array of plain numbers.
    """
    where = absolute_path(path)
    with DataFile(where, allowed) as file:
        stream = io.BytesIO(file.read(min(file.size, _MAX_HEADER)))
        try:
            version = np.lib.format.read_magic(stream)
            shape, fortran, stored = _reader_of(version)(stream)
            name = dtype_name(stored)
        except _MALFORMED as error:
            raise FileError(where, f"expected an array of numbers as .npy: {error}") from None
        size = stream.tell() + stored.itemsize * int(np.prod(shape, dtype=object))
        if size != file.size:
            problem = f"expected {size} bytes for {name}{list(shape)}, the file has {file.size}"
            raise FileError(where, problem)
        if stored.itemsize == 0:
            raise FileError(where, f"its dtype {stored} has no bytes")
    return TensorFile(where, tuple(shape), name, stored, stream.tell(), bool(fortran))


def _reader_of(
    version: tuple[int, int],
) -> Callable[[Any], tuple[tuple[int, ...], bool, np.dtype[Any]]]:
    if version not in _READERS:
        msg = f"expected format 1.0 or 2.0, got {version}"
        raise ValueError(msg)
    return _READERS[version]


_MALFORMED = (ConfigError, ValueError, TypeError, SyntaxError, TokenError, RecursionError)
"""What numpy raises for headers that are none: it reads them as Python's literals."""

_READERS: dict[tuple[int, int], Callable[[Any], tuple[tuple[int, ...], bool, np.dtype[Any]]]] = {
    (1, 0): np.lib.format.read_array_header_1_0,
    (2, 0): np.lib.format.read_array_header_2_0,
}
