"""Functions of distributed tensors that are composed of others."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from functools import cache
from itertools import pairwise
from typing import Any, SupportsIndex, cast

import numpy as np

from disco_client.distributed.dtensor import Computing, DTensor, several
from disco_client.distributed.ops import (
    as_index,
    integers,
    normal_axes,
    normal_axis,
    numpy_dtype,
    rule_for,
)
from disco_client.distributed.placement import Placement, PlacementSpec
from disco_client.distributed.slices import split_along, whole_along
from disco_client.errors import ConfigError, DtypeError, OutOfBounds
from disco_client.wire.array_likes import plain_array
from disco_client.wire.values import dtype_from_name

__all__ = ["COMPOSITES", "Composite", "Steps", "norm", "positions_of"]


Composite = Callable[..., Any]


class Steps:
    """Calls functions, and keeps what they make, so that the last one can explain all.

    Args:
        engine: Computes them.

    Attributes:
        engine: The same.
        made: What they made, in order.
    """

    def __init__(self, engine: Computing) -> None:
        self.engine = engine
        self.made: list[DTensor] = []

    def call(self, name: str, *operands: Any, **options: Any) -> DTensor:
        """Calls one."""
        return self.keep(self.engine.call(name, *operands, **options))

    def keep(self, made: DTensor) -> DTensor:
        """Keeps what was made in another way."""
        self.made.append(made)
        return made

    @property
    def last(self) -> DTensor:
        """What was made last."""
        return self.made[-1]

    def result(self, name: str) -> DTensor:
        """What was made last, as the result of a function of this name."""
        return self.last._explained_as(name, *self.made[:-1])


# Averages, and what is made of them.


_EXACT_BYTES = 4


def _wide(x: DTensor) -> np.dtype[Any]:
    """The dtype in which it is averaged: of halves single precision, of integers double."""
    if x.dtype.kind not in "fc" and x.dtype.name != "bfloat16":
        return np.dtype(np.float64)
    return x.dtype if x.dtype.itemsize >= _EXACT_BYTES else np.dtype(np.float32)


def _widened(steps: Steps, x: DTensor) -> DTensor:
    wide = _wide(x)
    return x if x.dtype == wide else steps.call("cast", x, dtype=wide)


def _summable(steps: Steps, x: DTensor) -> DTensor:
    """The same without partial values that are no sums, in which no other function is linear.

    What is used more than once would be combined as often.
    """
    if any(spec.is_partial and spec.op != "sum" for spec in x.placement.dim_specs):
        return steps.keep(x.redistribute(x.placement.combined()))
    return x


def _check_count(name: str, x: DTensor, count: float) -> None:
    """Refuses the average of nothing where the dtype has no NaN for it, as numpy does.

    Raises:
        ConfigError: There is nothing to be averaged.
    """
    if count <= 0 and x.dtype.name in ("int4", "uint4"):
        raise ConfigError(f"numpy.{name}: {x.dtype} has no average of no elements")


def _as_before(steps: Steps, x: DTensor, out: DTensor) -> DTensor:
    """Of halves the result is a half, too."""
    is_half = _wide(x).itemsize > x.dtype.itemsize and x.dtype.kind not in "biu"
    return steps.call("cast", out, dtype=x.dtype) if is_half else out


@cache
def _check_dtype(name: str, dtype: np.dtype[Any]) -> None:
    """Makes sure that one of numpy's functions takes a dtype.

    Raises:
        DtypeError: It does not.
    """
    numpy_dtype(f"numpy.{name}", lambda: getattr(np, name)(np.zeros(1, dtype)))


def _count(x: DTensor, axis: Any) -> int:
    return math.prod(x.shape[each] for each in normal_axes(axis, x.ndim))


def _mean(engine: Computing, x: DTensor, *, axis: Any = None, keepdims: bool = False) -> DTensor:
    _check_dtype("mean", x.dtype)
    _check_count("mean", x, _count(x, axis))
    steps = Steps(engine)
    # Timedeltas have a mean as they are, which no other dtype would add up.
    wide = None if x.dtype.kind == "m" else _wide(x)
    total = steps.call("sum", x, axis=axis, keepdims=keepdims, dtype=wide)
    _as_before(steps, x, steps.call("true_divide", total, float(_count(x, axis))))
    return steps.result("mean")


def _var(
    engine: Computing, x: DTensor, *, axis: Any = None, ddof: float = 0, keepdims: bool = False
) -> DTensor:
    _check_dtype("var", x.dtype)
    _check_count("var", x, _count(x, axis) - ddof)
    steps = Steps(engine)
    _as_before(steps, x, _variance(steps, x, axis, ddof, keepdims=keepdims))
    return steps.result("var")


def _std(
    engine: Computing, x: DTensor, *, axis: Any = None, ddof: float = 0, keepdims: bool = False
) -> DTensor:
    _check_dtype("std", x.dtype)
    _check_count("std", x, _count(x, axis) - ddof)
    steps = Steps(engine)
    variance = _variance(steps, x, axis, ddof, keepdims=keepdims)
    _as_before(steps, x, steps.call("sqrt", variance))
    return steps.result("std")


def _variance(steps: Steps, x: DTensor, axis: Any, ddof: float, *, keepdims: bool) -> DTensor:
    # In two passes, as numpy does it, because one would lose the digits of a large mean. Along
    # a split axis only sums move between workers, those of the mean and those of the squares.
    # The mean is added up in double precision, because parts are summed up in any order.
    wide, count = _summable(steps, _widened(steps, x)), float(_count(x, axis))
    exact = np.result_type(wide.dtype, np.float64)
    total = steps.call("sum", wide, axis=axis, keepdims=True, dtype=exact)
    mean = steps.call("true_divide", total, count)
    if mean.dtype != wide.dtype:
        mean = steps.call("cast", mean, dtype=wide.dtype)
    squares = _squares(steps, steps.call("subtract", wide, mean))
    total = steps.call("sum", squares, axis=axis, keepdims=keepdims)
    return steps.call("true_divide", total, float(max(count - ddof, 0.0)))


def _squares(steps: Steps, x: DTensor) -> DTensor:
    """Of complex numbers those of their sizes, as numpy's from both parts: of inf + nan j NaN."""
    if x.dtype.kind != "c":
        return steps.call("square", x)
    return steps.call("absolute", steps.call("multiply", steps.call("conjugate", x), x))


# Norms.


_MATRIX = 2


def norm(
    engine: Computing, x: DTensor, order: Any = None, axis: Any = None, *, keepdims: bool = False
) -> DTensor:
    """Computes what ``numpy.linalg.norm`` does, except norms that need singular values.

    Args:
        engine: Computes with the tensor.
        x: The tensor.
        order: ``ord`` of numpy.
        axis: One axis for vectors, two for matrices; None for all.
        keepdims: Whether axes stay, of extent 1.

    Raises:
        ConfigError: There is no such norm, or it has no rule.
    """
    steps = Steps(engine)
    axes = normal_axes(axis, x.ndim)
    wide = _widened(steps, x)
    euclidean = len(axes) == 1 and order == 2  # noqa: PLR2004
    frobenius = len(axes) == _MATRIX and order in ("fro", "f")
    if euclidean or frobenius or (order is None and (axis is None or len(axes) <= _MATRIX)):
        total = steps.call("sum", _squares(steps, wide), axis=axes, keepdims=keepdims)
        out = steps.call("sqrt", total)
    elif len(axes) == 1:
        out = _vector_norm(steps, wide, order, axes, keepdims=keepdims)
    elif len(axes) == _MATRIX:
        out = _matrix_norm(steps, wide, order, axes, keepdims=keepdims)
    else:
        raise ConfigError(f"numpy.linalg.norm takes one axis or two, got {len(axes)}")
    _as_before(steps, x, out)
    return steps.result("norm")


def _vector_norm(
    steps: Steps, x: DTensor, order: Any, axes: tuple[int, ...], *, keepdims: bool
) -> DTensor:
    if isinstance(order, str) or not isinstance(order, (int, float, np.number)):
        raise ConfigError(f"numpy.linalg.norm of vectors takes a number as ord, got {order!r}")
    power = float(cast("float", order))
    if not power:
        kind = np.abs(np.empty(0, x.dtype)).dtype
        count = steps.call("sum", steps.call("not_equal", x, 0), axis=axes, keepdims=keepdims)
        return steps.call("cast", count, dtype=kind)
    sizes = steps.call("absolute", x)
    if math.isinf(power):
        return steps.call("max" if power > 0 else "min", sizes, axis=axes, keepdims=keepdims)
    if power != 1:
        sizes = steps.call("power", sizes, power)
    total = steps.call("sum", sizes, axis=axes, keepdims=keepdims)
    return total if power == 1 else steps.call("power", total, 1 / power)


def _matrix_norm(
    steps: Steps, x: DTensor, order: Any, axes: tuple[int, ...], *, keepdims: bool
) -> DTensor:
    if order not in (1, -1, math.inf, -math.inf):
        raise ConfigError(
            f"numpy.linalg.norm of matrices has rules for ord None, 'fro', 1, -1, inf and -inf, got"
            f" {order!r}; singular values need all of a matrix: fetch it with .numpy()"
        )
    along = axes[0] if abs(order) == 1 else axes[1]
    sums = steps.call("sum", steps.call("absolute", x), axis=along, keepdims=True)
    return steps.call("max" if order > 0 else "min", sums, axis=axes, keepdims=keepdims)


# Running sums, products and extremes.


def _running(name: str, op: str) -> Composite:
    """The results of one of numpy's functions of two operands along an axis, element by element."""

    def running(
        engine: Computing, x: DTensor, *, axis: SupportsIndex | None = None, dtype: Any = None
    ) -> DTensor:
        steps = Steps(engine)
        if axis is None:
            x, axis = steps.call("reshape", x, shape=(-1,)), 0
        place = normal_axis(axis, x.ndim)
        said = None if dtype is None else dtype_from_name(dtype)
        accumulate = getattr(np, op).accumulate
        wanted = numpy_dtype(f"numpy.{name}", lambda: accumulate(np.zeros(1, x.dtype), dtype=said))
        if x.dtype != wanted:
            x = steps.call("cast", x, dtype=wanted)
        _run(steps, _summable(steps, x), place, op)
        return steps.result(name)

    return running


def _run(steps: Steps, x: DTensor, place: int, op: str) -> None:
    specs = x.placement.dim_specs
    if op != "add" and any(spec.is_partial for spec in specs):
        x = steps.keep(x.redistribute(x.placement.combined()))
        specs = x.placement.dim_specs
    split = [spec.axis == place for spec in specs]
    if not any(split) or any(spec.parts for spec in specs):
        steps.call("running_parts", x, axis=place, op=op)
        return
    # Each worker goes through its own part, on top of the totals of the parts before it.
    parts = math.prod(
        extent for extent, is_split in zip(x.mesh.shape, split, strict=True) if is_split
    )
    totals = steps.call("running_totals", x, axis=place, parts=parts, op=op)
    whole = PlacementSpec.replica()
    everywhere = Placement(
        whole if is_split else spec for spec, is_split in zip(specs, split, strict=True)
    )
    totals = steps.keep(totals.redistribute(everywhere))
    steps.call("running_parts", x, totals, axis=place, op=op)


# Parts.


def _split(
    _engine: Computing, x: DTensor, sections: Any, *, axis: SupportsIndex = 0, uneven: bool = False
) -> list[DTensor]:
    """Several tensors, of which each worker takes what it has; what has to move moves once."""
    place = normal_axis(axis, x.ndim)
    bounds = _bounds(sections, x.shape[place], uneven=uneven)
    moved: list[DTensor] = []
    if x.info.axes.count(place) > 1:
        x = x.redistribute(whole_along(x.info, (place,)))
        moved.append(x)
    before = (slice(None),) * place
    pieces = [x[*before, slice(*each)] for each in bounds]
    return [piece._explained_as("split", *moved) for piece in pieces]


def _bounds(sections: Any, extent: int, *, uneven: bool) -> list[tuple[int, int]]:
    """First and last of each section, by their number or by where the later ones begin."""
    count = as_index(sections)
    if count is None:
        at = [0, *integers("split", several(sections)), extent]
        return list(pairwise(at))
    if count < 1:
        raise ConfigError(f"expected a number of sections from 1, got {count}")
    each, more = divmod(extent, count)
    if more and not uneven:
        raise ConfigError(
            f"{extent} elements do not fall into {count} equal sections; numpy.array_split makes"
            " uneven ones"
        )
    at = [number * each + min(number, more) for number in range(count + 1)]
    return list(pairwise(at))


def _concatenate(engine: Computing, *operands: Any, axis: SupportsIndex = 0) -> DTensor:
    """Where the largest is split along the axis, each worker appends its parts of the others."""
    tensors = [each for each in operands if isinstance(each, DTensor)]
    meshes = {each.mesh for each in tensors}
    overlap = any(spec.overlaps for each in tensors for spec in each.placement.dim_specs)
    if len(tensors) < len(operands) or len(meshes) != 1 or overlap:
        return engine.call_rule("concatenate", *operands, axis=axis)
    wholes = [each.info.tensor_sinfo for each in tensors]
    result = rule_for("concatenate")(*wholes, axis=axis).result
    place = normal_axis(axis, result.ndim)
    largest = max(tensors, key=lambda each: each.nbytes)
    at = split_along(largest.info, place)
    specs = largest.placement.dim_specs
    if at is None or any(spec.is_partial for spec in specs):
        return engine.call_rule("concatenate", *operands, axis=axis)
    equal = Placement((*specs[:at], PlacementSpec.sharding(place), *specs[at + 1 :]))
    steps = Steps(engine)
    alike = [
        each
        if each.info.axes == largest.info.axes and _but(each, at) == _but(largest, at)
        else steps.keep(each.redistribute(equal))
        for each in tensors
    ]
    steps.keep(engine.append(alike, place, result.dtype))
    return steps.result("concatenate")


def _but(x: DTensor, mesh_axis: int) -> list[PlacementSpec]:
    """How a tensor lies along the other axes of the mesh."""
    return [spec for at, spec in enumerate(x.placement.dim_specs) if at != mesh_axis]


# Limits.


def _clip(engine: Computing, x: DTensor, low: Any = None, high: Any = None) -> DTensor:
    steps = Steps(engine)
    out = x
    if isinstance(x, DTensor) and x.dtype.kind in "iu":
        # As numpy does it: what a dtype cannot be beyond is no limit, where Python has it.
        info = np.iinfo(x.dtype)
        low = None if type(low) is int and low <= info.min else low
        high = None if type(high) is int and high >= info.max else high
    for name, limit in (("maximum", low), ("minimum", high)):
        if limit is not None:
            out = steps.call(name, out, limit)
    if out is x:
        steps.keep(x.redistribute(x.placement))
    return steps.result("clip")


# Positions. Those that are known here are checked here; on the workers, which check them again,
# one that is out of bounds would fail after the call has returned.


def _take(engine: Computing, x: Any, ids: Any, *, axis: SupportsIndex = 0) -> DTensor:
    if not isinstance(ids, DTensor):
        place = normal_axis(axis, np.ndim(x))
        before, extent = np.shape(x)[:place], np.shape(x)[place]
        # As in numpy: where nothing is taken, no position is out of bounds.
        ids = positions_of("take", ids, None if 0 in before else extent)
    return engine.call_rule("take", x, ids, axis=axis)


def positions_of(name: str, given: Any, extent: int | None) -> np.ndarray[Any, Any]:
    """Positions along an axis, counted from the front; 0 for all where any will do.

    Raises:
        DtypeError: They are no integers.
        OutOfBounds: One is beyond the axis.
    """
    found = plain_array(given)
    if not found.size and isinstance(given, (list, tuple)):
        found = found.astype(np.int64)  # as numpy does with []
    if found.dtype.kind not in "iu":
        raise DtypeError(f"{name} needs positions of an integer dtype, got {found.dtype}")
    if extent is None:
        return np.zeros(found.shape, np.int64)
    beyond = found[(found < -extent) | (found >= extent)]
    if beyond.size:
        raise OutOfBounds(f"{name}: position {beyond[0]} is out of bounds for an axis of {extent}")
    found = found.astype(np.int64)
    return np.where(found < 0, found + extent, found)


def _update(
    engine: Computing, x: Any, values: Any, start: Any, *, axis: SupportsIndex = 0
) -> DTensor:
    if not isinstance(start, DTensor):
        start = _start(start, np.shape(x), np.shape(values), normal_axis(axis, np.ndim(x)))
    return engine.call_rule("update", x, values, start, axis=axis)


def _start(start: Any, whole: Sequence[int], given: Sequence[int], axis: int) -> int:
    """Where an update begins, counted from the front.

    Raises:
        DtypeError: The start is no integer.
        OutOfBounds: What is given does not fit there.
    """
    try:
        first = operator.index(start)
    except TypeError:
        first = None
    if first is None or isinstance(start, bool):
        raise DtypeError(f"update: expected an integer without axes as the start, got {start!r}")
    extent = whole[axis]
    at = first + extent if first < 0 else first
    fits = len(given) == len(whole) and given[axis] <= extent  # what does not, the rule refuses
    if fits and not 0 <= at <= extent - given[axis]:
        raise OutOfBounds(
            f"update: {given[axis]} elements from {first} on are out of bounds for an axis of"
            f" {extent}"
        )
    return at


COMPOSITES: dict[str, Composite] = {
    "mean": _mean,
    "var": _var,
    "variance": _var,
    "std": _std,
    "cumsum": _running("cumsum", "add"),
    "cumprod": _running("cumprod", "multiply"),
    "cummax": _running("cummax", "maximum"),
    "cummin": _running("cummin", "minimum"),
    "concatenate": _concatenate,
    "split": _split,
    "clip": _clip,
    "take": _take,
    "update": _update,
}
"""By the names of functions of distributed tensors; ``variance`` is what TVM calls ``var``."""
