"""numpy's functions that compare distributed tensors, count in them, or leave out what is NaN."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from disco_client.distributed.composites import Composite, Steps
from disco_client.distributed.dtensor import Computing, DTensor
from disco_client.distributed.numpy_arguments import array_of, has_nan, no_out, real_dtype
from disco_client.distributed.ops import integers, normal_axes
from disco_client.errors import ConfigError, DtypeError

__all__ = ["STATISTICS"]


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
    has_some = has_nan(x.dtype) or x.dtype.kind in "mM"
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


# Other values in place of NaN.


def _filled(steps: Steps, x: DTensor, value: Any) -> DTensor:
    """With a value in place of what is NaN."""
    return steps.call("where", steps.call("isnan", x), value, x)


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
    if not has_nan(x.dtype):
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
) -> Any:
    """Of the elements, or of each as often as its weight says."""
    x = array_of(a)
    steps = Steps(engine)
    if weights is None:
        mean = steps.call("mean", x, axis=axis, keepdims=keepdims)
        if returned:
            count = math.prod(x.shape[at] for at in normal_axes(axis, x.ndim))
            return steps.result("average"), np.full_like(mean, count)  # type: ignore[arg-type]
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
    made = steps.call("true_divide", total, scale)
    if returned:
        wide = np.broadcast_to(scale, tuple(made.shape))
        if not isinstance(wide, DTensor):
            wide = engine.distribute(wide, made.mesh, made.placement.combined())
        return steps.result("average"), wide
    return steps.result("average")


# Covariances.


def _host_weights(name: str, given: Any, count: int) -> np.ndarray[Any, Any] | None:
    """Weights of observations that the client knows.

    Raises:
        ConfigError: They do not fit, or are on the workers.
    """
    if given is None:
        return None
    if isinstance(given, DTensor):
        raise ConfigError(f"numpy.{name} takes weights that the client knows; .numpy() fetches")
    found = np.asarray(given)
    if found.shape != (count,) or (found < 0).any():
        raise ConfigError(
            f"{name}: expected a weight from 0 for each of {count} observations, got {given!r}"
        )
    return found


def _observed(steps: Steps, m: Any, y: Any, *, by_rows: bool, dtype: Any) -> DTensor:
    """Variables as rows and observations as columns."""
    parts: list[Any] = []
    given = [array_of(each) for each in (m, y) if each is not None]
    kind = np.result_type(*(each.dtype for each in given), np.float64) if dtype is None else dtype
    for each in given:
        if each.ndim > 2:  # noqa: PLR2004
            raise ConfigError(f"cov: expected vectors or matrices, got {tuple(each.shape)}")
        x = np.atleast_2d(each)
        x = np.transpose(x) if not by_rows and each.ndim != 1 else x
        parts.append(x if x.dtype == kind else x.astype(kind))
    if len(parts) == 1:
        return parts[0]
    return steps.call("concatenate", *parts, axis=0)


def _cov(  # noqa: PLR0913  (numpy's parameters)
    engine: Computing,
    m: Any,
    y: Any = None,
    rowvar: bool = True,
    bias: bool = False,
    ddof: Any = None,
    fweights: Any = None,
    aweights: Any = None,
    *,
    dtype: Any = None,
) -> DTensor:
    """Of variables, from the products of what they are apart from their means."""
    steps = Steps(engine)
    kind = None if dtype is None else np.dtype(dtype)
    x = _observed(steps, m, y, by_rows=bool(rowvar), dtype=kind)
    (less,) = integers("cov", ((0 if bias else 1) if ddof is None else ddof,))
    count = x.shape[1]
    repeats = _host_weights("cov", fweights, count)
    if repeats is not None and repeats.dtype.kind not in "iu":
        raise DtypeError(f"cov: expected integers as fweights, got {repeats.dtype}")
    shares = _host_weights("cov", aweights, count)
    weights = repeats if shares is None else shares if repeats is None else repeats * shares
    if weights is None:
        total: Any = float(count)
        mean = steps.call("mean", x, axis=1, keepdims=True)
        scale = total - less
    else:
        total = weights.sum()
        heavy = steps.call("multiply", x, weights.astype(x.dtype))
        mean = steps.call("true_divide", steps.call("sum", heavy, axis=1, keepdims=True), total)
        scale = total - (less if shares is None else less * (weights * shares).sum() / total)
    apart = steps.call("subtract", x, mean)
    other = apart if weights is None else steps.call("multiply", apart, weights.astype(x.dtype))
    if other.dtype.kind == "c":
        other = steps.call("conjugate", other)
    product = steps.call("matmul", apart, steps.call("transpose", other))
    with np.errstate(all="ignore"):
        factor = np.true_divide(1, np.maximum(scale, 0))
    steps.call("multiply", product, np.asarray(factor, real_dtype(x.dtype)))
    if steps.last.shape == (1, 1):
        steps.call("reshape", steps.last, shape=())
    return steps.result("cov")


def _corrcoef(
    engine: Computing, x: Any, y: Any = None, rowvar: bool = True, *, dtype: Any = None
) -> DTensor:
    steps = Steps(engine)
    found = steps.keep(_cov(engine, x, y, rowvar, dtype=dtype))
    if not found.ndim:
        steps.call("true_divide", found, found)
        return steps.result("corrcoef")
    deviations = steps.call("sqrt", np.real(np.diagonal(found)))  # type: ignore[call-overload]
    by_rows = steps.call("true_divide", found, deviations[:, None])
    scaled = steps.call("true_divide", by_rows, deviations[None, :])
    if scaled.dtype.kind == "c":
        raise ConfigError("numpy.corrcoef of distributed tensors takes real numbers")
    steps.call("clip", scaled, -1, 1)
    return steps.result("corrcoef")


STATISTICS: dict[str, Composite] = {
    "isclose": _isclose,
    "allclose": _allclose,
    "array_equal": _array_equal,
    "array_equiv": _array_equiv,
    "nan_to_num": _nan_to_num,
    "count_nonzero": _count_nonzero,
    "ptp": _ptp,
    "average": _average,
    "cov": _cov,
    "corrcoef": _corrcoef,
}
"""By numpy's names."""
