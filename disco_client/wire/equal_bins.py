"""How many numbers lie in each of some bins of one width, exactly as ``numpy.histogram`` says.

numpy compares each number with two edges of its bin. Here only those are compared that lie so near
to an edge that rounding may have put them on the wrong side, which needs a third of the time.
"""

from __future__ import annotations

from typing import Any

import numpy as np

__all__ = ["count_equal_bins"]

Array = Any

_BLOCK = 1 << 15
"""How many numbers are counted at a time, so that they stay in a core's cache."""
_NEAR = 1e-6
"""How near to an edge, in widths of a bin, a number is compared with it."""


def count_equal_bins(x: Array, bins: int, ends: tuple[float, float]) -> Array | None:
    """Counts the numbers of an array; None where numpy must.

    Args:
        x: numpy's, of any shape.
        bins: How many bins.
        ends: Where the first one begins, and the last one ends.

    Returns:
        ``numpy.histogram(x, bins, ends)[0]``; None if the dtype is not float64, there are so many
        bins that rounding reaches across them, or the ends are not two finite numbers in order.
    """
    low, high = map(float, ends)
    span = high - low
    if x.dtype != np.float64 or not 0 < span < np.inf or not bins / span < np.inf:
        return None
    near = _NEAR + 8 * np.finfo(float).eps * max(abs(low), abs(high)) * bins / span
    if near > _NEAR * 1000 or bins > _BLOCK:
        return None
    edges = np.histogram_bin_edges(np.zeros(0), bins, ends)
    flat = x.reshape(-1)
    counts = np.zeros(bins, np.intp)
    widths, numbers = np.empty(_BLOCK), np.empty(_BLOCK, np.intp)
    for start in range(0, flat.size, _BLOCK):
        part = flat[start : start + _BLOCK]
        at, number = widths[: part.size], numbers[: part.size]
        if not (part.min() >= low and part.max() < high):  # some are outside, the last edge, or nan
            counts += np.histogram(part, bins, ends)[0]
            continue
        np.subtract(part, low, out=at)
        at *= bins / span
        np.copyto(number, at, casting="unsafe")
        at -= number
        at -= 0.5
        np.abs(at, out=at)
        if at.max() > 0.5 - near:
            unsure = np.flatnonzero(at > 0.5 - near)
            number[unsure] = np.searchsorted(edges, part[unsure], "right") - 1
        counts += np.bincount(number, minlength=bins)
    return counts
