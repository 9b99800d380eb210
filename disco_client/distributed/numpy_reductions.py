"""numpy's reductions of distributed tensors: of which elements, and beginning with what."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from disco_client.distributed.composites import Composite, Steps
from disco_client.distributed.dtensor import Computing, DTensor
from disco_client.distributed.numpy_arguments import array_of, has_nan, no_out, real_dtype, unsaid
from disco_client.distributed.ops import normal_axes, normal_axis
from disco_client.errors import ConfigError, DtypeError

__all__ = ["REDUCTIONS", "averaged", "reduced"]

_JOINS = {
    "sum": "add",
    "prod": "multiply",
    "max": "maximum",
    "min": "minimum",
    "any": "logical_or",
    "all": "logical_and",
}
"""What a first value is joined by to what the elements come to."""

_NEUTRAL = {"sum": 0, "prod": 1, "any": False, "all": True}


def _given(options: dict[str, Any]) -> dict[str, Any]:
    """Options less those that have their default value, such as ``where=True``."""
    return {
        key: value
        for key, value in options.items()
        if not unsaid(key, value) and not (key == "where" and value is True)
    }


def _mask(name: str, where: Any, x: DTensor) -> Any:
    """A mask of truth values that is broadcast to a tensor.

    Raises:
        ConfigError: It cannot be.
        DtypeError: It has other values.
    """
    mask = array_of(where)
    if mask.dtype.kind != "b":
        raise DtypeError(f"numpy.{name}: expected a mask of bool as where, got {mask.dtype}")
    try:
        fits = np.broadcast_shapes(tuple(mask.shape), tuple(x.shape)) == tuple(x.shape)
    except ValueError:
        fits = False
    if not fits:
        raise ConfigError(
            f"numpy.{name}: a mask of shape {tuple(mask.shape)} is no mask of {tuple(x.shape)}"
        )
    return mask


def reduced(engine: Computing, name: str, x: Any, **options: Any) -> DTensor:
    """Reduces a tensor as numpy's function does, also with ``where`` and ``initial``.

    Args:
        engine: Computes.
        name: "sum", "prod", "max", "min", "any" or "all".
        x: The tensor.
        **options: ``axis``, ``dtype``, ``keepdims``, ``where`` and ``initial`` of numpy.

    Raises:
        ConfigError: ``where`` does not fit, or ``initial`` is missing or no number.
        DtypeError: ``where`` is no mask.
    """
    given = _given(options)
    where, initial = given.pop("where", None), given.pop("initial", None)
    if where is None and initial is None:
        return engine.call(name, x, **given)
    if initial is not None and name in ("any", "all"):
        raise ConfigError(f"numpy.{name} has no initial value")
    if initial is not None and (isinstance(initial, DTensor) or np.ndim(initial)):
        raise ConfigError(f"numpy.{name}: expected a number as the initial value, got {initial!r}")
    steps = Steps(engine)
    kind = x.dtype
    if where is not None:
        if name in ("max", "min") and initial is None:
            raise ConfigError(
                f"numpy.{name} with where needs an initial value, which it has of no elements"
            )
        neutral = _NEUTRAL.get(name, initial)
        if name in ("any", "all"):
            x = steps.call("cast", x, dtype="bool")
        x = steps.call("where", _mask(name, where, x), x, np.asarray(neutral).astype(x.dtype))
    axes = normal_axes(given.get("axis"), x.ndim)
    if name in ("max", "min") and any(not x.shape[axis] for axis in axes):
        # Of no elements the initial value; a sum has the shape.
        steps.call("cast", steps.call("sum", x, **given), dtype=kind)
        steps.keep(np.full_like(steps.last, initial))  # type: ignore[arg-type]
        return steps.result(name)
    steps.call(name, x, **given)
    if initial is not None:
        steps.call(_JOINS[name], steps.last, np.asarray(initial).astype(steps.last.dtype))
    return steps.result(name)


def averaged(engine: Computing, name: str, x: Any, **options: Any) -> DTensor:
    """Averages a tensor as numpy's function does, also with ``where``.

    Args:
        engine: Computes.
        name: "mean", "var" or "std".
        x: The tensor.
        **options: ``axis``, ``dtype``, ``ddof``, ``keepdims`` and ``where`` of numpy.

    Raises:
        ConfigError: An option has no rule.
        DtypeError: ``where`` is no mask.
    """
    given = _corrected(name, _given(options))
    if "mean" in given:
        raise ConfigError(f"numpy.{name} of distributed tensors finds the mean itself")
    where = given.pop("where", None)
    if where is None:
        return engine.call(name, x, **given)
    if "dtype" in given:
        raise ConfigError(f"{name} has no dtype of its own; .astype() converts what comes out")
    if x.dtype.kind == "m":
        raise DtypeError(f"numpy.{name} of distributed tensors with where takes no {x.dtype}")
    return _averaged_where(engine, name, x, _mask(name, where, x), given, nan_of_none=False)


def _averaged_where(
    engine: Computing, name: str, x: DTensor, mask: Any, given: dict[str, Any], *, nan_of_none: bool
) -> DTensor:
    """The average of what a mask takes.

    Args:
        engine: Computes.
        name: "mean", "var" or "std".
        x: The tensor.
        mask: It is broadcast to the tensor.
        given: Further options.
        nan_of_none: Whether a variance of no more elements than ``ddof`` is NaN, or a quotient.
    """
    axis, ddof = given.get("axis"), given.get("ddof", 0)
    unknown = set(given) - {"axis", "keepdims", "ddof"}
    if unknown:
        raise ConfigError(f"numpy.{name} of distributed tensors has no {', '.join(unknown)}")
    steps = Steps(engine)
    kind = x.dtype if has_nan(x.dtype) else np.dtype(np.float64)
    wide = np.result_type(kind, np.float32)
    x = steps.call("cast", x, dtype=wide) if x.dtype != wide else x
    count = _count(steps, mask, x, axis)
    mean = steps.call("true_divide", _sum_where(steps, mask, x, axis), count)
    if name != "mean":
        apart = steps.call("subtract", x, mean)
        sizes = steps.call("absolute", apart) if apart.dtype.kind == "c" else apart
        total = _sum_where(steps, mask, steps.call("square", sizes), axis)
        steps.call("true_divide", total, _divisor(count - ddof, nan_of_none=nan_of_none))
        kind = real_dtype(kind)
        if name == "std":
            steps.call("sqrt", steps.last)
    if steps.last.dtype != kind:
        steps.call("cast", steps.last, dtype=kind)
    if not given.get("keepdims"):
        axes = normal_axes(axis, x.ndim)
        shape = [extent for at, extent in enumerate(x.shape) if at not in axes]
        steps.call("reshape", steps.last, shape=shape)
    return steps.result(name)


def _divisor(left: Any, *, nan_of_none: bool) -> Any:
    """By what squares are divided where so many elements are left."""
    some = np.maximum(left, 0)
    return np.where(some > 0, some, np.asarray(math.nan, some.dtype)) if nan_of_none else some


def _count(steps: Steps, mask: Any, x: DTensor, axis: Any) -> Any:
    """How many elements a mask takes, in the precision of the tensor."""
    kind = real_dtype(x.dtype)
    whole = np.broadcast_to(mask, tuple(x.shape))
    if isinstance(whole, DTensor):
        count = steps.call("sum", steps.keep(whole), axis=axis, keepdims=True)
        return steps.call("cast", count, dtype=kind)
    axes = None if axis is None else normal_axes(axis, x.ndim)
    return np.sum(whole, axis=axes, keepdims=True).astype(kind)


def _sum_where(steps: Steps, mask: Any, x: DTensor, axis: Any) -> DTensor:
    there = steps.call("where", mask, x, np.zeros((), x.dtype))
    return steps.call("sum", there, axis=axis, keepdims=True)


def _named(function: Callable[..., DTensor], name: str, *parameters: str) -> Composite:
    """One of numpy's functions of one operand, with the names of its parameters in order."""

    def adapter(engine: Computing, *args: Any, **kwargs: Any) -> DTensor:
        if len(args) > len(parameters):
            raise ConfigError(
                f"numpy.{name} takes {len(parameters)} arguments without names, got {len(args)}"
            )
        given = {**dict(zip(parameters, args, strict=False)), **kwargs}
        no_out(name, given.pop("out", None))
        operand = given.pop(parameters[0], None)
        return function(engine, name, operand, **given)

    return adapter


def _arg(name: str) -> Composite:
    """Where the largest or smallest is; the first of equal ones, as in numpy."""

    def find(
        engine: Computing, a: Any, axis: Any = None, out: None = None, *, keepdims: Any = False
    ) -> DTensor:
        no_out(name, out)
        steps = Steps(engine)
        if axis is None:
            flat = steps.call("reshape", a, shape=(-1,)) if isinstance(a, DTensor) else np.ravel(a)
            steps.call(name, flat, axis=0)
        else:
            steps.call(name, a, axis=axis)
        if keepdims:
            place = None if axis is None else normal_axis(axis, a.ndim)
            shape = [1 if place in (None, at) else n for at, n in enumerate(a.shape)]
            steps.call("reshape", steps.last, shape=shape)
        return steps.result(name)

    return find


# What is NaN left out.


def _without_nan(steps: Steps, x: DTensor, value: Any) -> DTensor:
    return steps.call("where", steps.call("isnan", x), x.dtype.type(value), x)


def _nan_reduction(engine: Computing, name: str, a: Any, **options: Any) -> DTensor:
    plain = name.removeprefix("nan")
    steps = Steps(engine)
    x = _without_nan(steps, a, _NEUTRAL[plain]) if has_nan(a.dtype) else a
    steps.keep(reduced(engine, plain, x, **options))
    return steps.result(name)


def _nan_extreme(engine: Computing, name: str, a: Any, **options: Any) -> DTensor:
    plain = name.removeprefix("nan")
    if a.dtype.kind in "mM":
        raise DtypeError(f"numpy.{name} of distributed tensors takes no {a.dtype}")
    steps = Steps(engine)
    given = _given(options)
    x = a
    if has_nan(a.dtype):
        x = _without_nan(steps, a, -math.inf if plain == "max" else math.inf)
    extreme = steps.keep(reduced(engine, plain, x, **given))
    if x is not a and "initial" not in given:
        none = steps.call("all", steps.call("isnan", a), **given)
        steps.call("where", none, a.dtype.type(math.nan), extreme)
    return steps.result(name)


def _nan_average(engine: Computing, name: str, a: Any, **options: Any) -> DTensor:
    plain = name.removeprefix("nan")
    given = _corrected(name, _given(options))
    if "dtype" in given:
        raise ConfigError(f"numpy.{name} of distributed tensors has the dtype of its operand")
    if not has_nan(a.dtype):
        return averaged(engine, plain, a, **given)._explained_as(name)
    steps = Steps(engine)
    mask = steps.call("logical_not", steps.call("isnan", a))
    where = given.pop("where", None)
    if where is not None:
        mask = steps.call("logical_and", mask, _mask(name, where, a))
    steps.keep(_averaged_where(engine, plain, a, mask, given, nan_of_none=True))
    return steps.result(name)


def _corrected(name: str, given: dict[str, Any]) -> dict[str, Any]:
    """Options with a ddof in place of a correction, the standard's name of it.

    Raises:
        ConfigError: Both are given.
    """
    if "correction" in given:
        if given.get("ddof"):
            raise ConfigError(f"numpy.{name} takes a ddof or a correction, not both")
        given["ddof"] = given.pop("correction")
    return given


_SUMS = ("a", "axis", "dtype", "out", "keepdims", "initial", "where")
_EXTREMES = ("a", "axis", "out", "keepdims", "initial", "where")
_TRUTHS = ("a", "axis", "out", "keepdims")
_MEANS = ("a", "axis", "dtype", "out", "keepdims")
_VARIANCES = ("a", "axis", "dtype", "out", "ddof", "keepdims")

REDUCTIONS: dict[str, Composite] = {
    **{name: _named(reduced, name, *_SUMS) for name in ("sum", "prod")},
    **{name: _named(reduced, name, *_EXTREMES) for name in ("max", "min")},
    "amax": _named(reduced, "max", *_EXTREMES),
    "amin": _named(reduced, "min", *_EXTREMES),
    **{name: _named(reduced, name, *_TRUTHS) for name in ("any", "all")},
    "mean": _named(averaged, "mean", *_MEANS),
    **{name: _named(averaged, name, *_VARIANCES) for name in ("var", "std")},
    **{name: _arg(name) for name in ("argmax", "argmin", "nanargmax", "nanargmin")},
    **{name: _named(_nan_reduction, name, *_SUMS) for name in ("nansum", "nanprod")},
    **{name: _named(_nan_extreme, name, *_EXTREMES) for name in ("nanmax", "nanmin")},
    "nanmean": _named(_nan_average, "nanmean", *_MEANS),
    **{name: _named(_nan_average, name, *_VARIANCES) for name in ("nanvar", "nanstd")},
}
"""By numpy's names."""
