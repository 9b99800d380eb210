"""Parts of tensors that are cut along any of their axes, read from files."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np

from disco_client.wire.arrays import empty_array
from disco_client.wire.layout import Bounds, shape_within
from disco_server.modules.weights.files import DataFile
from disco_server.modules.weights.ranges import plan_box, read_strips

__all__ = ["read_box"]

_AT_ONCE = 16 << 20
"""How much is read beside its place, where that does not lie in one piece."""


def read_box(
    file: DataFile, offset: int, shape: tuple[int, ...], bounds: Bounds, out: np.ndarray[Any, Any]
) -> None:
    """Reads a part of a tensor, and no byte more than reading it sensibly takes.

    Args:
        file: The tensor's file.
        offset: Of the tensor's first byte.
        shape: Of the whole tensor, in C order.
        bounds: Of the part.
        out: An array of the part's shape and the tensor's dtype; it may be a part of
            a larger one.

    Raises:
        FileError: The file ends before, or the disk does not deliver.
    """
    if out.flags.c_contiguous:
        flat, at = out.reshape(-1).view(np.uint8), 0
        for start, strips in plan_box(shape, out.itemsize, bounds):
            read_strips(file, offset + start, strips, flat[at : at + strips.nbytes])
            at += strips.nbytes
        return
    for piece, place in _pieces(bounds, out.itemsize):
        held = empty_array(shape_within(piece), out.dtype)
        read_box(file, offset, shape, piece, held)
        out[place] = held


def _pieces(bounds: Bounds, itemsize: int) -> Iterator[tuple[Bounds, tuple[slice, ...]]]:
    """Cuts a part into rows of a limited size; with where each is inside the part."""
    extents = shape_within(bounds)
    # What does not lie in one piece has an axis with several indices.
    axis = next(axis for axis, extent in enumerate(extents) if extent > 1)
    start, stop = bounds[axis]
    each = max(1, _AT_ONCE // (math.prod(extents[axis + 1 :]) * itemsize))
    for first in range(start, stop, each):
        some = (first, min(first + each, stop))
        piece = (*bounds[:axis], some, *bounds[axis + 1 :])
        inside = slice(some[0] - start, some[1] - start)
        yield piece, (*(slice(None),) * axis, inside)
