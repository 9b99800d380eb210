"""What a worker computes of its parts for those of numpy's functions that are no ufuncs.

The client calls the same on hardly an element to know the dtype of a result. Each takes the module
of the arrays, numpy or cupy, then the operands, then what numpy's function takes by name.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from disco_client.wire.equal_bins import count_equal_bins

__all__ = ["NUMPY_PARTS", "NumpyPart"]

Array = Any
NumpyPart = Callable[..., Any]


def _same(name: str) -> NumpyPart:
    """The function of numpy as it is."""

    def compute(xp: Any, *operands: Any, **options: Any) -> Array:
        return getattr(xp, name)(*operands, **options)

    return compute


def _one_of(name: str) -> NumpyPart:
    """One of the results of a function that has several."""

    def compute(xp: Any, *operands: Any, output: int, **options: Any) -> Array:
        return getattr(xp, name)(*operands, **options)[output]

    return compute


def _polyval(xp: Any, x: Array, p: Array) -> Array:
    return xp.polyval(p, x)


def _choose(xp: Any, a: Array, *choices: Array, mode: str) -> Array:
    return xp.choose(a, list(choices), mode=mode)


def _unravel_index(
    xp: Any, indices: Array, *, shape: Sequence[int], order: str, output: int
) -> Array:
    return xp.unravel_index(indices, tuple(shape), order=order)[output]


def _ravel_multi_index(
    xp: Any, *places: Array, dims: Sequence[int], mode: Any, order: str
) -> Array:
    modes = mode if isinstance(mode, str) else tuple(mode)
    return xp.ravel_multi_index(places, tuple(dims), mode=modes, order=order)


def _searchsorted(xp: Any, v: Array, a: Array, *, side: str) -> Array:
    return xp.searchsorted(a, v, side=side)


def _take_along(xp: Any, x: Array, places: Array, *, axis: int) -> Array:
    return xp.take_along_axis(x, places, axis=axis)


def _vander(xp: Any, x: Array, *, n: int, increasing: bool, axis: int) -> Array:
    """Of a column, which the axis goes along."""
    del axis
    return xp.vander(x[:, 0], n, increasing=increasing)


def _filtered(name: str) -> NumpyPart:
    def compute(xp: Any, a: Array, v: Array, *, mode: str, axis: int) -> Array:
        del axis
        return getattr(xp, name)(a, v, mode=mode)

    return compute


def _sort_part(xp: Any, x: Array) -> Array:
    return xp.sort(x)


def _first_ones(xp: Any, x: Array, *, equal_nan: bool) -> Array:
    """Which of sorted elements are the first of equal ones."""
    out = xp.ones(x.shape, bool)
    out[1:] = x[1:] != x[:-1]
    if equal_nan and x.dtype.kind in "fcmM":
        out[1:] &= ~(xp.isnan(x[1:]) & xp.isnan(x[:-1]))
    return out


def _first_places(xp: Any, x: Array, places: Array, *, length: int) -> Array:
    """Of each number below a length the least place at which it is; the largest integer if none."""
    out = xp.full(max(length, 1), np.iinfo(np.int64).max)  # also for the client's one element
    xp.minimum.at(out, x, places)
    return out[:length]


def _bincount(xp: Any, x: Array, *weights: Array, length: int) -> Array:
    return xp.bincount(x, *weights, minlength=length)


def _between(low: Array, high: Array) -> list[tuple[float, float]]:
    return list(zip(low.reshape(-1).tolist(), high.reshape(-1).tolist(), strict=True))


def _histogram(
    xp: Any, x: Array, *more: Array, bins: int = 0, weighted: bool = False, given: bool = False
) -> Array:
    """Counts between edges that are given, or in so many bins between the ends that are."""
    weights, where = (more[0], more[1:]) if weighted else (None, more)
    if given:
        return xp.histogram(x, where[0], weights=weights)[0]
    (ends,) = _between(*where)
    counts = count_equal_bins(x, bins, ends) if xp is np and weights is None else None
    return xp.histogram(x, bins, range=ends, weights=weights)[0] if counts is None else counts


def _histogram_edges(xp: Any, low: Array, high: Array, *, bins: int) -> Array:
    (ends,) = _between(low, high)
    return xp.histogram_bin_edges(xp.zeros(0, low.dtype), bins, range=ends)


def _histogramdd(
    xp: Any, sample: Array, *more: Array, bins: Sequence[int] = (), weighted: bool = False
) -> Array:
    """The same of points, the rows of a sample, in bins of each axis."""
    weights, where = (more[0], more[1:]) if weighted else (None, more)
    if not bins:
        return xp.histogramdd(sample, list(where), weights=weights)[0]
    return xp.histogramdd(sample, list(bins), range=_between(*where), weights=weights)[0]


NUMPY_PARTS: Mapping[str, NumpyPart] = {
    **{
        name: _same(name)
        for name in (
            *("real", "imag", "angle", "isreal", "iscomplex", "isneginf", "isposinf", "fix"),
            *("sinc", "i0", "interp", "digitize", "isin", "is_busday", "busday_count"),
            *("busday_offset", "packbits", "unpackbits"),
        )
    },
    **{name: _one_of(name) for name in ("modf", "frexp")},
    "polyval": _polyval,
    "choose": _choose,
    "unravel_index": _unravel_index,
    "ravel_multi_index": _ravel_multi_index,
    "searchsorted": _searchsorted,
    "take_along_axis": _take_along,
    "vander": _vander,
    "convolve": _filtered("convolve"),
    "correlate": _filtered("correlate"),
    "sort_part": _sort_part,
    "first_ones": _first_ones,
    "first_places": _first_places,
    "bincount": _bincount,
    "histogram": _histogram,
    "histogram_edges": _histogram_edges,
    "histogramdd": _histogramdd,
}
"""By numpy's names, and two that belong to one."""
