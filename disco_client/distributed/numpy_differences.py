"""numpy's differences of neighbours in distributed tensors, and sums of what lies between them."""

from __future__ import annotations

from functools import reduce
from typing import Any, SupportsIndex, TypeAlias

import numpy as np

from disco_client.distributed.composites import Composite, Steps
from disco_client.distributed.dtensor import Computing, DTensor
from disco_client.distributed.numpy_arguments import array_of
from disco_client.distributed.ops import normal_axes, normal_axis
from disco_client.errors import ConfigError, DtypeError

__all__ = ["DIFFERENCES"]


def _along(steps: Steps, x: DTensor, axis: int, item: slice) -> DTensor:
    return steps.keep(x[*(slice(None),) * axis, item])


def _spacing(name: str, given: Any, extent: int) -> Any:
    """A distance, or the distances of neighbours along an axis.

    Raises:
        ConfigError: They do not fit the axis.
    """
    if isinstance(given, DTensor):
        raise ConfigError(f"{name}: expected distances that the client knows; .numpy() fetches")
    found: Any = np.asarray(given)
    if not found.ndim:
        return found
    if found.ndim != 1 or len(found) != extent:
        raise ConfigError(
            f"{name}: expected a distance or the places of {extent} elements, got {found.shape}"
        )
    apart = np.diff(found.astype(float) if found.dtype.kind in "iub" else found)
    return apart[0] if len(apart) and (apart == apart[0]).all() else apart


def _gradient(
    engine: Computing, f: DTensor, *varargs: Any, axis: Any = None, edge_order: int = 1
) -> Any:
    """By second-order central differences within, and one-sided ones at the ends.

    Fornberg, "Generation of finite difference formulas on arbitrarily spaced grids", 1988.
    """
    axes = normal_axes(axis, f.ndim)
    if edge_order not in (1, 2):
        raise ConfigError(f"gradient: expected 1 or 2 as the order of edges, got {edge_order}")
    if f.dtype.kind not in "iufc":
        raise DtypeError(f"gradient: expected numbers, got {f.dtype}")
    if len(varargs) not in (0, 1, len(axes)):
        raise ConfigError(
            f"gradient: expected a distance, or one for each of {len(axes)} axes, got"
            f" {len(varargs)}"
        )
    if len(varargs) == 1 and np.ndim(varargs[0]) and len(axes) > 1:
        raise ConfigError("gradient: places of elements are expected for each axis")
    given = list(varargs or (1.0,))
    given *= len(axes) if len(given) == 1 else 1
    for each in axes:
        if f.shape[each] < edge_order + 1:
            raise ConfigError(
                f"gradient: axis {each} of {tuple(f.shape)} has no {edge_order + 1} elements"
            )
    found = [
        _slope(engine, f, each, _spacing("gradient", one, f.shape[each]), edge_order)
        for each, one in zip(axes, given, strict=True)
    ]
    return found[0] if len(axes) == 1 else tuple(found)


_Weighed: TypeAlias = "list[tuple[Any, slice[Any, Any, Any]]]"


def _slope(engine: Computing, f: DTensor, axis: int, apart: Any, order: int) -> DTensor:
    """Along one axis, whose elements are so far apart."""
    steps = Steps(engine)
    kind = f.dtype if f.dtype.kind in "fc" else np.dtype(np.float64)
    x = f if f.dtype == kind else steps.call("cast", f, dtype=kind)
    # As numpy does it: differences first, which are exact where neighbours are close.
    both, single = (slice(2, None), slice(None, -2)), not np.ndim(apart)
    ends = (apart, apart) if single else (apart[0], apart[-1])
    if order == 1:
        first = _quotient(steps, x, axis, (slice(1, 2), slice(0, 1)), ends[0])
        last = _quotient(steps, x, axis, (slice(-1, None), slice(-2, -1)), ends[1])
    else:
        pairs = ((apart, apart),) * 2 if single else (apart[:2], apart[-2:])
        first = _weighed(steps, x, axis, _first_weights(*pairs[0]))
        last = _weighed(steps, x, axis, _last_weights(*pairs[1]))
    parts = [first, last]
    if x.shape[axis] > 2:  # noqa: PLR2004
        within = (
            _quotient(steps, x, axis, both, 2 * apart)
            if single
            else _weighed(steps, x, axis, _inner_weights(apart[:-1], apart[1:]))
        )
        parts.insert(1, within)
    steps.call("concatenate", *parts, axis=axis)
    if steps.last.dtype != kind:
        steps.call("cast", steps.last, dtype=kind)
    return steps.result("gradient")


def _quotient(steps: Steps, x: DTensor, axis: int, items: Any, apart: Any) -> DTensor:
    later, earlier = (_along(steps, x, axis, item) for item in items)
    return steps.call("true_divide", steps.call("subtract", later, earlier), float(apart))


def _weighed(steps: Steps, x: DTensor, axis: int, weights: _Weighed) -> DTensor:
    """The sum of slices, each times its weight."""
    shape = [1] * x.ndim
    shape[axis] = -1
    parts = [
        steps.call(
            "multiply",
            _along(steps, x, axis, item),
            np.reshape(np.asarray(weight), shape),
        )
        for weight, item in weights
    ]
    return reduce(lambda one, other: steps.call("add", one, other), parts)


def _inner_weights(left: Any, right: Any) -> _Weighed:
    return [
        (-right / (left * (left + right)), slice(None, -2)),
        ((right - left) / (left * right), slice(1, -1)),
        (left / (right * (left + right)), slice(2, None)),
    ]


def _first_weights(one: Any, two: Any) -> _Weighed:
    return [
        (-(2 * one + two) / (one * (one + two)), slice(0, 1)),
        ((one + two) / (one * two), slice(1, 2)),
        (-one / (two * (one + two)), slice(2, 3)),
    ]


def _last_weights(one: Any, two: Any) -> _Weighed:
    return [
        (two / (one * (one + two)), slice(-3, -2)),
        (-(two + one) / (one * two), slice(-2, -1)),
        ((2 * two + one) / (two * (one + two)), slice(-1, None)),
    ]


def _ediff1d(engine: Computing, ary: DTensor, to_end: Any = None, to_begin: Any = None) -> DTensor:
    steps = Steps(engine)
    row = steps.call("reshape", ary, shape=(-1,))
    ends = [None if each is None else array_of(each) for each in (to_begin, to_end)]
    for each in ends:
        if each is not None and not np.can_cast(each.dtype, ary.dtype, "same_kind"):
            raise DtypeError(f"ediff1d: {each.dtype} does not become {ary.dtype}")
    apart = steps.call(
        "subtract",
        _along(steps, row, 0, slice(1, None)),
        _along(steps, row, 0, slice(None, -1)),
    )
    front, back = (
        [] if each is None else [np.reshape(each.astype(ary.dtype), (-1,))] for each in ends
    )
    if front or back:
        steps.call("concatenate", *front, apart, *back, axis=0)
    return steps.result("ediff1d")


def _trapezoid(
    engine: Computing, y: Any, x: Any = None, dx: Any = 1.0, axis: SupportsIndex = -1
) -> DTensor:
    """The integral along an axis by the trapezoidal rule."""
    heights = array_of(y)
    place = normal_axis(axis, heights.ndim)
    steps = Steps(engine)
    width: Any = dx
    if x is not None:
        width = np.diff(array_of(x), axis=-1 if np.ndim(x) == 1 else place)
        if width.ndim == 1:
            shape = [1] * heights.ndim
            shape[place] = -1
            width = np.reshape(width, shape)
    both = [heights[(*(slice(None),) * place, item)] for item in (slice(1, None), slice(None, -1))]
    middle = (
        steps.call("add", *both)
        if any(isinstance(each, DTensor) for each in both)
        else both[0] + both[1]
    )
    areas = steps.call("true_divide", steps.call("multiply", width, middle), 2.0)
    steps.call("sum", areas, axis=place)
    return steps.result("trapezoid")


DIFFERENCES: dict[str, Composite] = {
    "gradient": _gradient,
    "ediff1d": _ediff1d,
    "trapezoid": _trapezoid,
}
"""By numpy's names, of which older versions of numpy lack some."""
