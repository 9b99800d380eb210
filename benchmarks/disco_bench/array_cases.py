"""What is done with arrays by Disco, Heat, dask.array and numpy; knows none of the first three.

Each of them brings an `ArrayKit`: its module of numpy's names, the same arrays, and what numpy has
no name for. The rest is written once.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

__all__ = [
    "CASES",
    "ArrayCase",
    "ArrayKit",
    "Data",
    "action_of",
    "expected",
    "jacobi_step",
    "make_data",
    "numpy_kit",
    "refuse_unequal",
]

Array = Any

COLUMNS, SIDE, CLUSTERS, BINS = 64, 1536, 8, 64
SWEEPS, ROUNDS_OF_MEANS = 10, 3


class ArrayCase(NamedTuple):
    """One thing to do.

    Attributes:
        name: Short, for keys and between processes.
        what: For people.
        times: How often it is done for one figure.
    """

    name: str
    what: str
    times: int


CASES = {
    case.name: case
    for case in (
        ArrayCase("elementwise", "x * 2 + 1", 3),
        ArrayCase("sum", "sum", 5),
        ArrayCase("std", "std along axis 0", 2),
        ArrayCase("tall", "x.T @ x", 2),
        ArrayCase("square", f"product of two {SIDE} x {SIDE}", 2),
        ArrayCase("resplit", "split by rows -> by columns", 2),
        ArrayCase("head", "x[:8].sum()", 50),
        ArrayCase("roll", "roll by a row", 1),
        ArrayCase("histogram", f"histogram of {BINS} bins", 2),
        ArrayCase("normals", f"as many random normals, {COLUMNS} columns", 1),
        ArrayCase("jacobi", f"stencil of 4 neighbours, {SWEEPS} steps", 1),
        ArrayCase("kmeans", f"k-means of {CLUSTERS}, {ROUNDS_OF_MEANS} steps", 1),
    )
}


class Data(NamedTuple):
    """The whole arrays, float64.

    Attributes:
        x: [rows, COLUMNS].
        left: [SIDE, SIDE], or fewer where there are fewer rows.
        right: The same shape.
    """

    x: np.ndarray[Any, Any]
    left: np.ndarray[Any, Any]
    right: np.ndarray[Any, Any]


def make_data(rows: int) -> Data:
    """The same arrays in every process."""
    random = np.random.default_rng(0)
    side = min(SIDE, rows)
    return Data(*(random.random(shape) for shape in ((rows, COLUMNS), (side, side), (side, side))))


class ArrayKit(NamedTuple):
    """What one library brings.

    Attributes:
        xp: Its module, with numpy's names.
        x: As `Data.x`, split by rows.
        left: As `Data.left`, split by rows.
        right: As `Data.right`, split by rows.
        double: Its name for float64.
        everywhere: Brings a small result to all workers, where it is not.
        resplit: Brings an array that is split by rows to a split by columns.
        sweep: One step of `jacobi_step` of the whole.
        normals: Draws random normals of a shape, split by rows.
        histogram: Counts numbers from 0 to 1 in so many bins.
    """

    xp: Any
    x: Array
    left: Array
    right: Array
    double: Any
    everywhere: Callable[[Array], Array]
    resplit: Callable[[Array], Array]
    sweep: Callable[[Array], Array]
    normals: Callable[[tuple[int, int]], Array]
    histogram: Callable[[Array, int], Array]


def jacobi_step(part: Array) -> Array:
    """Each inner element as the mean of its neighbours; those at the edges stay."""
    out = part.clone() if hasattr(part, "clone") else part.copy()
    out[1:-1, 1:-1] = (part[:-2, 1:-1] + part[2:, 1:-1] + part[1:-1, :-2] + part[1:-1, 2:]) / 4
    return out


def _jacobi(kit: ArrayKit) -> Array:
    return functools.reduce(lambda array, _: kit.sweep(array), range(SWEEPS), kit.x)


def _means(kit: ArrayKit) -> Array:
    xp, x = kit.xp, kit.x
    centres = kit.everywhere(x[:CLUSTERS])
    for _ in range(ROUNDS_OF_MEANS):
        apart = xp.sum(centres * centres, axis=1) - 2 * (x @ centres.T)
        nearest = xp.expand_dims(xp.argmin(apart, axis=1), 1)
        members = (nearest == xp.arange(CLUSTERS)).astype(kit.double)
        counts = xp.expand_dims(xp.sum(members, axis=0), 1)
        centres = kit.everywhere((members.T @ x) / counts)
    return centres


def _elementwise(kit: ArrayKit) -> Array:
    return kit.x * 2 + 1


def _sum(kit: ArrayKit) -> Array:
    return kit.everywhere(kit.xp.sum(kit.x))


def _std(kit: ArrayKit) -> Array:
    return kit.everywhere(kit.xp.std(kit.x, axis=0))


def _tall(kit: ArrayKit) -> Array:
    return kit.everywhere(kit.x.T @ kit.x)


def _square(kit: ArrayKit) -> Array:
    return kit.left @ kit.right


def _resplit(kit: ArrayKit) -> Array:
    return kit.resplit(kit.x)


def _head(kit: ArrayKit) -> Array:
    return kit.everywhere(kit.x[:8].sum())


def _histogram(kit: ArrayKit) -> Array:
    return kit.everywhere(kit.histogram(kit.x, BINS))


def _normals(kit: ArrayKit) -> Array:
    rows, columns = kit.x.shape
    return kit.normals((rows, columns))


def _roll(kit: ArrayKit) -> Array:
    return kit.xp.roll(kit.x, 1, axis=0)


_ACTIONS: dict[str, Callable[[ArrayKit], Array]] = {
    "elementwise": _elementwise,
    "sum": _sum,
    "std": _std,
    "tall": _tall,
    "square": _square,
    "resplit": _resplit,
    "head": _head,
    "roll": _roll,
    "histogram": _histogram,
    "normals": _normals,
    "jacobi": _jacobi,
    "kmeans": _means,
}


def action_of(name: str, kit: ArrayKit) -> Callable[[], Array]:
    """A function that does a case once."""
    return functools.partial(_ACTIONS[name], kit)


def numpy_kit(data: Data) -> ArrayKit:
    """That of numpy, for which a split by columns is another order in memory."""
    return ArrayKit(
        np,
        *data,
        np.float64,
        np.asarray,
        np.asfortranarray,
        jacobi_step,
        np.random.default_rng(0).standard_normal,
        _numpy_histogram,
    )


def _numpy_histogram(array: Array, bins: int) -> Array:
    return np.histogram(array, bins, (0, 1))[0]


def expected(name: str, data: Data) -> np.ndarray[Any, Any]:
    """The whole result, by numpy."""
    return np.asarray(action_of(name, numpy_kit(data))())


def refuse_unequal(name: str, result: np.ndarray[Any, Any], data: Data) -> None:
    """A fast wrong result would be no achievement; sums differ by rounding."""
    if name == "normals":  # each library draws its own
        error = result.size**-0.5
        assert result.shape == data.x.shape
        assert abs(result.mean()) < 6 * error
        assert abs(result.std() - 1) < 6 * error
        return
    assert np.allclose(result, expected(name, data), rtol=1e-9), name
