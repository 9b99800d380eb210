"""Softmax and the normalisations, for numpy and cupy.

They are bound by memory, and of numpy's functions each goes through all of it. On a
host they therefore work through rows that fit a core's cache, all steps on one piece
before the next; on a GPU, which is slow at being asked, each step takes all.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

__all__ = ["layer_norm", "rms_norm", "softmax"]

Array = Any

_FEWEST_BYTES = 4
"""Of an element that is computed with; sums of halves would be a few percent off."""

_PIECE = 1 << 18
"""Elements of a piece: a megabyte of float32, about what a core has of cache to itself."""


def softmax(xp: Any, x: Array, *, axis: int) -> Array:
    """The exponentials of what is there, divided by their sum along an axis."""

    def fill(rows: Array, out: Array) -> None:
        # Of rows without elements there is no largest.
        high = rows.max(axis=-1, keepdims=True) if rows.size else 0
        xp.subtract(rows, high, out=out)
        xp.exp(out, out=out)
        out /= _sums(xp, out)

    return _by_rows(xp, x, axis, fill)


def layer_norm(xp: Any, x: Array, *weights: Array, axis: int, epsilon: float) -> Array:
    """What is there less its mean, by its standard deviation; Ba et al., arXiv:1607.06450.

    Args:
        xp: The module of the arrays.
        x: Real floating-point numbers.
        *weights: A scale and a shift along the axis, or one of them, or none.
        axis: Along which axis.
        epsilon: What is added to the variance.
    """

    def fill(rows: Array, out: Array) -> None:
        xp.subtract(rows, _means(xp, rows), out=out)
        out *= _factors(xp, out, epsilon)
        _weigh(out, weights)

    return _by_rows(xp, x, axis, fill)


def rms_norm(xp: Any, x: Array, *weights: Array, axis: int, epsilon: float) -> Array:
    """What is there by its root mean square; Zhang and Sennrich, arXiv:1910.07467.

    Args:
        xp: The module of the arrays.
        x: Real floating-point numbers.
        *weights: A scale and a shift along the axis, or one of them, or none.
        axis: Along which axis.
        epsilon: What is added to the mean square.
    """

    def fill(rows: Array, out: Array) -> None:
        xp.multiply(rows, _factors(xp, rows, epsilon), out=out)
        _weigh(out, weights)

    return _by_rows(xp, x, axis, fill)


def _factors(xp: Any, rows: Array, epsilon: float) -> Array:
    kind = rows.dtype.type
    return kind(1) / xp.sqrt(_means(xp, xp.square(rows)) + kind(epsilon))


def _means(xp: Any, rows: Array) -> Array:
    return _sums(xp, rows) / rows.dtype.type(max(rows.shape[1], 1))


def _sums(xp: Any, rows: Array) -> Array:
    # As a product with a vector, which is several times faster than sum().
    return (rows @ xp.ones(rows.shape[1], rows.dtype))[:, None]


def _weigh(out: Array, weights: Sequence[Array]) -> None:
    for number, weight in enumerate(weights):
        if number:
            out += weight
        else:
            out *= weight


def _by_rows(xp: Any, x: Array, axis: int, fill: Callable[[Array, Array], None]) -> Array:
    """Computes along an axis, a piece of rows at a time.

    Args:
        xp: The module of the arrays.
        x: Any shape.
        axis: The axis that rows go along.
        fill: Computes [rows, width] of [rows, width], which may be the same memory.
    """
    moved = xp.moveaxis(x, axis, -1)
    width = moved.shape[-1]
    count = math.prod(moved.shape[:-1])
    rows = moved.reshape(count, width)
    out = xp.empty((count, width), x.dtype)
    narrow = x.dtype.itemsize < _FEWEST_BYTES
    for piece in _pieces(count, width) if xp is np else (slice(None),):
        if narrow:
            wide = rows[piece].astype(np.float32)
            fill(wide, wide)
            out[piece] = wide
        else:
            fill(rows[piece], out[piece])
    return xp.ascontiguousarray(xp.moveaxis(out.reshape(moved.shape), -1, axis))


def _pieces(count: int, width: int) -> Iterator[slice]:
    step = max(1, _PIECE // max(width, 1))
    for start in range(0, count, step):
        yield slice(start, start + step)
