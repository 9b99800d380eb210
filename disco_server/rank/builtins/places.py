"""Places in a worker's part of a tensor: where they are, and giving them other values."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from disco_client.wire.partition import taken
from disco_server.devices.foreign import native
from disco_server.rank.functions import NamedCall, register_func
from disco_server.rank.worker import Worker, current_worker

__all__ = ["in_bounds", "local_slices"]

Array = Any

_UFUNCS: Mapping[str, str] = {"add": "add", "min": "minimum", "max": "maximum"}


class _SliceRun(NamedTuple):
    """What one piece of a part has of a slice.

    Attributes:
        there: The indices of the part.
        first: How many indices of the slice come before them.
        length: How many they are.
    """

    there: slice
    first: int
    length: int


def local_slices(pieces: Sequence[Sequence[int]], item: Sequence[int]) -> list[_SliceRun]:
    """Where a slice of an axis lies in a part, piece by piece in the order of the slice.

    Args:
        pieces: What the part has of the axis, from the first index of each piece to the one
            behind its last, one behind the other.
        item: The first index that the slice takes, how many, and the step.

    Returns:
        One run that has none if the part has nothing of the slice.
    """
    start, count, step = item
    found: list[_SliceRun] = []
    at = 0
    for first, last in pieces:
        low, high = taken((first, last), (start, count, step))
        if low < high:
            begin = at + start + low * step - first
            end = begin + (high - low) * step
            found.append(_SliceRun(slice(begin, end if end >= 0 else None, step), low, high - low))
        at += last - first
    return (found if step > 0 else found[::-1]) or [_SliceRun(slice(0, 0), 0, 0)]


def in_bounds(xp: Any, ids: Array, extent: int) -> Array:
    """Positions of any integer dtype as int64, counted from the front.

    Raises:
        IndexError: One is beyond the axis; on every worker that has it, whatever part of the
            axis is there, so that none takes part in a sum that lacks its row.
    """
    wide = ids.astype(np.int64)
    lowest = 0 if ids.dtype.kind == "u" else -extent  # the largest uint64 are negative by now
    beyond = (wide < lowest) | (wide >= extent)
    if bool(beyond.any()):
        position = ids.reshape(-1)[beyond.reshape(-1)][0]
        msg = f"position {position} is out of bounds for an axis of {extent}"
        raise IndexError(msg)
    return xp.where(wide < 0, wide + extent, wide)


@register_func("runtime.disco._dt_bind_put")
def bind_put(
    axes: Sequence[int],
    at: Sequence[int],
    held: Sequence[Any],
    extents: Sequence[int],
    how: str,
) -> NamedCall:
    """Makes a function that makes a worker's part with other values in a place.

    It takes the part, or the number of its register if its memory may be used; this worker's
    part of the values, with an axis in front for the positions, if there are any; the positions
    along each axis; and what a slice takes of each axis. It returns None outside the mesh.

    Args:
        axes: Of which a slice takes some.
        at: Of which positions take some.
        held: For each worker the pieces of each of these that it has; None outside the mesh.
        extents: Of the axes of which positions take some.
        how: What becomes of the elements: ``set``, ``add``, ``min`` or ``max``.

    Raises, when it is called:
        IndexError: A position is beyond its axis.
    """
    worker = current_worker()
    mine = held[worker.worker_id]
    count = len(at)

    def put(whole: Any, values: Array, *given: Any) -> Array:
        if mine is None:
            return None
        ids, bounds = given[:count], given[count:]
        own, here = _own_positions(worker.xp, ids, mine[len(axes) :], extents)
        out = _part(worker, whole)
        slices = [
            local_slices(pieces, bounds[3 * number : 3 * number + 3])
            for number, pieces in enumerate(mine[: len(axes)])
        ]
        rest = [axis for axis in range(out.ndim) if axis not in at]
        for block in itertools.product(*map(_with_starts, slices)):
            there: list[slice] = [slice(None)] * out.ndim
            taken_from: list[Any] = [slice(None)] * (values.ndim and len(rest) + bool(count))
            for axis, (run, start, total) in zip(axes, block, strict=True):
                there[axis] = run.there
                if values.ndim:
                    place = rest.index(axis) + bool(count)
                    taken_from[place] = _source(values.shape[place], run, start, total)
            view, chosen = out[(*there, ...)], values[(*taken_from, ...)]
            if count:
                view = worker.xp.moveaxis(view, at, range(count))
                if chosen.ndim and chosen.shape[0] == here.shape[0]:
                    chosen = chosen[here]
            _change(worker.xp, how, view, own, chosen)
        return out

    return NamedCall("setitem", put)


@register_func("runtime.disco._dt_bind_put_where")
def bind_put_where(how: str) -> NamedCall:
    """Makes a function that makes a worker's part with other values where a mask is true.

    It takes the part, or the number of its register if its memory may be used, and what is
    broadcast to it: values, and the mask. It returns None outside the mesh.

    Args:
        how: What becomes of the elements: ``set``, ``add``, ``min`` or ``max``.
    """
    worker = current_worker()

    def put(whole: Any, values: Array, mask: Array) -> Array:
        if mask is None:
            return None
        out, xp = _part(worker, whole), worker.xp
        new = values if how == "set" else getattr(xp, _UFUNCS[how])(out, values)
        xp.copyto(out, new, where=mask)
        return out

    return NamedCall("setitem", put)


def _part(worker: Worker, whole: Any) -> Array:
    """A part to be overwritten: the register's own array if nobody else has it, or a copy."""
    if isinstance(whole, int):
        alone = worker.registers.sole_array(whole, worker.arrays.kind)
        if alone is not None:
            return alone
        whole = worker.registers.read(whole)
    return native(whole).copy()


def _own_positions(
    xp: Any, ids: Sequence[Array], held: Sequence[Any], extents: Sequence[int]
) -> tuple[tuple[Array, ...], Array]:
    """Positions in the part for those of the whole that it has, and which these are."""
    if not ids:
        return (), None
    places: list[Array] = []
    here = xp.ones(ids[0].shape, bool)
    for each, pieces, extent in zip(ids, held, extents, strict=True):
        position = in_bounds(xp, each, extent)
        own = xp.full(position.shape, -1)
        start = 0
        for first, last in pieces:
            inside = (position >= first) & (position < last)
            own = xp.where(inside, position - first + start, own)
            start += last - first
        here &= own >= 0
        places.append(own)
    return tuple(own[here] for own in places), here


def _with_starts(runs: Sequence[_SliceRun]) -> list[tuple[_SliceRun, int, int]]:
    """Runs of a slice, how many of its indices the part has before each, and in all."""
    ends = list(itertools.accumulate(run.length for run in runs))
    return [(run, end - run.length, ends[-1]) for run, end in zip(runs, ends, strict=True)]


def _source(extent: int, run: _SliceRun, start: int, total: int) -> slice:
    """Which values are for a run: of one for all, of those that the part needs, or of all."""
    if extent == 1:
        return slice(None)
    begin = start if extent == total else run.first
    return slice(begin, begin + run.length)


def _change(xp: Any, how: str, view: Array, own: tuple[Array, ...], values: Array) -> None:
    if how == "set":
        view[(*own, ...)] = values
    elif own:
        getattr(xp, _UFUNCS[how]).at(view, own, values)
    else:
        view[...] = getattr(xp, _UFUNCS[how])(view, values)
