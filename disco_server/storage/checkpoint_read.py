"""The index of a checkpoint: what its tensors are, and which part is in which file.

A JSON object::

    {
      "format": "disco-checkpoint",
      "version": 1,
      "generation": "generation-5f0c7a91d2e4b836",
      "files": {
        "worker-00000.safetensors": {"nbytes": 184, "header": "SHA-256 of what precedes the data"}
      },
      "tensors": {
        "w": {
          "shape": [6, 8],
          "dtype": "float32",
          "layout": {
            "mesh": {"shape": [2], "names": ["tp"], "workers": [0, 1]},
            "placement": "S[0]"
          },
          "parts": [{"file": "worker-00000.safetensors", "bounds": [[0, 3], [0, 8]]}, ...]
        }
      }
    }

The files lie in the folder of the generation beside the index. A part has the name of
its tensor in its file; the parts of a tensor do not overlap, and together are the whole.
What is in ``layout`` is for the program that loads it; here it is kept unread.

Each save adds an index with the next number, ``disco-checkpoint-0000000007.json``, and the
highest number is the checkpoint. The index of a save by Disco 0.2 has no number, and counts as 0.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, cast

import numpy as np

from disco_client.errors import ConfigError
from disco_client.wire.arrays import empty_array
from disco_client.wire.partition import Bounds, shape_within
from disco_client.wire.values import dtype_from_name, dtype_name
from disco_server.storage.files import (
    DataFile,
    FileError,
    Record,
    absolute_path,
    check_allowed,
    is_count,
    parse_json,
    read_shape,
    reason,
)
from disco_server.storage.folders import Where, list_names
from disco_server.storage.safetensors import header_digest, read_header, stored_as
from disco_server.storage.slices import read_box

__all__ = [
    "GENERATION",
    "MAX_INDEX",
    "Entry",
    "Index",
    "StoredCheckpoint",
    "StoredFile",
    "decode_index",
    "encode_index",
    "file_name",
    "index_name",
    "indices_of",
]


_INDEX = re.compile(r"disco-checkpoint(?:-([0-9]{10,18}))?\.json")

GENERATION = re.compile(r"generation-[0-9a-f]{16}")
"""The names of the folders with the files."""

MAX_INDEX = 1 << 30
"""More bytes no index may have."""

_FORMAT, _VERSION = "disco-checkpoint", 1
_FILE = re.compile(r"worker-([0-9]{5,10})\.safetensors")


@dataclass(frozen=True, slots=True)
class Entry:
    """One tensor.

    Attributes:
        name: Its name.
        shape: Its extents.
        dtype: Its dtype.
        layout: The program's description of its layout.
        parts: The parts, each with the number of the worker in whose file it is.
    """

    name: str
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    layout: Mapping[str, Any]
    parts: tuple[tuple[int, Bounds], ...]


@dataclass(frozen=True, slots=True)
class StoredFile:
    """What identifies a file of parts: its size, and the digest of its header."""

    nbytes: int
    header: str


@dataclass(frozen=True, slots=True)
class Index:
    """A checkpoint; the files are those of workers, by their numbers."""

    generation: str
    files: Mapping[int, StoredFile]
    entries: tuple[Entry, ...]


def file_name(worker: int) -> str:
    """The name of a worker's file."""
    return f"worker-{worker:05}.safetensors"


def index_name(number: int) -> str:
    """The name of an index in the folder of a checkpoint."""
    return f"disco-checkpoint-{number:010}.json"


def indices_of(names: Iterable[str]) -> list[tuple[int, str]]:
    """The indices among what is in a folder: number and name of each, the checkpoint's last."""
    found = ((_INDEX.fullmatch(name), name) for name in names)
    return sorted((int(match[1] or 0), name) for match, name in found if match)


def encode_index(index: Index) -> bytes:
    """Writes an index as JSON."""
    content = {
        "format": _FORMAT,
        "version": _VERSION,
        "generation": index.generation,
        "files": {
            file_name(worker): {"nbytes": file.nbytes, "header": file.header}
            for worker, file in sorted(index.files.items())
        },
        "tensors": {
            entry.name: {
                "shape": entry.shape,
                "dtype": dtype_name(entry.dtype),
                "layout": entry.layout,
                "parts": [
                    {"file": file_name(worker), "bounds": bounds} for worker, bounds in entry.parts
                ],
            }
            for entry in index.entries
        },
    }
    return json.dumps(content, ensure_ascii=False).encode()


def decode_index(path: Where, text: bytes) -> Index:
    """Reads an index, and checks that it is consistent.

    Raises:
        FileError: It is none, or of a later version, or was damaged.
    """
    content = parse_json(path, text)
    if content.get("format") != _FORMAT:
        raise FileError(path, f"expected the index of a checkpoint, with 'format': {_FORMAT!r}")
    if content.get("version") != _VERSION:
        version = content.get("version")
        raise FileError(
            path, f"expected version {_VERSION} of the format, got {version!r}; use a later Disco"
        )
    generation = content.get("generation")
    if not isinstance(generation, str) or not GENERATION.fullmatch(generation):
        raise FileError(path, f"expected the name of a generation, got {generation!r:.80}")
    files = {
        _worker(path, name): _read_file(path, name, facts)
        for name, facts in _mapping(path, content, "files").items()
    }
    entries = tuple(
        _read_entry(path, name, facts, files)
        for name, facts in _mapping(path, content, "tensors").items()
    )
    return Index(generation, files, entries)


def _mapping(path: Where, content: Mapping[str, Any], key: str) -> dict[str, Any]:
    found = content.get(key)
    if not isinstance(found, dict):
        raise FileError(path, f"expected an object under {key!r}, got {found!r:.80}")
    return cast("dict[str, Any]", found)


def _worker(path: Where, name: object) -> int:
    match = _FILE.fullmatch(name) if isinstance(name, str) else None
    if match is None:
        raise FileError(path, f"expected the name of a worker's file, got {name!r:.80}")
    return int(match[1])


def _read_file(path: Where, name: str, facts: Any) -> StoredFile:
    fields = cast("dict[str, Any]", facts) if isinstance(facts, dict) else {}
    nbytes, header = fields.get("nbytes"), fields.get("header")
    if not is_count(nbytes) or not isinstance(header, str):
        raise FileError(path, f"expected nbytes and header of {name}, got {facts!r:.80}")
    return StoredFile(nbytes, header)


def _read_entry(path: Where, name: str, facts: Any, files: Mapping[int, StoredFile]) -> Entry:
    def refuse(problem: str) -> FileError:
        return FileError(path, problem, tensor=name)

    fields = cast("dict[str, Any]", facts) if isinstance(facts, dict) else {}
    shape, layout, listed = read_shape(fields.get("shape")), fields.get("layout"), []
    if shape is None:
        raise refuse(f"expected a shape such as [2, 3], got {fields.get('shape')!r:.80}")
    try:
        dtype = dtype_from_name(fields.get("dtype"))
    except ConfigError as error:
        raise refuse(str(error)) from None
    if not isinstance(layout, dict):
        raise refuse(f"expected an object under 'layout', got {layout!r:.80}")
    if isinstance(fields.get("parts"), list):
        listed = cast("list[Any]", fields["parts"])
    parts = tuple(_read_part(refuse, shape, part) for part in listed)
    for worker, _ in parts:
        if worker not in files:
            raise refuse(f"a part is in {file_name(worker)}, which is not among the files")
    if not _are_a_whole(shape, tuple(bounds for _, bounds in parts)):
        raise refuse(f"its {len(parts)} parts are not a whole of shape {list(shape)}")
    return Entry(name, shape, dtype, cast("dict[str, Any]", layout), parts)


@lru_cache(maxsize=256)  # many tensors are split in the same way
def _are_a_whole(shape: tuple[int, ...], parts: tuple[Bounds, ...]) -> bool:
    """Whether parts within a shape have all of its elements, and none of them twice."""
    if sum(math.prod(shape_within(bounds)) for bounds in parts) != math.prod(shape):
        return False
    if not shape or not math.prod(shape):
        return bool(parts)
    edges = np.array([bounds for bounds in parts if math.prod(shape_within(bounds))], np.int64)
    begins, ends = edges.reshape(-1, len(shape), 2).transpose(2, 0, 1)
    return not any(
        ((begins[n] < ends[n + 1 :]) & (begins[n + 1 :] < ends[n])).all(1).any()
        for n in range(len(begins))
    )


def _read_part(refuse: Any, shape: tuple[int, ...], part: Any) -> tuple[int, Bounds]:
    fields = cast("dict[str, Any]", part) if isinstance(part, dict) else {}
    file, listed = fields.get("file"), fields.get("bounds")
    match = _FILE.fullmatch(file) if isinstance(file, str) else None
    pairs = cast("Sequence[Any]", listed) if isinstance(listed, list) else ()
    bounds = tuple(read_shape(pair) or () for pair in pairs)
    fits = len(bounds) == len(shape) and all(
        len(pair) == 2 and pair[0] <= pair[1] <= extent  # noqa: PLR2004
        for pair, extent in zip(bounds, shape, strict=True)
    )
    if match is None or not isinstance(listed, list) or not fits:
        raise refuse(f"expected file and bounds of a part of {list(shape)}, got {part!r:.120}")
    return int(match[1]), cast("Bounds", bounds)


# Reading a checkpoint: any part of a tensor, out of the parts that were written.


class StoredCheckpoint:
    """A checkpoint on this worker's disk, or in a store.

    Args:
        path: Its folder or an index in that, as clients send it.
        allowed: What may be read (see `file_allowed`).

    Attributes:
        path: Its index.
        entries: Its tensors.
        fingerprint: Differs from that of every other checkpoint, also one in the same folder.
        bytes_read: How many bytes of its files were read, their headers included.

    Raises:
        FileNotAllowed: The allow-list does not cover it.
        FileError: There is none, or its index is damaged.
    """

    def __init__(self, path: str, allowed: Sequence[str]) -> None:
        where = absolute_path(path)
        check_allowed(where, allowed)
        self._allowed = tuple(allowed)
        if _INDEX.fullmatch(where.name):
            self.path, content = where, self._read_file(where)
        else:
            self.path, content = self._find_index(where)
        self._index = index = decode_index(self.path, content)
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
            except FileError as error:
                raise self._explained(error) from None
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
        file = DataFile(path, self._allowed)
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
            problem = (
                f"expected the file that {self.path.name} describes; it was damaged or replaced"
            )
            raise FileError(file.path, problem)

    def _check_record(self, file: DataFile, worker: int, entry: Entry, part: Bounds) -> Record:
        record = self._records[worker].get(entry.name)
        _, more = stored_as(entry.dtype)
        expected = (*shape_within(part), *more)
        nbytes = math.prod(shape_within(part)) * entry.dtype.itemsize
        if record is None or (record.shape, record.nbytes) != (expected, nbytes):
            problem = f"expected {entry.dtype} {list(expected)}, as {self.path.name} says"
            raise FileError(file.path, problem, tensor=entry.name)
        return record

    def _find_index(self, folder: Where) -> tuple[Where, bytes]:
        """The index with the highest number, and its bytes."""
        while True:
            newest = self._newest(folder)
            try:
                return folder / newest, self._read_file(folder / newest)
            except FileError:
                if self._newest(folder) == newest:
                    raise
                # A save replaced it after it was listed.

    def _newest(self, folder: Where) -> str:
        try:
            names = list_names(folder)
        except FileNotFoundError:
            raise FileError(folder, "there is no such file here") from None
        except OSError as error:
            raise FileError(folder, f"cannot be listed: {reason(error)}") from None
        indices = indices_of(names)
        if not indices:
            problem = f"expected a checkpoint that session.save wrote, found no {index_name(1)}"
            raise FileError(folder, f"{problem} or a later one in it")
        return indices[-1][1]

    def _read_file(self, path: Where) -> bytes:
        with DataFile(path, self._allowed) as file:
            if file.size > MAX_INDEX:
                raise FileError(path, f"expected at most {MAX_INDEX} bytes of JSON")
            return file.read(file.size)

    def _explained(self, error: FileError) -> FileError:
        """The error of a file, which may be that a save replaced the checkpoint."""
        try:
            replaced = self._newest(self.path.parent) != self.path.name
        except FileError:
            replaced = False
        if not replaced:
            return error
        return FileError(self.path, "another save replaced it while it was read; load it again")


def _overlap(one: Bounds, other: Bounds) -> Bounds | None:
    common = tuple((max(a, c), min(b, d)) for (a, b), (c, d) in zip(one, other, strict=True))
    return common if all(start < stop for start, stop in common) else None


def _within(inner: Bounds, outer: Bounds) -> Bounds:
    """Bounds relative to the begin of others."""
    return tuple((a - c, b - c) for (a, b), (c, _) in zip(inner, outer, strict=True))


def _slices(inner: Bounds, outer: Bounds) -> tuple[slice, ...]:
    return tuple(slice(a, b) for a, b in _within(inner, outer))
