"""The local halves of a distributed tensor's moves; see ``disco_client.distributed.plan``.

A command is the same for every worker, so what differs from worker to worker comes in
tables with an entry for each: None for a worker outside the mesh, which holds nothing.

A move is bound to its tables and teams once, and then called with what it moves.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from disco_client.wire.values import dtype_from_name
from disco_server.collectives.base import ReduceOp
from disco_server.runtime.context import current_worker
from disco_server.runtime.functions import NamedCall, register_func

__all__: list[str] = []

Array = np.ndarray[Any, Any]
Table = Sequence[Any]


def _mine(table: Table) -> Any:
    return table[current_worker().worker_id]


def _new(like: Array, shape: Sequence[int]) -> Array:
    return current_worker().arrays.empty(tuple(shape), like.dtype)


def _with(shape: Sequence[int], axis: int, extent: int) -> tuple[int, ...]:
    return (*shape[:axis], extent, *shape[axis + 1 :])


def _flat(array: Array) -> Array:
    xp: Any = current_worker().xp
    return xp.ascontiguousarray(array).reshape(-1)


def _empty(shapes: Table, dtype: Any) -> Array | None:
    """Makes room for this worker's part."""
    shape = _mine(shapes)
    if shape is None:
        return None
    return current_worker().arrays.empty(tuple(shape), dtype_from_name(dtype))


def _from_host(whole: Array, bounds: Table) -> Array | None:
    """Takes this worker's part of an array that came with the command."""
    return None if _mine(bounds) is None else _slice(whole, bounds)


def _slice(local: Array | None, bounds: Table) -> Array | None:
    """Takes a part of what this worker has; a copy, so that the rest can go.

    Args:
        local: What it has.
        bounds: For each worker first and last of each axis, one after the other.
    """
    if local is None:
        return None
    mine = _mine(bounds)
    part = tuple(slice(first, last) for first, last in zip(mine[::2], mine[1::2], strict=True))
    # Not local[part] alone, which of an array without axes is no array.
    return local[(*part, ...)].copy()


def _keep(local: Array | None, op: str, keeps: Table) -> Array | None:
    """Makes copies parts of a sum: one keeps its values, the others get neutral ones."""
    if local is None or op in ("min", "max") or _mine(keeps):
        return local
    xp: Any = current_worker().xp
    return xp.ones_like(local) if op == "prod" else xp.zeros_like(local)


def _broadcast(local: Array | None, team: Any) -> Array | None:
    """Copies what the first of a line has to all of it."""
    if local is not None and team is not None:
        team.broadcast(local, local, 0)
    return local


def _allreduce(local: Array | None, team: Any, op: str) -> Array | None:
    """Combines what those of a line have, for all of them."""
    if local is None:
        return None
    out = _new(local, local.shape)
    team.allreduce(local, out, ReduceOp.from_name(op))
    return out


def _allgather(local: Array | None, team: Any, axis: int, extents: Table) -> Array | None:
    """Puts the parts of a line together along an axis.

    Args:
        local: This worker's part.
        team: The line.
        axis: Of the tensor.
        extents: For each worker the extents of the parts of its line.
    """
    if local is None:
        return None
    parts = list(_mine(extents))
    whole = _with(local.shape, axis, sum(parts))
    rest = math.prod(_with(local.shape, axis, 1))
    flat = _new(local, (sum(parts) * rest,))
    team.allgather(_flat(local), flat, [extent * rest for extent in parts])
    return _join(flat, [_with(local.shape, axis, extent) for extent in parts], axis, whole)


def _reduce_scatter(
    local: Array | None, team: Any, op: str, axis: int, extents: Table
) -> Array | None:
    """Combines what those of a line have, and leaves each its part along an axis."""
    if local is None:
        return None
    parts = list(_mine(extents))
    rest = math.prod(_with(local.shape, axis, 1))
    out = _new(local, _with(local.shape, axis, parts[team.rank]))
    source = _split(local, parts, axis)
    team.reduce_scatter(source, out, ReduceOp.from_name(op), [part * rest for part in parts])
    return out


def _all_to_all(
    local: Array | None, team: Any, source_axis: int, target_axis: int, have: Table, want: Table
) -> Array | None:
    """Splits along another axis: each gets its part of the parts of the others.

    Args:
        local: This worker's part.
        team: The line.
        source_axis: Along which the tensor is split.
        target_axis: Along which it is to be.
        have: For each worker the extents along the first axis in its line.
        want: The same along the second one.
    """
    if local is None:
        return None
    had, wanted = list(_mine(have)), list(_mine(want))
    rest = math.prod(_with(_with(local.shape, source_axis, 1), target_axis, 1))
    counts = [[mine * its * rest for its in wanted] for mine in had]
    across = _with(local.shape, target_axis, wanted[team.rank])
    shapes = [_with(across, source_axis, extent) for extent in had]
    flat = _new(local, (sum(math.prod(shape) for shape in shapes),))
    team.all_to_all(_split(local, wanted, target_axis), flat, counts)
    return _join(flat, shapes, source_axis, _with(across, source_axis, sum(had)))


def _split(array: Array, extents: Sequence[int], axis: int) -> Array:
    """The parts along an axis, each in C order, one after the other."""
    if math.prod(array.shape[:axis]) == 1:
        return _flat(array)
    flat = _new(array, (array.size,))
    at = written = 0
    for extent in extents:
        part = array[(slice(None),) * axis + (slice(at, at + extent),)]
        flat[written : written + part.size].reshape(part.shape)[...] = part
        at += extent
        written += part.size
    return flat


def _join(
    flat: Array, shapes: Sequence[tuple[int, ...]], axis: int, whole: tuple[int, ...]
) -> Array:
    """What :func:`_split` took apart."""
    if math.prod(whole[:axis]) == 1:
        return flat.reshape(whole)
    xp: Any = current_worker().xp
    pieces: list[Array] = []
    at = 0
    for shape in shapes:
        size = math.prod(shape)
        pieces.append(flat[at : at + size].reshape(shape))
        at += size
    return xp.concatenate(pieces, axis=axis)


_MOVES: Mapping[str, Callable[..., Array | None]] = {
    "empty": _empty,
    "from_host": _from_host,
    "slice": _slice,
    "keep": _keep,
    "broadcast": _broadcast,
    "allreduce": _allreduce,
    "allgather": _allgather,
    "reduce_scatter": _reduce_scatter,
    "all_to_all": _all_to_all,
}


@register_func("runtime.disco._dt_bind_move")
def bind_move(name: str, *constants: Any) -> NamedCall:
    """Makes a function of a move: it takes what is to be moved, if anything.

    Args:
        name: The move's.
        *constants: What it takes besides.
    """
    move = _MOVES[name]
    return NamedCall(name, lambda *local: move(*local, *constants))
