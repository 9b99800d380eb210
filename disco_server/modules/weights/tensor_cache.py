"""The tensor-cache.json that MLC models come with: data files, and what lies where in them."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any, cast

from disco_server.modules.weights.errors import FileError
from disco_server.modules.weights.records import (
    Record,
    check_layout,
    find_dtype,
    first_twice,
    is_count,
    parse_json,
    read_shape,
)

__all__ = ["read_tensor_cache"]

_NARROW = "f32-to-bf16"
"""A record of float32 whose bytes are the upper halves of its numbers."""


def read_tensor_cache(path: Path, text: bytes | str) -> list[Record]:
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


def _read_file(path: Path, entry: Any) -> list[Record]:
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


def _read_record(path: Path, file: Path, entry: Any) -> Record:
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
