"""Rules of functions along axes: reductions, where the largest is, and normalisations."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Any, SupportsIndex

import numpy as np

from disco_client.distributed.pattern import LOCAL_AXIS, Pattern
from disco_client.distributed.rules import Local, only_tensors, register_rule
from disco_client.distributed.struct_info import TensorStructInfo
from disco_client.errors import ConfigError
from disco_client.wire.values import Shape, dtype_from_name, dtype_name

__all__ = ["normal_axes", "normal_axis"]

_COMBINES = {"sum": "sum", "prod": "prod", "max": "max", "min": "min", "any": "max", "all": "min"}


def normal_axis(axis: SupportsIndex, ndim: int) -> int:
    """An axis counted from the front.

    Raises:
        ConfigError: There is no such axis.
    """
    if isinstance(axis, bool) or not hasattr(axis, "__index__"):
        raise ConfigError(f"expected an axis by its number, got {axis!r}")
    number = axis.__index__()
    if not -ndim <= number < ndim:
        raise ConfigError(f"a tensor of {ndim} axes has no axis {number}")
    return number % ndim


def normal_axes(axis: SupportsIndex | Iterable[SupportsIndex] | None, ndim: int) -> tuple[int, ...]:
    """Axes counted from the front; None for all.

    Raises:
        ConfigError: There is no such axis, or one is named twice.
    """
    if axis is None:
        return tuple(range(ndim))
    given = axis if isinstance(axis, Iterable) else (axis,)
    found = tuple(normal_axis(each, ndim) for each in given)
    if len(set(found)) != len(found):
        raise ConfigError(f"an axis is named twice in {found}")
    return found


def _letters(ndim: int) -> tuple[str, ...]:
    return tuple(f"a{axis}" for axis in range(ndim))


def _reduce(
    x: TensorStructInfo, *, name: str, axis: Any = None, keepdims: bool = False, dtype: Any = None
) -> Local:
    if dtype is not None and name not in ("sum", "prod"):
        raise ConfigError(f"{name} has no dtype of its own; .astype() converts what comes out")
    axes = normal_axes(axis, x.ndim)
    for each in axes:
        if name in ("max", "min") and not x.shape[each]:
            raise ConfigError(f"{name} along axis {each} of {tuple(x.shape)} has no elements")
    letters = _letters(x.ndim)
    output = tuple(
        LOCAL_AXIS if place in axes else letter
        for place, letter in enumerate(letters)
        if keepdims or place not in axes
    )
    shape = [
        1 if place in axes else extent
        for place, extent in enumerate(x.shape)
        if keepdims or place not in axes
    ]
    found = _dtype_of(name, x.dtype, dtype)
    linear = ((0,),) if name == "sum" else ()
    # Complex numbers have an order for numpy, but not for what combines them.
    alone = x.dtype.kind == "c" and name in ("max", "min")
    combines = () if alone else tuple((letters[each], _COMBINES[name]) for each in axes)
    options = {"axis": Shape(axes), "keepdims": bool(keepdims), "dtype": dtype_name(found)}
    pattern = Pattern((letters,), output, combines, linear)
    return Local(name, pattern, TensorStructInfo(shape, found), options)


def _dtype_of(name: str, dtype: np.dtype[Any], wanted: Any) -> np.dtype[Any]:
    if wanted is not None:
        return dtype_from_name(wanted)
    if name in ("sum", "prod"):
        return getattr(np, name)(np.empty((0,), dtype)).dtype
    return np.dtype(bool) if name in ("any", "all") else dtype


for _name in _COMBINES:
    register_rule(_name)(partial(_reduce, name=_name))


def _arg(x: TensorStructInfo, *, name: str, axis: SupportsIndex) -> Local:
    place = normal_axis(axis, x.ndim)
    if not x.shape[place]:
        raise ConfigError(f"{name} along axis {place} of {tuple(x.shape)} has no elements")
    letters = list(_letters(x.ndim))
    letters[place] = LOCAL_AXIS
    output = (*letters[:place], *letters[place + 1 :])
    shape = (*x.shape[:place], *x.shape[place + 1 :])
    result = TensorStructInfo(shape, np.dtype(np.intp))
    return Local(name, Pattern((tuple(letters),), output), result, {"axis": place})


for _name in ("argmax", "argmin"):
    register_rule(_name)(partial(_arg, name=_name))


def _along(
    name: str, x: TensorStructInfo, axis: SupportsIndex, *more: Any, **options: Any
) -> Local:
    """A function that needs the whole of one axis, and vectors along it."""
    if not np.issubdtype(x.dtype, np.floating) and x.dtype.name != "bfloat16":
        raise ConfigError(f"{name} needs real floating-point numbers, got {x.dtype}")
    place = normal_axis(axis, x.ndim)
    only_tensors(name, *more)
    for vector in more:
        if tuple(vector.shape) != (x.shape[place],):
            raise ConfigError(
                f"{name} along axis {place} of {tuple(x.shape)}: expected a vector of"
                f" {x.shape[place]}, got {tuple(vector.shape)}"
            )
    letters = list(_letters(x.ndim))
    letters[place] = LOCAL_AXIS
    pattern = Pattern((tuple(letters), *((LOCAL_AXIS,) for _ in more)), tuple(letters))
    return Local(name, pattern, TensorStructInfo(x.shape, x.dtype), {"axis": place, **options})


@register_rule("softmax")
def _softmax(x: TensorStructInfo, *, axis: SupportsIndex = -1) -> Local:
    return _along("softmax", x, axis)


@register_rule("layer_norm")
def _layer_norm(
    x: TensorStructInfo, *weights: TensorStructInfo, axis: SupportsIndex = -1, epsilon: float = 1e-5
) -> Local:
    return _along("layer_norm", x, axis, *weights, epsilon=float(epsilon))


@register_rule("rms_norm")
def _rms_norm(
    x: TensorStructInfo, *weights: TensorStructInfo, axis: SupportsIndex = -1, epsilon: float = 1e-6
) -> Local:
    return _along("rms_norm", x, axis, *weights, epsilon=float(epsilon))
