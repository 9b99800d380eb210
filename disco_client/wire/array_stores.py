"""What stores of arrays can hold, and their chunks: what both sides know of `session.save`."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Final

from disco_client.errors import ConfigError
from disco_client.wire.partition import Bounds

__all__ = ["FORMATS", "check_dtype", "check_format", "check_names", "chunk_shape", "whole_chunks"]


_REALS: Final = (
    *(f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)),
    "float32",
    "float64",
)
_NUMBERS: Final = (*_REALS, "bool", "float16", "complex64", "complex128")

FORMATS: Final = {"hdf5": (*_NUMBERS, "bfloat16"), "netcdf": _REALS, "zarr": _NUMBERS}
"""The formats by name, each with the dtypes that it has."""

_ZARR_OWN: Final = ("zarr.json", ".zarray", ".zgroup", ".zattrs", ".zmetadata")


def check_format(name: object) -> str:
    """Returns the name of a format.

    Raises:
        ConfigError: There is no such format.
    """
    if not isinstance(name, str) or name not in FORMATS:
        msg = f"expected the format 'disco' or one of {', '.join(map(repr, FORMATS))}, got {name!r}"
        raise ConfigError(msg)
    return name


def check_dtype(form: str, name: str, dtype: str) -> None:
    """Checks that a format has a tensor's dtype.

    Args:
        form: The format.
        name: The tensor's name.
        dtype: The name of its dtype.

    Raises:
        ConfigError: It has not.
    """
    if dtype not in FORMATS[form]:
        msg = (
            f"{name!r} has dtype {dtype}, which format {form!r} does not have; it has"
            f" {', '.join(FORMATS[form])}. Convert it with astype, or save it without format"
        )
        raise ConfigError(msg)


def check_names(form: str, names: Iterable[str]) -> None:
    """Checks that names can be paths of arrays: the part behind the last ``/`` is in groups.

    Args:
        form: The format.
        names: All names of a store.

    Raises:
        ConfigError: A part of one is empty or reserved, or is a group and an array.
    """
    held = set(names)
    for name in held:
        parts = name.split("/")
        reserved = form == "zarr" and any(p in _ZARR_OWN or p.startswith("__") for p in parts)
        if reserved or "\0" in name or any(part in ("", ".", "..") for part in parts):
            msg = (
                f"expected the name of an array of format {form!r}, such as 'group/w', got {name!r}"
            )
            raise ConfigError(msg)
        for end in range(1, len(parts)):
            group = "/".join(parts[:end])
            if group in held:
                msg = f"{group!r} cannot be an array and the group of {name!r}"
                raise ConfigError(msg)


_CHUNK_BYTES: Final = 8 << 20


def chunk_shape(part: Sequence[int], itemsize: int) -> tuple[int, ...]:
    """The chunks in which a tensor is stored: of at most 8 MiB, and a part has whole ones.

    The parts of workers have whole chunks where they are equally large and divide well.

    Args:
        part: The extents of the largest part of a worker.
        itemsize: The bytes of an element.
    """
    chunks = [max(1, extent) for extent in part]
    for axis, extent in enumerate(chunks):
        if math.prod(chunks) * itemsize <= _CHUNK_BYTES:
            break
        row = math.prod(chunks[axis + 1 :]) * itemsize
        chunks[axis] = _even_share(extent, max(1, _CHUNK_BYTES // row))
    return tuple(chunks)


def _even_share(extent: int, most: int) -> int:
    """A divisor of an extent that is at most so large and at least half of it, if there is one."""
    fewest = -(-extent // most)
    found = (extent // count for count in range(fewest, 2 * fewest) if extent % count == 0)
    return next(found, most)


def whole_chunks(bounds: Bounds, chunks: Sequence[int], shape: Sequence[int]) -> Bounds | None:
    """What of a part no other worker's part shares a chunk with; None where that is nothing.

    Args:
        bounds: Of the part.
        chunks: The shape of a chunk.
        shape: Of the whole tensor.
    """
    inside: list[tuple[int, int]] = []
    for (start, stop), chunk, extent in zip(bounds, chunks, shape, strict=True):
        first = -(-start // chunk) * chunk
        last = stop if stop == extent else stop // chunk * chunk
        if first >= last:
            return None
        inside.append((first, last))
    return tuple(inside)
