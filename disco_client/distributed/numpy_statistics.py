"""numpy's functions that compare distributed tensors, count in them, or leave out what is NaN."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from disco_client.distributed.composites import Composite, Steps
from disco_client.distributed.dtensor import Computing, DTensor
from disco_client.distributed.numpy_arguments import array_of, no_out
from disco_client.distributed.ops import normal_axes
from disco_client.errors import ConfigError, DtypeError

__all__ = ["STATISTICS"]


def _has_nan(dtype: np.dtype[Any]) -> bool:
    """Whether numpy leaves out what is NaN in a dtype; NaT it leaves in, but for extremes."""
    return dtype.kind in "fc" or "float" in dtype.name


# Comparisons.


def _isclose(
    engine: Computing,
    a: Any,
    b: Any,
    rtol: float = 1e-05,
    atol: float = 1e-08,
    equal_nan: bool = False,
) -> DTensor:
    """Whether ``|a - b| <= atol + rtol * |b|``, as numpy says it; infinities are close if equal."""
    steps = Steps(engine)
    one, other = array_of(a), array_of(b)
    if other.dtype.kind in "biu":  # the least integer has no absolute value
        other = other.astype(np.result_type(other.dtype, 1.0))
    equal = steps.call("equal", one, other)
    size = steps.call("absolute", other) if isinstance(other, DTensor) else np.absolute(other)
    bound = _scaled(steps, size, rtol, atol)
    apart = steps.call("absolute", steps.call("subtract", one, other))
    near = steps.call("less_equal", apart, bound)
    finite = _finite(steps, other)
    close = steps.call("logical_or", equal, steps.call("logical_and", near, finite))
    if equal_nan:
        both = steps.call("logical_and", _nan(steps, one), _nan(steps, other))
        steps.call("logical_or", close, both)
    return steps.result("isclose")


def _scaled(steps: Steps, size: Any, rtol: float, atol: float) -> Any:
    if isinstance(size, DTensor):
        return steps.call("add", steps.call("multiply", size, rtol), atol)
    return size * rtol + atol


def _finite(steps: Steps, x: Any) -> Any:
    return steps.call("isfinite", x) if isinstance(x, DTensor) else np.isfinite(x)


def _nan(steps: Steps, x: Any) -> Any:
    """Which elements are NaN, also of dtypes that have none."""
    if not isinstance(x, DTensor):
        return np.isnan(x)
    has_some = _has_nan(x.dtype) or x.dtype.kind in "mM"
    return steps.call("isnan", x) if has_some else steps.call("not_equal", x, x)


def _allclose(
    engine: Computing,
    a: Any,
    b: Any,
    rtol: float = 1e-05,
    atol: float = 1e-08,
    equal_nan: bool = False,
) -> DTensor:
    steps = Steps(engine)
    steps.call("all", steps.keep(_isclose(engine, a, b, rtol, atol, equal_nan)))
    return steps.result("allclose")


def _array_equal(engine: Computing, a1: Any, a2: Any, equal_nan: bool = False) -> DTensor:
    """A truth value on the workers, also where the shapes say it already."""
    steps = Steps(engine)
    one, other = array_of(a1), array_of(a2)
    if tuple(one.shape) != tuple(other.shape):
        return _false(steps, one, other, "array_equal")
    equal = steps.call("equal", one, other)
    if equal_nan:
        both = steps.call("logical_and", _nan(steps, one), _nan(steps, other))
        equal = steps.call("logical_or", equal, both)
    steps.call("all", equal)
    return steps.result("array_equal")


def _array_equiv(engine: Computing, a1: Any, a2: Any) -> DTensor:
    steps = Steps(engine)
    one, other = array_of(a1), array_of(a2)
    try:
        np.broadcast_shapes(tuple(one.shape), tuple(other.shape))
    except ValueError:
        return _false(steps, one, other, "array_equiv")
    steps.call("all", steps.call("equal", one, other))
    return steps.result("array_equiv")


def _false(steps: Steps, one: Any, other: Any, name: str) -> DTensor:
    some = one if isinstance(one, DTensor) else other
    steps.call("zeros_like", steps.call("any", some), dtype="bool")
    return steps.result(name)


# What is NaN left out.


def _filled(steps: Steps, x: DTensor, value: Any) -> DTensor:
    """With a value in place of what is NaN."""
    return steps.call("where", steps.call("isnan", x), value, x)


def _nan_reduction(name: str, neutral: float) -> Callable[..., DTensor]:
    def reduce(
        engine: Computing,
        a: DTensor,
        axis: Any = None,
        dtype: Any = None,
        out: None = None,
        **more: Any,
    ) -> DTensor:
        no_out(f"nan{name}", out)
        steps = Steps(engine)
        x = _filled(steps, a, a.dtype.type(neutral)) if _has_nan(a.dtype) else a
        steps.call(name, x, axis=axis, dtype=dtype, **more)
        return steps.result(f"nan{name}")

    return reduce


def _nan_extreme(name: str, neutral: float) -> Callable[..., DTensor]:
    def reduce(
        engine: Computing, a: DTensor, axis: Any = None, out: None = None, **more: Any
    ) -> DTensor:
        no_out(f"nan{name}", out)
        if a.dtype.kind in "mM":
            raise DtypeError(f"numpy.nan{name} of distributed tensors takes no {a.dtype}")
        steps = Steps(engine)
        if not _has_nan(a.dtype):
            steps.call(name, a, axis=axis, **more)
            return steps.result(f"nan{name}")
        extreme = steps.call(name, _filled(steps, a, a.dtype.type(neutral)), axis=axis, **more)
        none = steps.call("all", steps.call("isnan", a), axis=axis, **more)
        steps.call("where", none, a.dtype.type(math.nan), extreme)
        return steps.result(f"nan{name}")

    return reduce


def _counted(steps: Steps, a: DTensor, axis: Any, *, keepdims: bool) -> DTensor:
    """How many along axes are not NaN."""
    there = steps.call("logical_not", steps.call("isnan", a))
    return steps.call("sum", there, axis=axis, keepdims=keepdims)


def _nanmean(
    engine: Computing,
    a: DTensor,
    axis: Any = None,
    dtype: Any = None,
    out: None = None,
    keepdims: bool = False,
) -> DTensor:
    no_out("nanmean", out)
    steps = Steps(engine)
    if dtype is not None:
        raise ConfigError("numpy.nanmean of distributed tensors has the dtype of its operand")
    if not _has_nan(a.dtype):
        steps.call("mean", a, axis=axis, keepdims=keepdims)
        return steps.result("nanmean")
    total = steps.call("sum", _filled(steps, a, a.dtype.type(0)), axis=axis, keepdims=keepdims)
    count = steps.call("cast", _counted(steps, a, axis, keepdims=keepdims), dtype=total.dtype)
    steps.call("true_divide", total, count)
    return steps.result("nanmean")


def _nan_variance(name: str) -> Callable[..., DTensor]:
    def vary(
        engine: Computing,
        a: DTensor,
        axis: Any = None,
        dtype: Any = None,
        out: None = None,
        ddof: float = 0,
        keepdims: bool = False,
    ) -> DTensor:
        no_out(f"nan{name}", out)
        if dtype is not None:
            raise ConfigError(f"numpy.nan{name} of distributed tensors has its operand's dtype")
        steps = Steps(engine)
        if not _has_nan(a.dtype):
            steps.call(name, a, axis=axis, ddof=ddof, keepdims=keepdims)
            return steps.result(f"nan{name}")
        mean = steps.keep(_nanmean(engine, a, axis, keepdims=True))
        far = steps.call("absolute", steps.call("subtract", a, mean))
        # What is NaN because of an infinity stays so.
        apart = steps.call("where", steps.call("isnan", a), far.dtype.type(0), far)
        total = steps.call("sum", steps.call("square", apart), axis=axis, keepdims=keepdims)
        count = steps.call("subtract", _counted(steps, a, axis, keepdims=keepdims), ddof)
        some = steps.call("greater", count, 0)
        divided = steps.call("true_divide", total, steps.call("cast", count, dtype=total.dtype))
        found = steps.call("where", some, divided, total.dtype.type(math.nan))
        if name == "std":
            steps.call("sqrt", found)
        return steps.result(f"nan{name}")

    return vary


def _nan_to_num(
    engine: Computing,
    x: DTensor,
    copy: bool = True,
    nan: Any = 0.0,
    posinf: Any = None,
    neginf: Any = None,
) -> DTensor:
    """Numbers in place of NaN and of infinities, by default the largest of the dtype."""
    if not copy:
        raise ConfigError("numpy.nan_to_num of distributed tensors always makes another one")
    if x.dtype.kind == "c":
        raise ConfigError("numpy.nan_to_num of distributed tensors takes real numbers")
    steps = Steps(engine)
    if not _has_nan(x.dtype):
        return x.__copy__()
    limits = np.finfo(x.dtype)
    kind = x.dtype.type
    out = _filled(steps, x, kind(nan))
    for infinite, value in ((math.inf, posinf), (-math.inf, neginf)):
        found = limits.max if infinite > 0 else limits.min
        mine = kind(found if value is None else value)
        out = steps.call("where", steps.call("equal", x, kind(infinite)), mine, out)
    return steps.result("nan_to_num")


# Counts and averages.


def _count_nonzero(
    engine: Computing, a: DTensor, axis: Any = None, *, keepdims: bool = False
) -> DTensor:
    steps = Steps(engine)
    steps.call("sum", steps.call("cast", a, dtype="bool"), axis=axis, keepdims=keepdims)
    return steps.result("count_nonzero")


def _ptp(
    engine: Computing, a: DTensor, axis: Any = None, out: None = None, keepdims: bool = False
) -> DTensor:
    no_out("ptp", out)
    steps = Steps(engine)
    ends = (steps.call(name, a, axis=axis, keepdims=keepdims) for name in ("max", "min"))
    steps.call("subtract", *ends)
    return steps.result("ptp")


def _average(
    engine: Computing,
    a: Any,
    axis: Any = None,
    weights: Any = None,
    returned: bool = False,
    *,
    keepdims: bool = False,
) -> DTensor:
    """Of the elements, or of each as often as its weight says."""
    x = array_of(a)
    steps = Steps(engine)
    if returned:
        raise ConfigError("numpy.average of distributed tensors returns no sums of the weights")
    if weights is None:
        steps.call("mean", x, axis=axis, keepdims=keepdims)
        return steps.result("average")
    given = array_of(weights)
    if tuple(given.shape) != tuple(x.shape):
        axes = normal_axes(axis, x.ndim)
        if axis is None or tuple(given.shape) != tuple(x.shape[at] for at in axes):
            raise ConfigError(
                f"average: weights of shape {tuple(given.shape)} fit neither {tuple(x.shape)} nor"
                f" its axes {axis}"
            )
        order = sorted(range(len(axes)), key=axes.__getitem__)
        wide = [x.shape[at] if at in axes else 1 for at in range(x.ndim)]
        given = np.transpose(given, order)
        given = np.reshape(given, wide)  # type: ignore[arg-type]
        given = np.broadcast_to(given, tuple(x.shape))
    kind = np.result_type(x.dtype, given.dtype, np.float64 if x.dtype.kind in "biu" else x.dtype)
    product = steps.call("multiply", x, given.astype(kind))
    total = steps.call("sum", product, axis=axis, keepdims=keepdims)
    scale = np.sum(given.astype(kind), axis=axis, keepdims=keepdims)
    if isinstance(scale, DTensor):
        steps.keep(scale)
    steps.call("true_divide", total, scale)
    return steps.result("average")


STATISTICS: dict[str, Composite] = {
    "isclose": _isclose,
    "allclose": _allclose,
    "array_equal": _array_equal,
    "array_equiv": _array_equiv,
    "nansum": _nan_reduction("sum", 0),
    "nanprod": _nan_reduction("prod", 1),
    "nanmax": _nan_extreme("max", -math.inf),
    "nanmin": _nan_extreme("min", math.inf),
    "nanmean": _nanmean,
    "nanvar": _nan_variance("var"),
    "nanstd": _nan_variance("std"),
    "nan_to_num": _nan_to_num,
    "count_nonzero": _count_nonzero,
    "ptp": _ptp,
    "average": _average,
}
"""By numpy's names."""
