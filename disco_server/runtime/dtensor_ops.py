"""What a worker computes of its part of distributed tensors: a closed list of functions.

Each takes the module of the worker's arrays, numpy or cupy, then its operands, then
options by name.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from typing import Any

import numpy as np

from disco_client.wire.elementwise import ELEMENTWISE
from disco_client.wire.values import dtype_from_name
from disco_server.runtime.context import current_worker
from disco_server.runtime.functions import NamedCall, register_func, resolve
from disco_server.runtime.norms import layer_norm, rms_norm, softmax

__all__ = ["LOCAL"]

Array = Any
Local = Callable[..., Array]


def _reduction(name: str) -> Local:
    def reduce(xp: Any, x: Array, *, axis: Sequence[int], keepdims: bool, dtype: str) -> Array:
        axes = tuple(axis)
        kind = dtype_from_name(dtype)
        if name in ("max", "min") and not all(x.shape[a] for a in axes):
            # A worker without elements has what changes nothing.
            shape = tuple(1 if a in axes else n for a, n in enumerate(x.shape))
            out = xp.full(shape, _neutral(name, kind), kind)
            return (
                out if keepdims else out.reshape([n for a, n in enumerate(shape) if a not in axes])
            )
        extra: dict[str, Any] = {"dtype": kind} if name in ("sum", "prod") else {}
        return xp.asarray(getattr(xp, name)(x, axis=axes, keepdims=keepdims, **extra))

    return reduce


def _neutral(name: str, dtype: np.dtype[Any]) -> Any:
    if dtype.kind == "b":
        return name == "min"
    if dtype.kind in "iu":
        info = np.iinfo(dtype)
        return info.min if name == "max" else info.max
    return -np.inf if name == "max" else np.inf


def _relu(xp: Any, x: Array) -> Array:
    return xp.maximum(x, x.dtype.type(0))


def _silu(xp: Any, x: Array) -> Array:
    return x / (x.dtype.type(1) + xp.exp(-x))


def _sigmoid(xp: Any, x: Array) -> Array:
    return x.dtype.type(1) / (x.dtype.type(1) + xp.exp(-x))


def _gelu(xp: Any, x: Array) -> Array:
    # Hendrycks and Gimpel, arXiv:1606.08415, section 2: the form with tanh.
    kind = x.dtype.type
    inner = kind(0.7978845608028654) * (x + kind(0.044715) * x * x * x)
    return kind(0.5) * x * (kind(1) + xp.tanh(inner))


def _take_part(xp: Any, x: Array, ids: Array, *, axis: int, first: int, extent: int) -> Array:
    """Those of the rows that are here; zeros for the others, whose sum makes them whole."""
    if x.shape[axis] == extent:
        return xp.take(x, ids, axis=axis)
    own = xp.where(ids < 0, ids + extent, ids) - first
    here = (own >= 0) & (own < x.shape[axis])
    if not x.shape[axis]:
        return xp.zeros((*x.shape[:axis], *ids.shape, *x.shape[axis + 1 :]), x.dtype)
    rows = xp.take(x, xp.where(here, own, 0), axis=axis)
    mask = here.reshape((1,) * axis + ids.shape + (1,) * (x.ndim - axis - 1))
    return xp.where(mask, rows, xp.zeros((), x.dtype))


def _slice(xp: Any, x: Array, *, items: Sequence[Any]) -> Array:
    index = tuple(slice(*item) for item in items)
    return xp.ascontiguousarray(x[index])


def _matmul(xp: Any, x: Array, y: Array) -> Array:
    return xp.matmul(x, y)


def _einsum(xp: Any, *operands: Array, subscripts: str) -> Array:
    # Of more than two, the order matters; of two there is but one.
    return xp.einsum(subscripts, *operands, optimize=True)


def _arg(name: str) -> Local:
    def find(xp: Any, x: Array, *, axis: int) -> Array:
        return getattr(xp, name)(x, axis=axis)

    return find


def _transpose(xp: Any, x: Array, *, axes: Sequence[int]) -> Array:
    return xp.ascontiguousarray(xp.transpose(x, tuple(axes)))


def _reshape(xp: Any, x: Array, *, shape: Sequence[int]) -> Array:
    return xp.reshape(x, tuple(shape))


def _concatenate(xp: Any, *operands: Array, axis: int) -> Array:
    return xp.concatenate(operands, axis=axis)


def _update(xp: Any, x: Array, values: Array, start: Any, *, axis: int) -> Array:
    out = x.copy()
    # As positions and not as a slice, for which a GPU would have to be asked for the start.
    out[(slice(None),) * axis + (start + xp.arange(values.shape[axis]),)] = values
    return out


def _where(xp: Any, condition: Array, x: Array, y: Array) -> Array:
    return xp.where(condition, x, y)


def _cast(_xp: Any, x: Array, *, dtype: str) -> Array:
    return x.astype(dtype_from_name(dtype))


LOCAL: Mapping[str, Local] = {
    "matmul": _matmul,
    "einsum": _einsum,
    **{name: _reduction(name) for name in ("sum", "prod", "max", "min", "any", "all")},
    "argmax": _arg("argmax"),
    "argmin": _arg("argmin"),
    "softmax": softmax,
    "layer_norm": layer_norm,
    "rms_norm": rms_norm,
    "relu": _relu,
    "silu": _silu,
    "gelu": _gelu,
    "sigmoid": _sigmoid,
    "transpose": _transpose,
    "reshape": _reshape,
    "slice": _slice,
    "concatenate": _concatenate,
    "take": _take_part,
    "update": _update,
    "where": _where,
    "cast": _cast,
}
"""The others, by the names of ``disco_client.distributed``."""


@register_func("runtime.disco._dt_bind")
def bind(name: str, options: dict[str, Any], tables: dict[str, Any]) -> NamedCall:
    """Makes a function that computes this worker's part of the parts of the operands.

    It takes these parts, and numbers, and returns an array, also one without axes; or
    None where the worker is outside the mesh and has no parts.

    Args:
        name: The function.
        options: What it takes besides, by name.
        tables: The same where it differs from worker to worker: a list with an entry
            for each.

    Raises, when it is called:
        FunctionMissing: There is no such function.
        ModuleNotAllowed: Its name leads through a module that is not allowed.
    """
    worker = current_worker()
    xp: Any = worker.xp
    own = {**options, **{key: table[worker.worker_id] for key, table in tables.items()}}
    if name in ELEMENTWISE:
        function = getattr(xp, name)
    elif name in LOCAL:
        function = partial(LOCAL[name], xp, **own)
    else:
        # When it is called: what registers it may be imported later than this.
        find = cache(partial(resolve, name, worker.allow_modules, worker.allow_functions))

        def function(*operands: Any) -> Any:
            return find()(*operands, **own)

    def compute(*operands: Any) -> Any:
        for operand in operands:
            if operand is None:
                return None
        return xp.asarray(function(*operands))

    return NamedCall(name, compute)
