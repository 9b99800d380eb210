"""Functions composed of others, and numpy's names of all of them."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, cast

import numpy as np

from disco_client.distributed.dtensor import Computing, DTensor, several
from disco_client.distributed.ops import normal_axes, normal_axis
from disco_client.errors import ConfigError

__all__ = ["COMPOSITES", "FUNCTIONS"]


_EXACT_BITS = 4
_PLANE = 2


def _mean(engine: Computing, x: DTensor, *, axis: Any = None, keepdims: bool = False) -> DTensor:
    axes = normal_axes(axis, x.ndim)
    count = math.prod(x.shape[each] for each in axes)
    floating = x.dtype.kind in "fc" or x.dtype.name == "bfloat16"
    # Halves are added up in single precision, as numpy does.
    wide: Any = x.dtype if floating and x.dtype.itemsize >= _EXACT_BITS else np.dtype(np.float32)
    if not floating:
        wide = np.dtype(np.float64)
    total = engine.call("sum", x, axis=axes, keepdims=keepdims, dtype=wide)
    out = engine.call("true_divide", total, float(count))
    if floating and wide != x.dtype:
        return out.astype(x.dtype).explained_as("mean", total, out)
    return out.explained_as("mean", total)


def _getitem(engine: Computing, x: DTensor, *, items: Any) -> DTensor:
    given: list[Any] = list(cast("Any", items)) if isinstance(items, tuple) else [items]
    # By identity: arrays among them compare element by element.
    dots = [place for place, item in enumerate(given) if item is Ellipsis]
    real = sum(item is not None and item is not Ellipsis for item in given)
    if real > x.ndim or len(dots) > 1:
        raise ConfigError(f"a tensor of {x.ndim} axes cannot be indexed by {items!r}")
    at = dots[0] if dots else len(given)
    given[at : at + 1] = [slice(None)] * (x.ndim - real)
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
    if tuple(shape) == tuple(out.shape):
        return out
    return engine.call("reshape", out, shape=shape).explained_as("getitem", out)


def _picked(item: Any, extent: int) -> tuple[tuple[int | None, ...], int | None]:
    """One axis: what to take, and the extent that stays; None where the axis goes."""
    if isinstance(item, slice):
        start, stop, step = item.indices(extent)
        behind = None if stop < 0 else stop
        return (start, behind, step), len(range(start, stop, step))
    if isinstance(item, (bool, np.bool_, np.ndarray, DTensor)) or not hasattr(item, "__index__"):
        raise ConfigError(
            f"expected numbers, slices, ... and None, got {item!r}; numpy.take(x, positions, axis)"
            " gathers by positions, and numpy.where(condition, x, y) chooses by a condition"
        )
    index = item.__index__()
    if not -extent <= index < extent:
        msg = f"index {index} is out of bounds for an axis of {extent}"
        raise IndexError(msg)
    index %= extent
    return (index, index + 1, 1), None


def _clip(engine: Computing, x: DTensor, low: Any = None, high: Any = None) -> DTensor:
    out, made = x, list[DTensor]()
    for name, limit in (("maximum", low), ("minimum", high)):
        if limit is not None:
            out = engine.call(name, out, limit)
            made.append(out)
    return out.explained_as("clip", *made[:-1]) if made else x


Composite = Callable[..., Any]

COMPOSITES: dict[str, Composite] = {"mean": _mean, "getitem": _getitem, "clip": _clip}
"""By the names of functions of distributed tensors."""


def unsaid(option: str, value: object) -> bool:
    """Whether an option of one of numpy's functions has the value that it has by default."""
    return value is np._NoValue or (option in ("out", "dtype") and value is None)  # noqa: SLF001


def _named(name: str, *parameters: str) -> Composite:
    """One of numpy's functions of one operand, with the names of its parameters in order."""

    def adapter(engine: Computing, *args: Any, **kwargs: Any) -> DTensor:
        given = {**dict(zip(parameters, args, strict=False)), **kwargs}
        operand = given.pop(parameters[0], None)
        options = {key: value for key, value in given.items() if not unsaid(key, value)}
        return engine.call(name, operand, **options)

    return adapter


def _arg(name: str) -> Composite:
    def adapter(
        engine: Computing, a: Any, axis: Any = None, out: None = None, **more: Any
    ) -> DTensor:
        _no_out(name, out)
        if axis is not None:
            return engine.call(name, a, axis=axis, **more)
        return engine.call(name, _flat(engine, a), axis=0, **more)

    return adapter


def _where(engine: Computing, *operands: Any) -> DTensor:
    return engine.call("where", *operands)


def _dot(engine: Computing, a: Any, b: Any, out: None = None) -> DTensor:
    _no_out("dot", out)
    # A number is an array without axes here, with a dtype of its own.
    a, b = (each if isinstance(each, DTensor) else np.asarray(each) for each in (a, b))
    if not (a.ndim and b.ndim):
        return engine.call("multiply", a, b)
    if a.ndim > 1 and b.ndim > _PLANE:
        raise ConfigError(
            "numpy.dot of more than two axes on both sides pairs all of their leading axes, for"
            " which there is no rule; numpy.einsum can say which are to be paired"
        )
    return engine.call("matmul", a, b)


def _reshape(
    engine: Computing, a: DTensor, shape: Any = None, order: str = "C", **more: Any
) -> DTensor:
    # numpy's name for it before version 2.1.
    shape = more.pop("newshape", shape)
    if order != "C" or any(value is not None for value in more.values()):
        raise ConfigError("numpy.reshape of distributed tensors keeps the order of C and copies")
    return engine.call("reshape", a, shape=several(shape))


def _np_clip(
    engine: Computing, a: Any, a_min: Any = None, a_max: Any = None, out: None = None, **more: Any
) -> DTensor:
    _no_out("clip", out)
    low, high = more.pop("min", a_min), more.pop("max", a_max)
    return engine.call("clip", a, low, high, **more)


def _round(engine: Computing, a: DTensor, decimals: int = 0, out: None = None) -> DTensor:
    _no_out("round", out)
    if a.dtype.kind in "biu":
        if decimals < 0:
            raise ConfigError("integers are rounded to no fewer than 0 decimals")
        return a
    if not decimals:
        return engine.call("rint", a)
    # As numpy does it: exactly only where the factor is.
    factor = 10.0 ** abs(decimals)
    there, back = ("multiply", "true_divide")[:: 1 if decimals > 0 else -1]
    wide = engine.call(there, a, factor)
    whole = engine.call("rint", wide)
    return engine.call(back, whole, factor).explained_as("round", wide, whole)


def _take(
    engine: Computing, a: Any, indices: Any, axis: Any = None, out: None = None, mode: str = "raise"
) -> DTensor:
    _no_out("take", out)
    if mode != "raise":
        raise ConfigError(f"numpy.take of distributed tensors has no mode {mode!r}")
    ids = indices if isinstance(indices, DTensor) else np.asarray(indices)
    if isinstance(ids, np.ndarray) and not ids.size:
        ids = ids.astype(np.intp)  # as numpy does with []
    if axis is not None:
        return engine.call("take", a, ids, axis=axis)
    return engine.call("take", _flat(engine, a), ids, axis=0)


def _concatenate(
    engine: Computing, arrays: Sequence[Any], axis: Any = 0, out: None = None
) -> DTensor:
    _no_out("concatenate", out)
    if axis is None:
        arrays, axis = [_flat(engine, each) for each in arrays], 0
    return engine.call("concatenate", *arrays, axis=axis)


def _stack(engine: Computing, arrays: Sequence[Any], axis: Any = 0, out: None = None) -> DTensor:
    _no_out("stack", out)
    each = [array if isinstance(array, DTensor) else np.asarray(array) for array in arrays]
    place = normal_axis(axis, each[0].ndim + 1)
    index = (*(slice(None),) * place, None)
    return engine.call("concatenate", *(array[index] for array in each), axis=place)


def _einsum(engine: Computing, subscripts: Any, *operands: Any, **options: Any) -> DTensor:
    if not isinstance(subscripts, str):
        raise ConfigError("einsum of distributed tensors takes its subscripts as text, 'ij,jk->ik'")
    options.pop("optimize", None)
    return engine.call("einsum", *operands, subscripts=subscripts, **options)


def _swapaxes(engine: Computing, a: DTensor, axis1: int, axis2: int) -> DTensor:
    one, other = (normal_axis(axis, a.ndim) for axis in (axis1, axis2))
    order = list(range(a.ndim))
    order[one], order[other] = order[other], order[one]
    return engine.call("transpose", a, axes=order)


def _expand_dims(engine: Computing, a: DTensor, axis: Any) -> DTensor:
    wanted = several(axis)
    count = len(wanted)
    new = normal_axes(wanted, a.ndim + count)
    old = iter(a.shape)
    shape = [1 if place in new else next(old) for place in range(a.ndim + count)]
    return engine.call("reshape", a, shape=shape)


def _squeeze(engine: Computing, a: DTensor, axis: Any = None) -> DTensor:
    ones = [place for place, extent in enumerate(a.shape) if extent == 1]
    gone = ones if axis is None else normal_axes(axis, a.ndim)
    for place in gone:
        if place not in ones:
            raise ConfigError(f"axis {place} of {tuple(a.shape)} is not of extent 1")
    shape = [extent for place, extent in enumerate(a.shape) if place not in gone]
    return engine.call("reshape", a, shape=shape)


def _ravel(engine: Computing, a: DTensor, order: str = "C") -> DTensor:
    return _reshape(engine, a, -1, order)


def _flat(engine: Computing, array: Any) -> Any:
    if isinstance(array, DTensor):
        return engine.call("reshape", array, shape=(-1,))
    return np.asarray(array).reshape(-1)


def _no_out(name: str, out: object) -> None:
    if out is not None:
        raise ConfigError(f"numpy.{name} cannot write distributed tensors into out")


def _shape(_engine: Computing, a: DTensor) -> tuple[int, ...]:
    return tuple(a.shape)


def _ndim(_engine: Computing, a: DTensor) -> int:
    return a.ndim


def _size(_engine: Computing, a: DTensor, axis: Any = None) -> int:
    return a.size if axis is None else math.prod(a.shape[at] for at in normal_axes(axis, a.ndim))


FUNCTIONS: dict[Callable[..., Any], Composite] = {
    np.sum: _named("sum", "a", "axis", "dtype", "out", "keepdims"),
    np.prod: _named("prod", "a", "axis", "dtype", "out", "keepdims"),
    np.max: _named("max", "a", "axis", "out", "keepdims"),
    np.min: _named("min", "a", "axis", "out", "keepdims"),
    np.any: _named("any", "a", "axis", "out", "keepdims"),
    np.all: _named("all", "a", "axis", "out", "keepdims"),
    np.mean: _named("mean", "a", "axis", "dtype", "out", "keepdims"),
    np.argmax: _arg("argmax"),
    np.argmin: _arg("argmin"),
    np.transpose: _named("transpose", "a", "axes"),
    np.reshape: _reshape,
    np.ravel: _ravel,
    np.squeeze: _squeeze,
    np.expand_dims: _expand_dims,
    np.swapaxes: _swapaxes,
    np.where: _where,
    np.clip: _np_clip,
    np.round: _round,
    np.around: _round,
    np.take: _take,
    np.concatenate: _concatenate,
    np.stack: _stack,
    np.einsum: _einsum,
    np.dot: _dot,
    np.shape: _shape,
    np.ndim: _ndim,
    np.size: _size,
}
"""By numpy's functions that are no ufuncs."""
