"""Reading a checkpoint: any part of a tensor, out of the parts that were written."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from typing import Any

import numpy as np

from disco_client.wire.arrays import empty_array
from disco_client.wire.layout import Bounds, shape_within
from disco_server.modules.checkpoints.index import (
    INDEX,
    MAX_INDEX,
    Entry,
    Index,
    StoredFile,
    decode_index,
    file_name,
)
from disco_server.modules.weights.boxes import read_box
from disco_server.modules.weights.errors import FileError
from disco_server.modules.weights.files import DataFile, absolute_path, check_allowed
from disco_server.modules.weights.records import Record
from disco_server.modules.weights.safetensors_header import header_digest, read_header
from disco_server.modules.weights.safetensors_writing import stored_as

__all__ = ["StoredCheckpoint"]


class StoredCheckpoint:
    """A checkpoint on this worker's disk.

    Args:
        path: Its folder, as clients send it.
        allowed: What may be read (see `file_allowed`).

    Attributes:
        path: Its index.
        entries: Its tensors.
        fingerprint: Tells it from every other checkpoint, one in the same place too.
        bytes_read: How many bytes of its files were read, their headers included.

    Raises:
        FileNotAllowed: The allow-list does not cover it.
        FileError: There is none, or its index is damaged.
    """

    def __init__(self, path: str, allowed: Sequence[str]) -> None:
        folder = absolute_path(path)
        check_allowed(folder, allowed)
        self.path = folder / INDEX
        self._allowed = tuple(allowed)
        index, content = self._read_index()
        self._index = index
        self.entries = index.entries
        self.fingerprint = hashlib.sha256(content).hexdigest()
        self._records: dict[int, dict[str, Record]] = {}
        self.bytes_read = 0

    def read(self, wanted: Iterable[tuple[int, Bounds]]) -> list[np.ndarray[Any, Any]]:
        """Reads parts of tensors.

        Args:
            wanted: The number of each tensor among `entries`, and the bounds of the
                part.

        Raises:
            FileError: A file is missing, was damaged or cut short, or is of another
                checkpoint.
        """
        with ExitStack() as stack:
            opened: dict[int, DataFile] = {}
            try:
                return [self._read_part(stack, opened, n, bounds) for n, bounds in wanted]
            finally:
                self.bytes_read += sum(file.bytes_read for file in opened.values())

    def _read_part(
        self, stack: ExitStack, opened: dict[int, DataFile], number: int, bounds: Bounds
    ) -> np.ndarray[Any, Any]:
        entry = self._index.entries[number]
        out = empty_array(shape_within(bounds), entry.dtype)
        count = 0
        for worker, part in entry.parts:
            common = _overlap(part, bounds)
            if common is None:
                continue
            if worker not in opened:
                opened[worker] = stack.enter_context(self._open(worker))
            file = opened[worker]
            record = self._check_record(file, worker, entry, part)
            shape = shape_within(part)
            inside = out[(*_slices(common, bounds), ...)]  # a view, also without axes
            read_box(file, record.offset, shape, _within(common, part), inside)
            count += inside.size
        if count != out.size:
            problem = f"its parts do not cover {list(bounds)}"
            raise FileError(self.path, problem, tensor=entry.name)
        return out

    def _open(self, worker: int) -> DataFile:
        expected = self._index.files[worker]
        path = self.path.parent / self._index.generation / file_name(worker)
        try:
            file = DataFile(path, self._allowed)
        except FileError as error:
            raise self._explained(error) from None
        with ExitStack() as closing:
            closing.push(file)
            if worker not in self._records:
                self._check_file(file, expected)
                self._records[worker] = {record.name: record for record in read_header(file)}
            closing.pop_all()
        return file

    def _check_file(self, file: DataFile, expected: StoredFile) -> None:
        if file.size != expected.nbytes:
            problem = f"expected a file of {expected.nbytes} bytes, got {file.size}"
            raise FileError(file.path, problem)
        if header_digest(file) != expected.header:
            problem = f"expected the file that {INDEX} describes; it was damaged or replaced"
            raise FileError(file.path, problem)

    def _check_record(self, file: DataFile, worker: int, entry: Entry, part: Bounds) -> Record:
        record = self._records[worker].get(entry.name)
        _, more = stored_as(entry.dtype)
        expected = (*shape_within(part), *more)
        nbytes = math.prod(shape_within(part)) * entry.dtype.itemsize
        if record is None or (record.shape, record.nbytes) != (expected, nbytes):
            problem = f"expected {entry.dtype} {list(expected)}, as {INDEX} says"
            raise FileError(file.path, problem, tensor=entry.name)
        return record

    def _read_index(self) -> tuple[Index, bytes]:
        try:
            file = DataFile(self.path, self._allowed)
        except FileError:
            if self.path.parent.is_dir() and not self.path.exists():
                problem = f"expected a checkpoint that session.save wrote, found no {INDEX} in it"
                raise FileError(self.path.parent, problem) from None
            raise
        with file:
            if file.size > MAX_INDEX:
                raise FileError(self.path, f"expected at most {MAX_INDEX} bytes of JSON")
            content = file.read(file.size)
        return decode_index(self.path, content), content

    def _explained(self, error: FileError) -> FileError:
        """The error of a file that is missing, because a save replaced the checkpoint?"""
        if self._read_index()[0].generation == self._index.generation:
            return error
        return FileError(self.path, "another save replaced it while it was read; load it again")


def _overlap(one: Bounds, other: Bounds) -> Bounds | None:
    common = tuple((max(a, c), min(b, d)) for (a, b), (c, d) in zip(one, other, strict=True))
    return common if all(start < stop for start, stop in common) else None


def _within(inner: Bounds, outer: Bounds) -> Bounds:
    """Bounds as they are seen from the begin of others."""
    return tuple((a - c, b - c) for (a, b), (c, _) in zip(inner, outer, strict=True))


def _slices(inner: Bounds, outer: Bounds) -> tuple[slice, ...]:
    return tuple(slice(a, b) for a, b in _within(inner, outer))
