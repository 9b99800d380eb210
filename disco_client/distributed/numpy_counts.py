"""numpy's counts of distributed tensors: in bins, of each number, and among sorted numbers.

Each worker counts what it has, and the counts are partial sums; no element moves. Edges of bins
that follow from the data are computed on the workers, from the least and the largest element.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import numpy as np

from disco_client.distributed.composites import Composite, Steps
from disco_client.distributed.dtensor import Computing, DTensor
from disco_client.distributed.numpy_arguments import array_of
from disco_client.distributed.numpy_rules import options_of
from disco_client.distributed.ops import as_index, integers
from disco_client.errors import ConfigError, DtypeError

__all__ = ["COUNTS"]

_PLANE = 2


def _edges_given(name: str, bins: Any) -> Any:
    """Edges of bins; None where it is the number of bins that is given.

    Raises:
        ConfigError: They are neither, or edges of the host that do not increase.
    """
    if isinstance(bins, str):
        raise ConfigError(
            f"{name}: a number of bins that follows from the data ({bins!r}) has no rule; give it,"
            " or numpy.histogram_bin_edges(x.numpy(), ...)"
        )
    count = as_index(bins)
    if count is not None and not isinstance(bins, DTensor):
        if count < 1:
            raise ConfigError(f"{name}: expected a number of bins from 1, got {count}")
        return None
    edges = array_of(bins)
    if edges.ndim != 1:
        raise ConfigError(f"{name}: expected a number of bins or their edges, got {bins!r}")
    if not isinstance(edges, DTensor) and (edges[:-1] > edges[1:]).any():
        raise ConfigError(f"{name}: expected edges that increase, got {edges}")
    return edges


def _ends(steps: Steps, name: str, x: DTensor, limits: Any, axis: Any = None) -> tuple[Any, Any]:
    """The first and the last edge: as given, or the least and the largest element.

    Raises:
        ConfigError: Those that are given are no interval.
    """
    if limits is not None:
        low, high = limits
        if not (np.isfinite(low) and np.isfinite(high) and low <= high):
            raise ConfigError(f"{name}: expected a range from smaller to larger, got {limits}")
        return low, high
    count = x.size if axis is None else x.shape[0]
    if not count:
        return (0.0, 1.0) if axis is None else (np.zeros(x.shape[1]), np.ones(x.shape[1]))
    return steps.call("min", x, axis=axis), steps.call("max", x, axis=axis)


def _edges(
    steps: Steps, x: DTensor, ends: tuple[Any, Any], bins: int, dtype: Any = None
) -> DTensor:
    """So many equal bins between two ends; of a dtype where the ends are given."""
    options = options_of(bins=bins)
    if not any(isinstance(each, DTensor) for each in ends):
        return _on_all(steps, x, np.histogram_bin_edges(np.zeros(0, dtype or x.dtype), bins, ends))
    return steps.call(
        "counts", *ends, function="histogram_edges", shape=(bins + 1,), tables=2, named=options
    )


def _on_all(steps: Steps, x: DTensor, host: np.ndarray[Any, Any]) -> DTensor:
    everywhere = ", ".join("R" for _ in x.mesh.shape)
    return steps.keep(x.__array_namespace__().asarray(host, placement=everywhere))


def _tensor(steps: Steps, x: Any, *others: Any) -> DTensor:
    """What is counted on the mesh of the others; truth values as numbers."""
    given = array_of(x)
    if not isinstance(given, DTensor):
        mesh = next(each for each in others if isinstance(each, DTensor))
        given = steps.keep(mesh.__array_namespace__().asarray(given))
    return given if given.dtype.kind != "b" else steps.call("cast", given, dtype="uint8")


def _weights(name: str, weights: Any, x: Any) -> list[Any]:
    if weights is None:
        return []
    given = array_of(weights)
    if tuple(given.shape) != tuple(x.shape):
        raise ConfigError(
            f"{name}: weights of shape {tuple(given.shape)} do not fit {tuple(x.shape)}"
        )
    return [given]


def _density(steps: Steps, counts: DTensor, widths: Sequence[Any]) -> DTensor:
    """Counts by their sum and by the width of each bin."""
    total = steps.call("sum", counts)
    out = counts
    for axis, width in enumerate(widths):
        shape = [-1 if at == axis else 1 for at in range(len(widths))]
        out = steps.call("true_divide", out, np.reshape(width, shape))
    return steps.call("true_divide", out, total)


def _histogram(
    engine: Computing,
    a: Any,
    bins: Any = 10,
    range: Any = None,  # noqa: A002  (numpy's name)
    density: bool | None = None,
    weights: Any = None,
) -> tuple[DTensor, DTensor]:
    steps = Steps(engine)
    given = _edges_given("histogram", bins)
    x = _tensor(steps, a, bins, weights)
    more = _weights("histogram", weights, x)
    if given is None:
        ends = _ends(steps, "histogram", x, range)
        edges = _edges(steps, x, ends, int(bins))
        where = tuple(map(array_of, ends))
        named = {"bins": int(bins)}
    else:
        where = (given,)
        edges = given if isinstance(given, DTensor) else _on_all(steps, x, given)
        named = {"given": True}
    count = edges.shape[0] - 1
    options = options_of(weighted=bool(more), **named)
    found = steps.call(
        "counts",
        x,
        *more,
        *where,
        function="histogram",
        shape=(count,),
        tables=len(where),
        named=options,
    )
    if density:
        _density(steps, found, [np.diff(cast("Any", edges))])
    return steps.result("histogram"), edges


def _histogram_bin_edges(
    engine: Computing,
    a: DTensor,
    bins: Any = 10,
    range: Any = None,  # noqa: A002  (numpy's name)
    weights: Any = None,
) -> DTensor:
    del weights  # which matter only where the number of bins follows from the data
    steps = Steps(engine)
    given = _edges_given("histogram_bin_edges", bins)
    a = _tensor(steps, a, bins)
    if given is not None:
        return given if isinstance(given, DTensor) else _on_all(steps, a, given)
    _edges(steps, a, _ends(steps, "histogram_bin_edges", a, range), int(bins))
    return steps.result("histogram_bin_edges")


def _histogramdd(
    engine: Computing,
    sample: Any,
    bins: Any = 10,
    range: Any = None,  # noqa: A002  (numpy's name)
    density: bool | None = None,
    weights: Any = None,
) -> tuple[DTensor, tuple[DTensor, ...]]:
    """Of points: the rows of a matrix, or vectors of their coordinates."""
    steps = Steps(engine)
    points = sample
    if not isinstance(sample, DTensor):
        columns = [array_of(each) for each in sample]
        points = np.stack(columns, axis=-1)
    points = _tensor(steps, points, weights)
    if points.ndim != _PLANE:
        raise ConfigError(f"histogramdd: expected points, got {tuple(points.shape)}")
    axes = points.shape[1]
    each = [bins] * axes if as_index(bins) is not None else list(bins)
    if len(each) != axes:
        raise ConfigError(f"histogramdd: expected bins for each of {axes} axes, got {len(each)}")
    given = [_edges_given("histogramdd", one) for one in each]
    more = _weights("histogramdd", weights, points[:, 0]) if weights is not None else []
    if all(one is None for one in given):
        counts = [int(one) for one in each]
        pairs = _corners(steps, points, range)
        edges = [
            _edges(steps, points, ends, count, np.float64)
            for ends, count in zip(pairs, counts, strict=True)
        ]
        where: list[Any] = [_stacked([pair[end] for pair in pairs]) for end in (0, 1)]
        named = options_of(bins=tuple(counts), weighted=bool(more))
    else:
        edges = [
            _axis_edges(steps, points, axis, one, each[axis], range)
            for axis, one in enumerate(given)
        ]
        where, named = edges, options_of(weighted=bool(more))
    shape = tuple(one.shape[0] - 1 for one in edges)
    options: dict[str, Any] = {"shape": shape, "whole": (1,), "tables": len(where), "named": named}
    found = steps.call("counts", points, *more, *where, function="histogramdd", **options)
    if density:
        _density(steps, found, [np.diff(cast("Any", one)) for one in edges])
    return steps.result("histogramdd"), tuple(edges)


def _corners(steps: Steps, points: DTensor, limits: Any) -> list[tuple[Any, Any]]:
    """The least and the largest of each coordinate, as given or found."""
    axes = points.shape[1]
    if limits is None:
        low, high = _ends(steps, "histogramdd", points, None, axis=0)
        return [(low[axis], high[axis]) for axis in np.arange(axes)]
    if len(limits) != axes:
        raise ConfigError(f"histogramdd: expected a range for each of {axes} axes, got {limits}")
    return [_ends(steps, "histogramdd", points[:, axis], each) for axis, each in enumerate(limits)]


def _stacked(ends: list[Any]) -> Any:
    given: list[Any] = [array_of(each) for each in ends]
    return np.stack(given)


def _axis_edges(
    steps: Steps, points: DTensor, axis: int, given: Any, bins: Any, limits: Any
) -> DTensor:
    if given is not None:
        return given if isinstance(given, DTensor) else _on_all(steps, points, given)
    column = points[:, axis]
    ends = _ends(steps, "histogramdd", column, None if limits is None else limits[axis])
    return _edges(steps, column, ends, int(bins), np.float64)


def _histogram2d(
    engine: Computing,
    x: Any,
    y: Any,
    bins: Any = 10,
    range: Any = None,  # noqa: A002  (numpy's name)
    density: bool | None = None,
    weights: Any = None,
) -> tuple[DTensor, DTensor, DTensor]:
    one, other = array_of(x), array_of(y)
    if one.ndim != 1 or tuple(one.shape) != tuple(other.shape):
        raise ConfigError(
            f"histogram2d: expected equally long vectors, got {tuple(one.shape)} and"
            f" {tuple(other.shape)}"
        )
    if as_index(bins) is None and (isinstance(bins, DTensor) or len(bins) not in (1, _PLANE)):
        bins = [bins, bins]  # edges of both
    found, (first, second) = _histogramdd(engine, (one, other), bins, range, density, weights)
    return found._explained_as("histogram2d"), first, second


def _bincount(engine: Computing, x: DTensor, /, weights: Any = None, minlength: Any = 0) -> DTensor:
    """Waits for the least and the largest number, from which the length of the result follows."""
    if x.ndim != 1:
        raise ConfigError(f"bincount: expected a vector, got {tuple(x.shape)}")
    if x.dtype.kind not in "iub" or x.dtype == np.uint64:
        raise DtypeError(f"bincount: expected integers that are positions, got {x.dtype}")
    (length,) = integers("bincount", (minlength,))
    if length < 0:
        raise ConfigError(f"bincount: expected a minlength from 0, got {length}")
    more = _weights("bincount", weights, x)
    steps = Steps(engine)
    x = _tensor(steps, x)
    if x.size:
        ends = np.stack([steps.call("min", x), steps.call("max", x)])  # type: ignore[list-item]
        least, most = ends.tolist()
        if least < 0:
            raise ConfigError(f"bincount: expected numbers from 0, got {least}")
        length = max(length, most + 1)
    if more and np.can_cast(more[0].dtype, np.float64, "safe"):
        more = [more[0].astype("float64")]
    steps.call(
        "counts",
        x,
        *more,
        function="bincount",
        shape=(length,),
        named=options_of(length=length),
    )
    return steps.result("bincount")


def _searchsorted(
    engine: Computing, a: Any, v: Any, side: str = "left", sorter: Any = None
) -> DTensor:
    """In sorted numbers that may be split: each worker has its part of the answer."""
    if side not in ("left", "right"):
        raise ConfigError(f"searchsorted: expected 'left' or 'right' as the side, got {side!r}")
    table, wanted = array_of(a), array_of(v)
    if table.ndim != 1:
        raise ConfigError(f"searchsorted: expected a vector to search, got {tuple(table.shape)}")
    steps = Steps(engine)
    if sorter is not None:
        table = (
            steps.call("take", table, sorter)
            if isinstance(table, DTensor) or isinstance(sorter, DTensor)
            else table[np.asarray(sorter)]
        )
    steps.call("ranks", wanted, table, side=side)
    return steps.result("searchsorted")


def _digitize(engine: Computing, x: Any, bins: Any, right: bool = False) -> DTensor:
    """In which bin each element is; every worker has the edges."""
    edges = array_of(bins)
    if edges.ndim != 1:
        raise ConfigError(f"digitize: expected a vector of edges, got {tuple(edges.shape)}")
    if not isinstance(edges, DTensor):
        apart = edges[1:] >= edges[:-1], edges[1:] <= edges[:-1]
        if not any(each.all() for each in apart):
            raise ConfigError(f"digitize: expected edges that rise or fall, got {edges}")
    made = engine.call(
        "elements",
        array_of(x),
        edges,
        function="digitize",
        tables=1,
        named=options_of(right=bool(right)),
    )
    return made._explained_as("digitize")


COUNTS: dict[str, Composite] = {
    "histogram": _histogram,
    "histogram_bin_edges": _histogram_bin_edges,
    "histogram2d": _histogram2d,
    "histogramdd": _histogramdd,
    "bincount": _bincount,
    "searchsorted": _searchsorted,
    "digitize": _digitize,
}
"""By numpy's names."""
