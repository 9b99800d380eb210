"""A model's weights on disk: one file or several, in any of the formats, read in parts."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from functools import cached_property
from pathlib import Path
from typing import Any, cast

import numpy as np

from disco_client.wire.arrays import empty_array
from disco_client.wire.splits import Intervals
from disco_client.wire.values import is_floating
from disco_server.modules.weights.errors import FileError
from disco_server.modules.weights.files import DataFile, absolute_path, check_allowed
from disco_server.modules.weights.ranges import plan_part, read_strips
from disco_server.modules.weights.records import Record, find_dtype, parse_json
from disco_server.modules.weights.safetensors_header import read_header
from disco_server.modules.weights.tensor_cache import read_tensor_cache

__all__ = ["Checkpoint", "Part", "open_checkpoint", "read_record"]

Part = tuple[int, Intervals]
"""A share of a tensor: an axis, and pieces of it."""

_INDEX = "model.safetensors.index.json"
_CACHES = ("tensor-cache.json", "ndarray-cache.json")
_MAX_JSON = 256 << 20
_NAMED = 5


class Checkpoint:
    """What files hold, as far as their headers say.

    Attributes:
        path: What was opened.
        records: Its tensors, in the order in which they are best read.
        bytes_read: How many bytes of tensors were read so far.
    """

    def __init__(self, path: Path, records: Sequence[Record], allowed: Sequence[str]) -> None:
        self.path = path
        self.records = tuple(records)
        self.bytes_read = 0
        self._allowed = tuple(allowed)

    @cached_property
    def fingerprint(self) -> str:
        """Tells checkpoints apart that differ in a name, a shape or a dtype."""
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
            FileError: A file changed, or the disk does not deliver.
        """
        arrays: list[np.ndarray[Any, Any]] = []
        with ExitStack() as stack:
            files: dict[Path, DataFile] = {}
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
    stored = find_dtype(record.stored)
    if stored is None or not record.dtype:
        problem = f"no array can have its dtype {record.stored}"
        raise FileError(record.file, problem, tensor=record.name)
    axis, pieces = part or (0, ((0, record.shape[0]),) if record.shape else ())
    if record.shape:
        strips = plan_part(record.shape, stored.itemsize, axis, pieces)
        extent = sum(stop - start for start, stop in pieces)
        shape = (*record.shape[:axis], extent, *record.shape[axis + 1 :])
    else:
        strips, shape = plan_part((1,), stored.itemsize, 0, ((0, 1),)), ()
    if record.offset + record.nbytes > file.size:
        problem = f"expected {record.nbytes} bytes from offset {record.offset}"
        problem += f", the file has {file.size} bytes"
        raise FileError(record.file, problem, tensor=record.name)
    array = empty_array(shape, stored)
    read_strips(file, record.offset, strips, array.reshape(-1).view(np.uint8))
    target = find_dtype(record.dtype)
    if dtype and is_floating(record.dtype):
        target = find_dtype(dtype)
    if target is None or target == stored:
        return array
    converted = empty_array(shape, target)
    converted[...] = array
    return converted


# Finding out what is there -------------------------------------------------------


def open_checkpoint(path: str, allowed: Sequence[str]) -> Checkpoint:
    """Reads the headers of a model's files.

    Args:
        path: A safetensors file, a safetensors index, a tensor-cache.json, or a
            folder with such files.
        allowed: What may be read (see `file_allowed`).

    Raises:
        FileNotAllowed: The allow-list does not cover one of the files.
        FileError: One is missing or malformed.
    """
    where = absolute_path(path)
    check_allowed(where, allowed)
    if _holds(where.is_dir):
        records = _read_folder(where, allowed)
    elif where.suffix == ".json":
        records = _read_json(where, allowed)
    else:
        records = _read_safetensors(where, allowed)
    return Checkpoint(where, records, allowed)


def _holds(question: Callable[[], bool]) -> bool:
    """Asks about a path; one that the system refuses to look at is nothing."""
    try:
        return question()
    except OSError:
        return False


def _read_folder(folder: Path, allowed: Sequence[str]) -> list[Record]:
    for name in (_INDEX, *_CACHES):
        if _holds((folder / name).exists):
            return _read_json(folder / name, allowed)
    files = sorted(folder.glob("*.safetensors"))
    if not files:
        expected = f"expected {_INDEX}, {_CACHES[0]} or *.safetensors in this folder"
        raise FileError(folder, f"{expected}, found none")
    records: dict[str, Record] = {}
    for file in files:
        for record in _read_safetensors(file, allowed):
            if record.name in records:
                other = records[record.name].file.name
                raise FileError(file, f"it is also in {other}", tensor=record.name)
            records[record.name] = record
    return list(records.values())


def _read_safetensors(path: Path, allowed: Sequence[str]) -> list[Record]:
    with DataFile(path, allowed) as file:
        return read_header(file)


def _read_json(path: Path, allowed: Sequence[str]) -> list[Record]:
    with DataFile(path, allowed) as file:
        if file.size > _MAX_JSON:
            raise FileError(path, f"expected at most {_MAX_JSON} bytes of JSON, got {file.size}")
        text = file.read(file.size)
    content = parse_json(path, text)
    if "weight_map" in content:
        return _read_index(path, content["weight_map"], allowed)
    if "records" in content:
        return read_tensor_cache(path, text)
    raise FileError(path, "expected 'weight_map' (a safetensors index) or 'records'")


def _read_index(path: Path, weight_map: object, allowed: Sequence[str]) -> list[Record]:
    entries = cast("dict[str, object]", weight_map) if isinstance(weight_map, dict) else {}
    if not isinstance(weight_map, dict):
        raise FileError(path, "expected the file of each tensor under 'weight_map'")
    names_of: dict[str, list[str]] = {}
    for name, file in entries.items():
        if not isinstance(file, str) or not file or "\0" in file:
            raise FileError(path, f"expected the name of its file, got {file!r:.80}", tensor=name)
        names_of.setdefault(file, []).append(name)
    records: list[Record] = []
    for file, names in sorted(names_of.items()):
        # Others that the file may hold do not belong to the model.
        wanted = set(names)
        found = [r for r in _read_safetensors(path.parent / file, allowed) if r.name in wanted]
        if len(found) < len(wanted):
            missing = sorted(wanted - {record.name for record in found})
            more = f" and {len(missing) - _NAMED} more" if len(missing) > _NAMED else ""
            listed = ", ".join(map(repr, missing[:_NAMED]))
            raise FileError(path.parent / file, f"{path.name} says it holds {listed}{more}")
        records += found
    return records
