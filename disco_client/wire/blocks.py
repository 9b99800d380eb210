"""Blocks of the elements of a tensor in C order: the arithmetic that both sides share.

Random tensors are drawn block by block. A worker draws the blocks that it has elements of; these
are found here, on the workers to draw them and on the client to bring parameters there.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

__all__ = ["drawn_elements", "run_axis", "spanned", "strides_of"]

_Pieces = Sequence[Sequence[Sequence[int]]]
"""Of each axis the first index and the one behind the last of each piece."""


def strides_of(shape: Sequence[int]) -> list[int]:
    """How many elements lie between neighbours along each axis."""
    return [math.prod(shape[axis + 1 :]) for axis in range(len(shape))]


def run_axis(shape: Sequence[int], pieces: _Pieces, block: int) -> int:
    """The axis along which a piece is read as one run of elements, with all that it encloses.

    All that is behind it is wanted, or is less than a block, so that leaving it out saves nothing.

    Args:
        shape: Of the tensor, which has axes.
        pieces: What the part has of each axis.
        block: How many elements a block has.
    """
    axis, stride, whole = len(shape) - 1, 1, True
    while axis:
        stride *= shape[axis]
        whole = whole and _length(pieces[axis]) == shape[axis]
        if not whole and stride >= block:
            break
        axis -= 1
    return axis


def _length(held: Sequence[Sequence[int]]) -> int:
    return sum(last - first for first, last in held)


def spanned(shape: Sequence[int], pieces: _Pieces, block: int) -> tuple[int, int]:
    """From which element to behind which one the blocks reach that a part has elements of.

    Args:
        shape: Of the tensor.
        pieces: What the part has of each axis, in ascending order.
        block: How many elements a block has.
    """
    held = [[piece for piece in axis if piece[0] < piece[1]] for axis in pieces]
    if not all(held):
        return 0, 0
    strides = strides_of(shape)
    first = sum(axis[0][0] * stride for axis, stride in zip(held, strides, strict=True))
    last = sum((axis[-1][1] - 1) * stride for axis, stride in zip(held, strides, strict=True))
    return first // block * block, min(math.prod(shape), (last // block + 1) * block)


def drawn_elements(shape: Sequence[int], pieces: _Pieces, block: int) -> int:
    """About how many elements are drawn for a part, those included that it does not have.

    Args:
        shape: Of the tensor, which has axes.
        pieces: What the part has of each axis.
        block: How many elements a block has.
    """
    lengths = list(map(_length, pieces))
    if not all(lengths):
        return 0
    axis, strides = run_axis(shape, pieces, block), strides_of(shape)
    runs = [-(-(last - first) * strides[axis] // block) for first, last in pieces[axis]]
    return min(math.prod(shape), math.prod(lengths[:axis]) * sum(runs) * block)
