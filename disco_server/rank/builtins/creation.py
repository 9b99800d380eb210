"""Parts of tensors that are made on the workers, from their positions in the whole.

Which positions a worker has of each axis, its pieces, is bound once; what differs from call to
call, such as where a range begins, comes with the command.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from disco_client.wire.values import dtype_from_name
from disco_server.rank.builtins.draws import random_part
from disco_server.rank.builtins.own_functions import from_function
from disco_server.rank.functions import NamedCall, register_func
from disco_server.rank.worker import current_worker

__all__ = ["CREATORS"]

_SINGLE = np.dtype(np.float32)

Array = Any
Pieces = Sequence[Sequence[Sequence[int]]]
"""Of each axis the first index and the one behind the last of each piece."""


def _extents(pieces: Pieces) -> tuple[int, ...]:
    return tuple(sum(last - first for first, last in axis) for axis in pieces)


def _positions(xp: Any, axis: Sequence[Sequence[int]]) -> Array:
    """The indices of an axis that this worker has."""
    parts = [xp.arange(first, last) for first, last in axis]
    return xp.concatenate(parts) if parts else xp.arange(0)


def _full(xp: Any, pieces: Pieces, dtype: np.dtype[Any], value: Array) -> Array:
    return xp.full(_extents(pieces), value, dtype)


def _arange(xp: Any, pieces: Pieces, dtype: np.dtype[Any], first: Array, second: Array) -> Array:
    """By the first two numbers in the dtype, as numpy computes the others of them."""
    at = _positions(xp, pieces[0])
    # Of narrow floating-point numbers numpy computes in single precision.
    narrow = dtype.kind not in "iub" and dtype.itemsize < _SINGLE.itemsize
    wide = _SINGLE if narrow else dtype
    start, following = (each.astype(dtype).astype(wide) for each in (first, second))
    out = (start + at.astype(wide) * (following - start)).astype(dtype)
    # The sum of the first one and a difference from it may be another number.
    return xp.where(at == 1, following.astype(dtype), out)


def _linspace(
    xp: Any,
    pieces: Pieces,
    dtype: np.dtype[Any],
    start: Array,
    stop: Array,
    count: int,
    closed: bool,
) -> Array:
    """As numpy does it: multiples of the step, and the last one exactly."""
    at = _positions(xp, pieces[0])
    divisions = count - 1 if closed else count
    apart = stop - start
    if divisions > 0:
        step = apart / divisions
        out = at * step if step != 0 else at / divisions * apart
    else:
        out = at * apart
    out = out + start
    if closed and count > 1:
        out = xp.where(at == count - 1, stop, out)
    return (xp.floor(out) if dtype.kind in "iu" else out).astype(dtype)


def _eye(xp: Any, pieces: Pieces, dtype: np.dtype[Any], offset: int) -> Array:
    rows, columns = (_positions(xp, axis) for axis in pieces)
    return (columns[None, :] - rows[:, None] == offset).astype(dtype)


def _tri(xp: Any, pieces: Pieces, dtype: np.dtype[Any], offset: int) -> Array:
    rows, columns = (_positions(xp, axis) for axis in pieces)
    return (columns[None, :] - rows[:, None] <= offset).astype(dtype)


def _indices(xp: Any, pieces: Pieces, dtype: np.dtype[Any], axis: int) -> Array:
    """The index along an axis of each element."""
    shape = [1] * len(pieces)
    shape[axis] = -1
    at = _positions(xp, pieces[axis]).reshape(shape)
    return xp.ascontiguousarray(xp.broadcast_to(at, _extents(pieces))).astype(dtype)


CREATORS: Mapping[str, Callable[..., Array]] = {
    "full": _full,
    "arange": _arange,
    "linspace": _linspace,
    "eye": _eye,
    "tri": _tri,
    "indices": _indices,
    "random": random_part,
    "fromfunction": from_function,
}


@register_func("runtime.disco._dt_bind_creator")
def bind_creator(name: str, pieces: Sequence[Any], dtype: str) -> NamedCall:
    """Makes a function that makes this worker's part of a tensor; None outside the mesh.

    Args:
        name: How it is made.
        pieces: For each worker what it has of each axis.
        dtype: Of the elements.
    """
    worker = current_worker()
    mine = pieces[worker.worker_id]
    if mine is None:
        return NamedCall(name, lambda *_: None)
    return NamedCall(name, partial(CREATORS[name], worker.xp, mine, dtype_from_name(dtype)))
