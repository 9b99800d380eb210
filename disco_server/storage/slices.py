"""Which bytes of a tensor a worker's part is, and how to read them efficiently."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from disco_client.wire.arrays import empty_array
from disco_client.wire.partition import Bounds, Intervals, shape_within

if TYPE_CHECKING:
    from disco_server.storage.files import DataFile

__all__ = ["Strips", "plan_box", "plan_part", "read_box", "read_strips"]


_GAP = 128
"""Bytes between two pieces up to which the gap is read rather than skipped with a call."""

_BLOCK = 1 << 20
"""How much is read at once where pieces are picked out of what was read."""

_REMOTE_GAP = 1 << 20
"""The same of an object in a store: in the time of a request that many bytes come."""

_REMOTE_BLOCK = 64 << 20


@dataclass(frozen=True, slots=True)
class Strips:
    """Bytes in equal patterns, one behind the other: the layout of a slice in C order.

    Attributes:
        count: How many patterns.
        stride: The bytes from one pattern's begin to the next one's.
        segments: What belongs to the part in each of them: offset and length,
            ascending, not empty, not adjacent.
    """

    count: int
    stride: int
    segments: tuple[tuple[int, int], ...]

    @property
    def nbytes(self) -> int:
        """The bytes of the part."""
        return self.count * sum(length for _, length in self.segments)

    @property
    def span(self) -> tuple[int, int]:
        """From where to where a pattern has bytes of the part."""
        last, length = self.segments[-1]
        return self.segments[0][0], last + length

    def pick_from_blocks(self, gap: int = _GAP, block: int = _BLOCK) -> bool:
        """Whether to read over the gaps: where they are small, and so a call costs more.

        Args:
            gap: Bytes that are read in the time of a call.
            block: How much is read at once.
        """
        if self.count == 1 or self.stride > block:
            return False
        calls = self.count * len(self.segments)
        begin, end = self.span
        covered = (self.count - 1) * self.stride + end - begin
        return covered - self.nbytes <= calls * gap


def plan_part(shape: Sequence[int], itemsize: int, axis: int, pieces: Intervals) -> Strips:
    """Finds the bytes of pieces of an axis.

    Args:
        shape: Of the whole tensor, in C order.
        itemsize: The bytes of an element.
        axis: The axis, from 0.
        pieces: Ranges of its indices, ascending, not overlapping.
    """
    inner = math.prod(shape[axis + 1 :]) * itemsize
    count, stride = math.prod(shape[:axis]), shape[axis] * inner
    segments = tuple((start * inner, (stop - start) * inner) for start, stop in pieces)
    if not count or not inner or not segments:
        return Strips(0, 0, ())
    if segments == ((0, stride),):
        return Strips(1, count * stride, ((0, count * stride),))
    return Strips(count, stride, segments)


def plan_box(shape: Sequence[int], itemsize: int, bounds: Bounds) -> Iterator[tuple[int, Strips]]:
    """Finds the bytes of a part that may be cut along any axes.

    Args:
        shape: Of the whole tensor, in C order.
        itemsize: The bytes of an element.
        bounds: Of the part.

    Yields:
        Pieces of it in C order, each with its offset: a single one, where only one
        axis is cut, or two of which the first has no other axes before it.
    """
    cuts = [axis for axis, extent in enumerate(shape) if bounds[axis] != (0, extent)]
    if any(start == stop for start, stop in bounds):
        return
    if len(cuts) <= 1:
        axis = cuts[0] if cuts else 0
        # Of a tensor without axes the one element.
        yield 0, plan_part((*shape, 1), itemsize, axis, ((*bounds, (0, 1))[axis],))
        return
    above, last = cuts[-2:]
    start, stop = bounds[above]
    # From one index along the axis above to the next, the pattern goes on.
    rows = (stop - start, *shape[above + 1 :])
    strips = plan_part(rows, itemsize, last - above, (bounds[last],))
    strides = [math.prod(shape[axis + 1 :]) * itemsize for axis in range(above + 1)]
    for index in itertools.product(*(range(*each) for each in bounds[:above])):
        offset = sum(at * stride for at, stride in zip((*index, start), strides, strict=True))
        yield offset, strips


def read_strips(file: DataFile, offset: int, strips: Strips, out: np.ndarray[Any, Any]) -> None:
    """Reads a part of a tensor.

    Args:
        file: The tensor's file.
        offset: Of the tensor's first byte.
        strips: The bytes of the part.
        out: Where they go: as many bytes, one-dimensional, contiguous.

    Raises:
        FileError: The file ends before, or the read failed.
    """
    if not strips.nbytes:
        return
    gap, block = (_REMOTE_GAP, _REMOTE_BLOCK) if file.is_remote else (_GAP, _BLOCK)
    if strips.pick_from_blocks(gap, block):
        _pick_from_blocks(file, offset, strips, out, block)
    else:
        file.read_pieces(_pieces(strips, offset, out.data))


def _pieces(strips: Strips, offset: int, out: memoryview) -> Iterator[tuple[memoryview, int]]:
    at = 0
    for index in range(strips.count):
        for start, length in strips.segments:
            yield out[at : at + length], offset + index * strips.stride + start
            at += length


def _pick_from_blocks(
    file: DataFile, offset: int, strips: Strips, out: np.ndarray[Any, Any], nbytes: int
) -> None:
    """Reads many patterns at once, gaps included, and copies the segments out of them."""
    begin, end = strips.span
    at_once = max(1, nbytes // strips.stride)
    block = np.empty(min(at_once, strips.count) * strips.stride, np.uint8)
    rows = out.reshape(strips.count, -1)
    for first in range(0, strips.count, at_once):
        some = min(at_once, strips.count - first)
        # Neither before the first pattern's segments nor behind the last one's.
        needed = (some - 1) * strips.stride + end
        start = offset + first * strips.stride + begin
        file.read_into(block.data[begin:needed], start)
        patterns = block[: some * strips.stride].reshape(some, strips.stride)
        at = 0
        for segment, length in strips.segments:
            rows[first : first + some, at : at + length] = patterns[:, segment : segment + length]
            at += length


# Parts of tensors that are cut along any of their axes, read from files.


_AT_ONCE = 16 << 20
"""How much is read into a buffer, where the destination is not contiguous."""


def read_box(
    file: DataFile, offset: int, shape: tuple[int, ...], bounds: Bounds, out: np.ndarray[Any, Any]
) -> None:
    """Reads a part of a tensor, and only small gaps besides.

    Args:
        file: The tensor's file.
        offset: Of the tensor's first byte.
        shape: Of the whole tensor, in C order.
        bounds: Of the part.
        out: An array of the part's shape and the tensor's dtype; it may be a part of
            a larger one.

    Raises:
        FileError: The file ends before, or the read failed.
    """
    if out.flags.c_contiguous:
        flat, at = out.reshape(-1).view(np.uint8), 0
        for start, strips in plan_box(shape, out.itemsize, bounds):
            read_strips(file, offset + start, strips, flat[at : at + strips.nbytes])
            at += strips.nbytes
        return
    for piece, place in _box_pieces(bounds, out.itemsize):
        held = empty_array(shape_within(piece), out.dtype)
        read_box(file, offset, shape, piece, held)
        out[place] = held


def _box_pieces(bounds: Bounds, itemsize: int) -> Iterator[tuple[Bounds, tuple[slice, ...]]]:
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
