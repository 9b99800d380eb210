"""What a file says of a tensor, and whether that can be true."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeGuard, cast

import numpy as np

from disco_client.errors import ConfigError
from disco_client.wire.values import dtype_from_name
from disco_server.modules.weights.errors import FileError

__all__ = [
    "Record",
    "check_layout",
    "find_dtype",
    "first_twice",
    "is_count",
    "parse_json",
    "read_shape",
]

_MAX_COUNT = (1 << 63) - 1
_MAX_DIMS = 64


@dataclass(frozen=True, slots=True)
class Record:
    """One tensor in a file.

    Attributes:
        name: Its name.
        shape: Its extents.
        dtype: The name of its dtype once it is loaded; empty where it cannot be.
        stored: The name of the dtype that its bytes have in the file.
        file: Where its bytes are.
        offset: Of its first byte.
        nbytes: How many bytes it has in the file.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    stored: str
    file: Path
    offset: int
    nbytes: int


@lru_cache(maxsize=256)
def find_dtype(name: str) -> np.dtype[Any] | None:
    """The dtype of a name; None where there is none that an array may have."""
    try:
        dtype = dtype_from_name(name)
    except ConfigError:
        return None
    return dtype if dtype.kind in "biufcV" and dtype.itemsize else None


def is_count(value: object) -> TypeGuard[int]:
    """Whether a value is an integer that can be a size or an offset."""
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= _MAX_COUNT


def read_shape(value: object) -> tuple[int, ...] | None:
    """A shape from JSON; None where it is none, or one that no memory holds."""
    if not isinstance(value, (list, tuple)):
        return None
    dims = tuple(cast("Sequence[object]", value))
    if len(dims) > _MAX_DIMS or not all(is_count(dim) for dim in dims):
        return None
    shape = cast("tuple[int, ...]", dims)
    # Zeros must not hide what the other extents multiply to.
    return shape if math.prod(dim for dim in shape if dim) <= _MAX_COUNT else None


def check_layout(path: Path, records: Iterable[Record], first: int, size: int) -> None:
    """Checks that tensors lie inside a file, and none on another.

    Args:
        path: The file, for the error.
        records: Its tensors.
        first: The first offset at which a tensor may lie.
        size: The bytes of the file.

    Raises:
        FileError: They do not.
    """
    before, end = "", first
    for record in sorted(records, key=lambda record: (record.offset, record.nbytes)):
        stop = record.offset + record.nbytes
        if record.offset < first or stop > size:
            problem = f"expected bytes between {first} and {size}, got {record.offset} to {stop}"
            raise FileError(path, problem, tensor=record.name)
        if record.nbytes and record.offset < end:
            raise FileError(path, f"its bytes overlap those of {before!r}", tensor=record.name)
        if record.nbytes:
            before, end = record.name, stop


def first_twice(names: Iterable[str]) -> str | None:
    """The first name that was there before; None where there is none."""
    seen: set[str] = set()
    return next((name for name in names if name in seen or seen.add(name)), None)


def parse_json(path: Path | str, text: bytes | str) -> dict[str, Any]:
    """Reads a JSON object, strictly: UTF-8, and no key twice.

    Raises:
        FileError: It is none.
    """

    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) < len(pairs):
            raise FileError(path, f"the key {first_twice(k for k, _ in pairs)!r} is there twice")
        return found

    try:
        text = text.decode() if isinstance(text, bytes) else text
        content: object = json.loads(text, object_pairs_hook=once)
        # Escapes may stand for what UTF-8 cannot encode, and no name may hold.
        json.dumps(content, ensure_ascii=False).encode()
    except FileError:
        raise
    except (ValueError, RecursionError) as error:
        raise FileError(path, f"expected JSON, got: {error}") from None
    if not isinstance(content, dict):
        raise FileError(path, f"expected a JSON object, got a {type(content).__name__}")
    return cast("dict[str, Any]", content)
