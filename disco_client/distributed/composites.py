"""Functions that come to others, and numpy's names of all of them."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from disco_client.distributed.dtensor import DTensor
from disco_client.distributed.rules_reduce import normal_axes
from disco_client.errors import ConfigError

if TYPE_CHECKING:
    from disco_client.distributed.engine import Engine

__all__ = ["COMPOSITES", "FUNCTIONS"]

_EXACT_BITS = 4


def _mean(engine: Engine, x: DTensor, *, axis: Any = None, keepdims: bool = False) -> DTensor:
    axes = normal_axes(axis, x.ndim)
    count = math.prod(x.shape[each] for each in axes)
    floating = x.dtype.kind in "fc" or x.dtype.name == "bfloat16"
    # Halves are added up in single precision, as numpy does.
    wide: Any = x.dtype if floating and x.dtype.itemsize >= _EXACT_BITS else np.dtype(np.float32)
    if not floating:
        wide = np.dtype(np.float64)
    total = engine.call("sum", x, axis=axes, keepdims=keepdims, dtype=wide)
    out = engine.call("true_divide", total, float(count))
    return out if not floating or wide == x.dtype else out.astype(x.dtype)


def _getitem(engine: Engine, x: DTensor, *, items: Any) -> DTensor:
    given: list[Any] = list(cast("Any", items)) if isinstance(items, tuple) else [items]
    real = sum(item is not None and item is not Ellipsis for item in given)
    if real > x.ndim or sum(item is Ellipsis for item in given) > 1:
        raise ConfigError(f"a tensor of {x.ndim} axes cannot be indexed by {items!r}")
    if Ellipsis in given:
        at = given.index(Ellipsis)
        given[at : at + 1] = [slice(None)] * (x.ndim - real)
    else:
        given += [slice(None)] * (x.ndim - real)
    slices: list[tuple[int | None, ...]] = []
    shape: list[int] = []
    for item in given:
        if item is None:
            shape.append(1)
            continue
        extent = x.shape[len(slices)]
        picked, kept = _picked(item, extent)
        slices.append(picked)
        if kept is not None:
            shape.append(kept)
    out = engine.call("slice", x, items=tuple(slices))
    return out if tuple(shape) == tuple(out.shape) else engine.call("reshape", out, shape=shape)


def _picked(item: Any, extent: int) -> tuple[tuple[int | None, ...], int | None]:
    """One axis: what to take, and the extent that stays; None where the axis goes."""
    if isinstance(item, slice):
        start, stop, step = item.indices(extent)
        behind = None if stop < 0 else stop
        return (start, behind, step), len(range(start, stop, step))
    if not hasattr(item, "__index__") or isinstance(item, (bool, np.ndarray)):
        raise ConfigError(
            f"expected numbers, slices, ... and None, got {item!r}; take() gathers by positions"
        )
    index = item.__index__()
    if not -extent <= index < extent:
        msg = f"index {index} is out of bounds for an axis of {extent}"
        raise IndexError(msg)
    index %= extent
    return (index, index + 1, 1), None


def _clip(engine: Engine, x: DTensor, low: Any = None, high: Any = None) -> DTensor:
    if low is not None:
        x = engine.call("maximum", x, low)
    return x if high is None else engine.call("minimum", x, high)


Composite = Callable[..., DTensor]

COMPOSITES: dict[str, Composite] = {"mean": _mean, "getitem": _getitem, "clip": _clip}
"""By the names of functions of distributed tensors."""


def _named(name: str, *options: str) -> Composite:
    """One of numpy's functions whose first arguments are operands and the next options."""

    def adapter(engine: Engine, *args: Any, **kwargs: Any) -> DTensor:
        count = max(len(args) - len(options), 1) if options else len(args)
        given = dict(zip(options, args[count:], strict=False))
        known = {key: value for key, value in kwargs.items() if value is not np._NoValue}  # noqa: SLF001
        return engine.call(name, *args[:count], **given, **known)

    return adapter


def _listed(name: str) -> Composite:
    def adapter(engine: Engine, operands: Sequence[Any], axis: int = 0) -> DTensor:
        return engine.call(name, *operands, axis=axis)

    return adapter


def _einsum(engine: Engine, subscripts: str, *operands: Any, **options: Any) -> DTensor:
    options.pop("optimize", None)
    return engine.call("einsum", *operands, subscripts=subscripts, **options)


def _stack(engine: Engine, operands: Sequence[Any], axis: int = 0) -> DTensor:
    place = axis % (operands[0].ndim + 1)
    index = (*(slice(None),) * place, None)
    return engine.call("concatenate", *(each[index] for each in operands), axis=place)


def _swapaxes(engine: Engine, x: DTensor, axis1: int, axis2: int) -> DTensor:
    order = list(range(x.ndim))
    order[axis1], order[axis2] = order[axis2], order[axis1]
    return engine.call("transpose", x, axes=order)


def _expand_dims(engine: Engine, x: DTensor, axis: int) -> DTensor:
    shape = list(x.shape)
    shape.insert(axis % (x.ndim + 1), 1)
    return engine.call("reshape", x, shape=shape)


FUNCTIONS: dict[Callable[..., Any], Composite] = {
    np.sum: _named("sum", "axis"),
    np.prod: _named("prod", "axis"),
    np.max: _named("max", "axis"),
    np.min: _named("min", "axis"),
    np.any: _named("any", "axis"),
    np.all: _named("all", "axis"),
    np.mean: _named("mean", "axis"),
    np.argmax: _named("argmax", "axis"),
    np.argmin: _named("argmin", "axis"),
    np.transpose: _named("transpose", "axes"),
    np.reshape: _named("reshape", "shape"),
    np.where: _named("where"),
    np.clip: _named("clip"),
    np.concatenate: _listed("concatenate"),
    np.stack: _stack,
    np.einsum: _einsum,
    np.swapaxes: _swapaxes,
    np.expand_dims: _expand_dims,
    np.dot: _named("matmul"),
}
"""By numpy's functions that are no ufuncs."""
