"""The header of a safetensors file.

The format: eight bytes with the length of the header, little-endian; the header,
a JSON object that gives each tensor's dtype, shape and the range of its bytes
behind the header; the bytes, without holes.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np

from disco_client.wire.values import dtype_name
from disco_server.storage.files import (
    DataFile,
    FileError,
    Record,
    check_layout,
    is_count,
    parse_json,
    read_shape,
)

__all__ = [
    "DTYPES",
    "METADATA",
    "PREFIX",
    "FileLayout",
    "header_digest",
    "lay_out",
    "read_header",
    "read_with_metadata",
    "stored_as",
]


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
"""By the format's dtype names: the name of the dtype, and the bits of an element."""


def read_header(file: DataFile) -> list[Record]:
    """Reads and checks what a safetensors file says of its tensors.

    Returns:
        The tensors in the order of their bytes.

    Raises:
        FileError: The file is no safetensors file, or was cut off.
    """
    return read_with_metadata(file)[0]


def read_with_metadata(file: DataFile) -> tuple[list[Record], dict[str, Any]]:
    """Reads what a safetensors file says of its tensors, as `read_header`, and its metadata.

    Raises:
        FileError: The file is no safetensors file, or was cut off.
    """
    path = file.path
    length = _header_length(file)
    header = parse_json(path, file.read(length, PREFIX))
    found = header.pop(METADATA, None)
    metadata = cast("dict[str, Any]", found) if isinstance(found, dict) else {}
    base = PREFIX + length
    records = [_read_record(file, name, entry, base) for name, entry in header.items()]
    check_layout(path, records, base, file.size)
    used = sum(record.nbytes for record in records)
    if used != file.size - base:
        problem = f"its tensors have {used} bytes, the file has {file.size - base} for them"
        raise FileError(path, problem)
    return sorted(records, key=lambda record: (record.offset, record.nbytes)), metadata


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


# The header of a safetensors file that is to be written.


_WORDS = {name: word for word, (name, _) in DTYPES.items() if name}
_ALIGNMENT = 8


@dataclass(frozen=True, slots=True)
class FileLayout:
    """A file as it will be.

    Attributes:
        head: Its bytes before those of the tensors.
        offsets: Where each tensor's bytes begin, in the order in which they were given.
        nbytes: The size of the whole file.
    """

    head: bytes
    offsets: tuple[int, ...]
    nbytes: int


def stored_as(dtype: np.dtype[Any]) -> tuple[str, tuple[int, ...]]:
    """How elements of a dtype are stored in a file: the format's dtype, and axes that come last.

    A dtype that the format lacks is written as what an element consists of: complex
    numbers of 128 bits as pairs of F64, everything else as bytes.
    """
    word = _WORDS.get(dtype_name(dtype))
    if word is not None:
        return word, ()
    if dtype == np.complex128:
        return "F64", (2,)
    return "U8", (dtype.itemsize,)


def lay_out(
    tensors: Sequence[tuple[str, np.dtype[Any], tuple[int, ...]]], metadata: Mapping[str, str]
) -> FileLayout:
    """Decides where everything lies in a file; those of large elements come first.

    Args:
        tensors: Name, dtype and shape of each; all names are different.
        metadata: The metadata of the file.
    """
    header: dict[str, Any] = {METADATA: dict(metadata)} if metadata else {}
    begins = [0] * len(tensors)
    at = 0
    for number in sorted(range(len(tensors)), key=lambda n: -tensors[n][1].itemsize):
        name, dtype, shape = tensors[number]
        word, more = stored_as(dtype)
        end = at + math.prod(shape) * dtype.itemsize
        header[name] = {"dtype": word, "shape": [*shape, *more], "data_offsets": [at, end]}
        begins[number], at = at, end
    text = json.dumps(header, ensure_ascii=False, separators=(",", ":")).encode()
    text += b" " * (-len(text) % _ALIGNMENT)
    head = len(text).to_bytes(PREFIX, "little") + text
    return FileLayout(head, tuple(len(head) + begin for begin in begins), len(head) + at)
