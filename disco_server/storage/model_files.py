"""A model's weights on disk: one file or several, in any of the formats, read in parts."""

from __future__ import annotations

import hashlib
import io
import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import cached_property
from tokenize import TokenError
from typing import Any, cast

import numpy as np

from disco_client.errors import ConfigError
from disco_client.wire.arrays import empty_array
from disco_client.wire.partition import Bounds, Intervals, shape_within
from disco_client.wire.values import dtype_name, is_floating
from disco_server.storage import gguf
from disco_server.storage.files import (
    DataFile,
    FileError,
    Record,
    absolute_path,
    check_allowed,
    check_layout,
    find_dtype,
    first_twice,
    is_count,
    parse_json,
    read_shape,
    reason,
)
from disco_server.storage.folders import Where, list_names
from disco_server.storage.safetensors import read_with_metadata
from disco_server.storage.slices import plan_part, read_box, read_strips
from disco_server.storage.stores import ObjectPath
from disco_server.storage.tensor_files import TensorFile, nearest_names

__all__ = [
    "Checkpoint",
    "FlatTensor",
    "Part",
    "open_checkpoint",
    "open_npy",
    "open_safetensors",
    "read_record",
    "read_tensor_cache",
]


# The tensor-cache.json of MLC models: data files, and where each tensor lies in them.


_NARROW = "f32-to-bf16"
"""A record of float32 whose bytes are the upper halves of its numbers."""


def read_tensor_cache(path: Where, text: bytes | str) -> list[Record]:
    """Reads and checks what a tensor-cache.json says of its tensors.

    Args:
        path: Of the JSON file; the data files are beside it.
        text: Its content.

    Returns:
        The tensors in the file's order.

    Raises:
        FileError: It is malformed.
    """
    content = parse_json(path, text)
    files = content.get("records")
    if not isinstance(files, list):
        raise FileError(path, "expected a list of data files under 'records'")
    records: list[Record] = []
    for entry in cast("list[Any]", files):
        records += _read_file(path, entry)
    twice = first_twice(record.name for record in records)
    if twice is not None:
        raise FileError(path, "it is there twice", tensor=twice)
    return records


def _read_file(path: Where, entry: Any) -> list[Record]:
    fields: dict[str, Any] = cast("dict[str, Any]", entry) if isinstance(entry, dict) else {}
    name, kind, size = fields.get("dataPath"), fields.get("format"), fields.get("nbytes")
    tensors = fields.get("records")
    if not isinstance(name, str) or not name or "\0" in name:
        raise FileError(path, f"expected a data file under 'dataPath', got {name!r:.80}")
    if kind != "raw-shard":
        raise FileError(path, f"expected format 'raw-shard' of {name!r}, got {kind!r:.80}")
    if not is_count(size):
        raise FileError(path, f"expected the nbytes of {name!r}, got {size!r:.80}")
    if not isinstance(tensors, list):
        raise FileError(path, f"expected a list of the tensors in {name!r}, got {tensors!r:.80}")
    file = path.parent / name
    records = [_read_record(path, file, tensor) for tensor in cast("list[Any]", tensors)]
    check_layout(path, records, 0, size)
    return records


def _read_record(path: Where, file: Where, entry: Any) -> Record:
    fields: dict[str, Any] = cast("dict[str, Any]", entry) if isinstance(entry, dict) else {}
    name, word, form = (fields.get(key) for key in ("name", "dtype", "format"))
    if not isinstance(name, str) or not name:
        raise FileError(path, f"expected the name of a tensor in {file.name!r}, got {name!r:.80}")

    def refuse(problem: str) -> FileError:
        return FileError(path, problem, tensor=name)

    shape = read_shape(fields.get("shape"))
    offset, nbytes = fields.get("byteOffset"), fields.get("nbytes")
    if shape is None:
        raise refuse(f"expected a shape such as [2, 3], got {fields.get('shape')!r:.80}")
    if not is_count(offset) or not is_count(nbytes):
        raise refuse(f"expected byteOffset and nbytes, got {offset!r:.80} and {nbytes!r:.80}")
    if not isinstance(word, str) or not word:
        raise refuse(f"expected a dtype such as 'float16', got {word!r:.80}")
    if form not in ("raw", _NARROW):
        raise refuse(f"expected format 'raw' or '{_NARROW}', got {form!r:.80}")
    # The original writes that format for other dtypes too, and then means raw bytes.
    stored = "bfloat16" if form == _NARROW and word == "float32" else word
    dtype = find_dtype(stored)
    if dtype is None:
        return Record(name, shape, "", word, file, offset, nbytes)
    if math.prod(shape) * dtype.itemsize != nbytes:
        raise refuse(f"{stored}{list(shape)} does not fit its {nbytes} bytes")
    return Record(name, shape, word, stored, file, offset, nbytes)


Part = tuple[int, Intervals]
"""A share of a tensor: an axis, and pieces of it."""

Metadata = Mapping[str, Any]
"""What a safetensors file or an index says besides its tensors."""

_INDEX = "model.safetensors.index.json"
_CACHES = ("tensor-cache.json", "ndarray-cache.json")
_SUFFIXES = (".safetensors", ".gguf", ".json")
_MAX_JSON = 256 << 20
_FORMAT = "format"
"""The key of the metadata that says for which library a file was written."""

_NAMED = 5


class Checkpoint:
    """What files hold, as far as their headers say.

    Attributes:
        path: What was opened.
        records: Its tensors, in the order in which they are best read.
        bytes_read: How many bytes of tensors were read so far.
    """

    def __init__(self, path: Where, records: Sequence[Record], allowed: Sequence[str]) -> None:
        self.path = path
        self.records = tuple(records)
        self.bytes_read = 0
        self._allowed = tuple(allowed)

    @cached_property
    def fingerprint(self) -> str:
        """Differs between checkpoints that differ in a name, a shape or a dtype."""
        facts = [(record.name, record.shape, record.dtype) for record in self.records]
        return hashlib.sha256(json.dumps(facts).encode()).hexdigest()

    def read(
        self, wanted: Iterable[tuple[Record, Part | None]], dtype: str = ""
    ) -> list[np.ndarray[Any, Any]]:
        """Reads parts of tensors.

        Args:
            wanted: Tensors, and the share of each; None for the whole.
            dtype: What those with floating-point numbers become; empty for what
                they are.

        Raises:
            FileError: A file changed, or the read failed.
        """
        arrays: list[np.ndarray[Any, Any]] = []
        with ExitStack() as stack:
            files: dict[Where, DataFile] = {}
            for record, part in wanted:
                if record.file not in files:
                    opened = DataFile(record.file, self._allowed)
                    files[record.file] = stack.enter_context(opened)
                arrays.append(read_record(files[record.file], record, part, dtype))
            self.bytes_read += sum(file.bytes_read for file in files.values())
        return arrays


def read_record(
    file: DataFile, record: Record, part: Part | None, dtype: str = ""
) -> np.ndarray[Any, Any]:
    """Reads one tensor or a share of it; see `Checkpoint.read`.

    Raises:
        FileError: It does not lie in the file, or has a dtype that arrays cannot have.
    """
    target = find_dtype(dtype if dtype and is_floating(record.dtype) else record.dtype)
    stored = target if record.block[0] else find_dtype(record.stored)
    if stored is None or target is None or not record.dtype:
        problem = f"no array can have its dtype {record.stored}"
        raise FileError(record.file, problem, tensor=record.name)
    if record.offset + record.nbytes > file.size:
        problem = f"expected {record.nbytes} bytes from offset {record.offset}"
        problem += f", the file has {file.size} bytes"
        raise FileError(record.file, problem, tensor=record.name)
    axis, pieces = part or (0, ((0, record.shape[0]),) if record.shape else ())
    if record.block[0]:
        return gguf.read_blocks(file, record, axis, pieces, target)
    if record.shape:
        strips = plan_part(record.shape, stored.itemsize, axis, pieces)
        extent = sum(stop - start for start, stop in pieces)
        shape = (*record.shape[:axis], extent, *record.shape[axis + 1 :])
    else:
        strips, shape = plan_part((1,), stored.itemsize, 0, ((0, 1),)), ()
    array = empty_array(shape, stored)
    read_strips(file, record.offset, strips, array.reshape(-1).view(np.uint8))
    if target == stored:
        return array
    converted = empty_array(shape, target)
    converted[...] = array
    return converted


# Finding out what is there -------------------------------------------------------


def open_checkpoint(path: str, allowed: Sequence[str]) -> Checkpoint:
    """Reads the headers of a model's files.

    Args:
        path: A safetensors or GGUF file, a safetensors index, a tensor-cache.json, or a
            folder with such files; or the URL of one.
        allowed: What may be read (see `file_allowed`).

    Raises:
        FileNotAllowed: The allow-list does not cover one of the files.
        FileError: One is missing or malformed.
    """
    where = absolute_path(path)
    check_allowed(where, allowed)
    if _is_folder(where):
        records = _read_folder(where, allowed)
    elif where.suffix == ".json":
        records = _read_json(where, allowed)
    else:
        found, metadata = _read_file_of_tensors(where, allowed)
        records = [*found, *_tied(where, found, [metadata])]
    return Checkpoint(where, records, allowed)


def _is_folder(where: Where) -> bool:
    """Whether it is a folder; an object whose name ends as that of a model's file is none."""
    if isinstance(where, ObjectPath):
        # Of a web server, which has no lists, all are files.
        return where.suffix not in _SUFFIXES and not where.scheme.startswith("http")
    try:
        return where.is_dir()
    except OSError:  # the system refuses to access it
        return False


def _read_folder(folder: Where, allowed: Sequence[str]) -> list[Record]:
    try:
        names = list_names(folder)
    except OSError as error:
        raise FileError(folder, f"cannot be listed: {reason(error)}") from None
    for name in (_INDEX, *_CACHES):
        if name in names:
            return _read_json(folder / name, allowed)
    found = [sorted(name for name in names if name.endswith(end)) for end in _SUFFIXES[:2]]
    files = [folder / name for name in found[0] or found[1]]
    if not files:
        expected = f"expected {_INDEX}, {_CACHES[0]}, *.safetensors or *.gguf in this folder"
        raise FileError(folder, f"{expected}, found none")
    records: dict[str, Record] = {}
    metadata: list[Metadata] = []
    for file in files:
        found, said = _read_file_of_tensors(file, allowed)
        metadata.append(said)
        for record in found:
            if record.name in records:
                other = records[record.name].file.name
                raise FileError(file, f"it is also in {other}", tensor=record.name)
            records[record.name] = record
    return [*records.values(), *_tied(folder, records.values(), metadata)]


def _read_file_of_tensors(path: Where, allowed: Sequence[str]) -> tuple[list[Record], Metadata]:
    with DataFile(path, allowed) as file:
        # As the length of a safetensors header these four bytes are more than it may be.
        if file.size >= len(gguf.MAGIC) and file.read(len(gguf.MAGIC)) == gguf.MAGIC:
            return gguf.read_header(file), {}
        return read_with_metadata(file)


def _tied(path: Where, records: Iterable[Record], metadata: Iterable[Metadata]) -> list[Record]:
    """The tensors that are there by a second name only.

    Of tensors that share their memory the format's library writes one, and ``{second name: its
    name}`` into the file's metadata, or into those of the index where there are several files.

    Args:
        path: What was opened.
        records: The model's tensors.
        metadata: What its files and its index say besides.

    Raises:
        FileError: A name is one of two tensors.
    """
    held = {record.name: record for record in records}
    tied: dict[str, Record] = {}
    for said in metadata:
        for name, kept in said.items():
            if name == _FORMAT or name in held or not isinstance(kept, str) or kept not in held:
                continue
            other = tied.setdefault(name, replace(held[kept], name=name, same_as=kept))
            if other.same_as != kept:
                problem = f"the metadata name it {other.same_as!r} and {kept!r}"
                raise FileError(path, problem, tensor=name)
    return list(tied.values())


def _read_json(path: Where, allowed: Sequence[str]) -> list[Record]:
    with DataFile(path, allowed) as file:
        if file.size > _MAX_JSON:
            raise FileError(path, f"expected at most {_MAX_JSON} bytes of JSON, got {file.size}")
        text = file.read(file.size)
    content = parse_json(path, text)
    if "weight_map" in content:
        return _read_index(path, content["weight_map"], content.get("metadata"), allowed)
    if "records" in content:
        return read_tensor_cache(path, text)
    raise FileError(path, "expected 'weight_map' (a safetensors index) or 'records'")


def _read_index(
    path: Where, weight_map: object, said: object, allowed: Sequence[str]
) -> list[Record]:
    entries = cast("dict[str, object]", weight_map) if isinstance(weight_map, dict) else {}
    if not isinstance(weight_map, dict):
        raise FileError(path, "expected the file of each tensor under 'weight_map'")
    names_of: dict[str, list[str]] = {}
    for name, file in entries.items():
        if not isinstance(file, str) or not file or "\0" in file:
            raise FileError(path, f"expected the name of its file, got {file!r:.80}", tensor=name)
        names_of.setdefault(file, []).append(name)
    records: list[Record] = []
    metadata: list[Metadata] = [cast("Metadata", said)] if isinstance(said, dict) else []
    missing: dict[str, set[str]] = {}
    for file, names in sorted(names_of.items()):
        found, of_file = _read_file_of_tensors(path.parent / file, allowed)
        metadata.append(of_file)
        # Others that the file may hold do not belong to the model.
        wanted = set(names)
        own = [record for record in found if record.name in wanted]
        missing[file] = wanted - {record.name for record in own}
        records += own
    tied = _tied(path, records, metadata)
    for file, names in missing.items():
        if lacking := sorted(names - {record.name for record in tied}):
            more = f" and {len(lacking) - _NAMED} more" if len(lacking) > _NAMED else ""
            listed = ", ".join(map(repr, lacking[:_NAMED]))
            raise FileError(path.parent / file, f"{path.name} says it holds {listed}{more}")
    return [*records, *tied]


# One tensor of a file on this worker's disk, of which each worker reads its own part.


_MAX_HEADER = 16 << 10


@dataclass(frozen=True, slots=True)
class FlatTensor(TensorFile):
    """A tensor whose numbers lie one behind the other in a file.

    Attributes:
        stored: The dtype of its bytes.
        offset: Of its first byte.
        reversed: Whether its bytes are in Fortran's order, the first axis the fastest.
    """

    stored: np.dtype[Any]
    offset: int
    reversed: bool = False

    def read(self, bounds: Bounds, allowed: Sequence[str]) -> np.ndarray[Any, Any]:
        """Reads a part; see `TensorFile.read`."""
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


def open_safetensors(path: str, name: str, allowed: Sequence[str]) -> FlatTensor:
    """Finds a tensor in any of the files that ``open_checkpoint`` reads.

    Raises:
        FileNotAllowed: The allow-list does not cover the file.
        FileError: It is missing or malformed, or has no such tensor.
    """
    opened = open_checkpoint(path, allowed)
    found = {record.name: record for record in opened.records}
    record = found.get(name)
    if record is None:
        has = nearest_names(name, found)
        raise FileError(opened.path, f"it has no tensor {name!r}; it has {has}")
    stored = find_dtype(record.stored)
    if stored is None or not record.dtype:
        raise FileError(
            record.file, f"no array can have its dtype {record.stored}", tensor=record.name
        )
    return FlatTensor(record.file, record.shape, record.dtype, stored, record.offset)


def open_npy(path: str, allowed: Sequence[str]) -> FlatTensor:
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
    return FlatTensor(where, tuple(shape), name, stored, stream.tell(), bool(fortran))


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
