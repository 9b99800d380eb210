"""The header of a safetensors file.

The format: eight bytes with the length of the header, little-endian; the header,
a JSON object that gives each tensor's dtype, shape and the range of its bytes
behind the header; the bytes, without holes.
"""

from __future__ import annotations

import hashlib
import math
from typing import Any, cast

from disco_server.modules.weights.errors import FileError
from disco_server.modules.weights.files import DataFile
from disco_server.modules.weights.records import (
    Record,
    check_layout,
    is_count,
    parse_json,
    read_shape,
)

__all__ = ["DTYPES", "METADATA", "PREFIX", "header_digest", "read_header"]

_MAX_HEADER = 100_000_000
"""The same limit as that of the format's own library."""

PREFIX = 8
"""The bytes before the header."""

METADATA = "__metadata__"

DTYPES: dict[str, tuple[str, int]] = {
    "BOOL": ("bool", 8),
    "U8": ("uint8", 8),
    "I8": ("int8", 8),
    "U16": ("uint16", 16),
    "I16": ("int16", 16),
    "U32": ("uint32", 32),
    "I32": ("int32", 32),
    "U64": ("uint64", 64),
    "I64": ("int64", 64),
    "F16": ("float16", 16),
    "BF16": ("bfloat16", 16),
    "F32": ("float32", 32),
    "F64": ("float64", 64),
    "C64": ("complex64", 64),
    "F8_E4M3": ("float8_e4m3fn", 8),
    "F8_E5M2": ("float8_e5m2", 8),
    "F8_E8M0": ("float8_e8m0fnu", 8),
    "F8_E4M3FNUZ": ("float8_e4m3fnuz", 8),
    "F8_E5M2FNUZ": ("float8_e5m2fnuz", 8),
    # Several elements share a byte, which no array of numpy's can hold.
    "F6_E2M3": ("", 6),
    "F6_E3M2": ("", 6),
    "F4": ("", 4),
}
"""The format's words: the name of the dtype, and the bits of an element."""


def read_header(file: DataFile) -> list[Record]:
    """Reads and checks what a safetensors file says of its tensors.

    Returns:
        The tensors in the order of their bytes.

    Raises:
        FileError: The file is no safetensors file, or was cut off.
    """
    path = file.path
    length = _header_length(file)
    header = parse_json(path, file.read(length, PREFIX))
    header.pop(METADATA, None)
    base = PREFIX + length
    records = [_read_record(file, name, entry, base) for name, entry in header.items()]
    check_layout(path, records, base, file.size)
    used = sum(record.nbytes for record in records)
    if used != file.size - base:
        problem = f"its tensors have {used} bytes, the file has {file.size - base} for them"
        raise FileError(path, problem)
    return sorted(records, key=lambda record: (record.offset, record.nbytes))


def header_digest(file: DataFile) -> str:
    """The SHA-256 of what precedes the tensors' bytes, in hexadecimal.

    Raises:
        FileError: The file is no safetensors file.
    """
    return hashlib.sha256(file.read(PREFIX + _header_length(file))).hexdigest()


def _header_length(file: DataFile) -> int:
    if file.size < PREFIX:
        raise FileError(file.path, f"expected a safetensors file, this one has {file.size} bytes")
    length = int.from_bytes(file.read(PREFIX), "little")
    if length > min(_MAX_HEADER, file.size - PREFIX):
        problem = f"expected a header within its {file.size} bytes, it says {length}"
        raise FileError(file.path, problem)
    return length


def _read_record(file: DataFile, name: str, entry: Any, base: int) -> Record:
    def refuse(problem: str) -> FileError:
        return FileError(file.path, problem, tensor=name)

    if not isinstance(entry, dict):
        raise refuse(f"expected its dtype, shape and data_offsets, got {entry!r:.80}")
    fields = cast("dict[str, Any]", entry)
    word, offsets = fields.get("dtype"), fields.get("data_offsets")
    shape = read_shape(fields.get("shape"))
    if not isinstance(word, str) or word not in DTYPES:
        raise refuse(f"expected a dtype such as 'F32', got {word!r:.80}")
    if shape is None:
        raise refuse(f"expected a shape such as [2, 3], got {fields.get('shape')!r:.80}")
    begin, end = _read_offsets(offsets)
    if begin is None or end is None or begin > end:
        raise refuse(f"expected data_offsets [begin, end], got {offsets!r:.80}")
    dtype, bits = DTYPES[word]
    if math.prod(shape) * bits != (end - begin) * 8:
        raise refuse(f"{word}{list(shape)} does not fit its {end - begin} bytes")
    return Record(name, shape, dtype, dtype or word, file.path, base + begin, end - begin)


def _read_offsets(value: Any) -> tuple[int | None, int | None]:
    pair = cast("list[Any]", value) if isinstance(value, list) else []
    good = len(pair) == 2 and is_count(pair[0]) and is_count(pair[1])  # noqa: PLR2004
    return (pair[0], pair[1]) if good else (None, None)
