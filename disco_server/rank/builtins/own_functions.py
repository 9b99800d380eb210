"""Parts of tensors that a function of the session's own makes: of indices, or of parts with halos.

Such a function gets arrays that it cannot write into, because one of them may be the part of a
tensor itself. It is not called where the part has no elements.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from disco_client.wire.values import dtype_from_name
from disco_server.rank.builtins.tensors import as_part
from disco_server.rank.errors import ArgumentRefused
from disco_server.rank.functions import NamedCall, register_func, resolve
from disco_server.rank.worker import current_worker

__all__ = ["from_function"]

Array = Any
Function = Any
"""The name of a function, or one that a register holds."""
Pieces = Sequence[Sequence[int]]
"""What a worker has of an axis: the first index of each piece, and the one behind its last."""


def _found(function: Function) -> Callable[..., Any]:
    """The function of a name; at each call, as its module may be loaded again."""
    if isinstance(function, str):
        worker = current_worker()
        return resolve(function, worker.allow_modules, worker.allow_functions)
    if not callable(function):
        msg = f"expected a function or its name, got {function!r}"
        raise ArgumentRefused(msg)
    return function


def _name_of(function: Function) -> str:
    if isinstance(function, str):
        return function
    return getattr(function, "name", None) or getattr(function, "__qualname__", "the function")


def _read_only(xp: Any, array: Array) -> Array:
    if xp is not np:
        return array
    view = array.view()
    view.flags.writeable = False
    return view


def _checked(
    xp: Any,
    function: Function,
    result: Any,
    shape: Sequence[int],
    dtype: np.dtype[Any],
    option: str,
) -> Array:
    """What a function returned as an array of the dtype of a result.

    Args:
        xp: The module of the arrays.
        function: The function.
        result: What it returned.
        shape: Of what was expected.
        dtype: Of what was expected; others become it where that loses only digits.
        option: Which of the program's arguments says the dtype.

    Raises:
        ArgumentRefused: It has another shape or dtype.
    """
    array = as_part(xp, result)
    if tuple(array.shape) != tuple(shape):
        found = tuple(array.shape)
        msg = f"{_name_of(function)} returned an array of shape {found}, expected {tuple(shape)}"
        raise ArgumentRefused(msg)
    if not np.can_cast(array.dtype, dtype, "same_kind"):
        msg = (
            f"{_name_of(function)} returned {array.dtype}, expected {dtype}; {option}= says which"
            " dtype the result has"
        )
        raise ArgumentRefused(msg)
    return array.astype(dtype, copy=False)


def _copy_if_shared(xp: Any, result: Array, given: Iterable[Array]) -> Array:
    """A result in memory of its own, where the function returned what it was given."""
    if any(xp.may_share_memory(result, each) for each in given):
        return result.copy()
    return result


# From indices.


def from_function(
    xp: Any,
    pieces: Sequence[Pieces],
    dtype: np.dtype[Any],
    function: Function,
    indices: str,
    options: Mapping[str, Any],
) -> Array:
    """What a function makes of the indices of a part; a number stands for all elements.

    Args:
        xp: The module of the arrays.
        pieces: Of each axis, what the part has.
        dtype: Of the part.
        function: Takes an array of indices for each axis, each of the shape of the part.
        indices: Their dtype.
        options: What it takes besides.

    Raises:
        ArgumentRefused: It returns another shape or dtype.
    """
    shape = tuple(sum(last - first for first, last in axis) for axis in pieces)
    if not math.prod(shape):
        return xp.empty(shape, dtype)
    kind = dtype_from_name(indices)
    at: list[Array] = []
    for axis, held in enumerate(pieces):
        along = xp.concatenate([xp.arange(first, last) for first, last in held]).astype(kind)
        spread = (1,) * axis + (-1,) + (1,) * (len(shape) - axis - 1)
        at.append(_read_only(xp, xp.broadcast_to(along.reshape(spread), shape)))
    result = as_part(xp, _found(function)(*at, **options))
    expected = shape if result.ndim else ()
    result = _checked(xp, function, result, expected, dtype, "result_dtype")
    return _copy_if_shared(xp, result, at) if result.ndim else xp.full(shape, result)


# Of parts with halos.


class Along(NamedTuple):
    """What there is along an axis.

    Attributes:
        axis: The axis.
        depth: How many indices a halo has on either side.
        boundary: What is beyond the ends: "none", "reflect", "nearest", "periodic", or the bytes
            of a number.
        extent: How many indices the whole has.
        held: What the array has of it, halos included, piece by piece.
    """

    axis: int
    depth: int
    boundary: str | bytes
    extent: int
    held: Pieces

    def at(self, index: int) -> int:
        """Where in the array an index of the whole is."""
        before = 0
        for first, last in self.held:
            if first <= index < last:
                return before + index - first
            before += last - first
        msg = f"index {index} of axis {self.axis} is not among {self.held}"
        raise IndexError(msg)

    def source(self, index: int) -> int:
        """Which index of the whole stands at one beyond its ends."""
        if self.boundary == "periodic":
            return index % self.extent
        if self.boundary == "nearest":
            return 0 if index < 0 else self.extent - 1
        return -1 - index if index < 0 else 2 * self.extent - 1 - index

    def slice_of(self, first: int, count: int) -> tuple[slice, ...]:
        """So many indices of the array from one on."""
        return (*(slice(None),) * self.axis, slice(first, first + count))


def _with_halos(xp: Any, array: Array, along: Along, start: int, stop: int) -> tuple[Array, int]:
    """A piece of an axis with its halos, and how many indices are before it.

    Args:
        xp: The module of the arrays.
        array: The part.
        along: The axis.
        start: The first index of the piece.
        stop: The one behind its last.
    """
    low, high = start - along.depth, stop + along.depth
    first, last = max(low, 0), min(high, along.extent)
    middle = array[along.slice_of(along.at(first), last - first)]
    if along.boundary == "none" or (low, high) == (first, last):
        return middle, start - first
    ends = (_beyond(xp, array, along, each) for each in (range(low, first), range(last, high)))
    before, after = ends
    return xp.concatenate([before, middle, after], axis=along.axis), along.depth


def _beyond(xp: Any, array: Array, along: Along, wanted: range) -> Array:
    """What is beyond an end of the whole."""
    if isinstance(along.boundary, bytes):
        shape = list(array.shape)
        shape[along.axis] = len(wanted)
        return xp.full(shape, np.frombuffer(along.boundary, array.dtype)[0], array.dtype)
    return xp.take(array, [along.at(along.source(index)) for index in wanted], axis=along.axis)


class _HaloBlock(NamedTuple):
    """A part of a part, with halos.

    Attributes:
        array: With its halos.
        inner: Where the part is in it.
        place: Where in the whole part it is to go.
    """

    array: Array
    inner: tuple[slice, ...]
    place: tuple[slice, ...]

    @property
    def extents(self) -> tuple[int, ...]:
        """The shape without halos."""
        return tuple(each.stop - each.start for each in self.inner)


def _blocks(
    xp: Any, part: Array, axes: Sequence[Along], own: Sequence[Pieces], shape: Sequence[int]
) -> list[_HaloBlock]:
    """What the function is called with, one after the other.

    Args:
        xp: The module of the arrays.
        part: The part with halos.
        axes: Those with halos.
        own: Of each of these what the part has without halos; each piece is a block of its own.
        shape: Of the part without halos.
    """
    found: list[_HaloBlock] = []
    for pieces in itertools.product(*(list(zip(each, _starts(each), strict=True)) for each in own)):
        array = part
        inner, place = ([slice(0, extent) for extent in shape] for _ in range(2))
        for along, ((start, stop), at) in zip(axes, pieces, strict=True):
            array, before = _with_halos(xp, array, along, start, stop)
            inner[along.axis] = slice(before, before + stop - start)
            place[along.axis] = slice(at, at + stop - start)
        found.append(_HaloBlock(_read_only(xp, array), tuple(inner), tuple(place)))
    return found


def _starts(pieces: Pieces) -> list[int]:
    ends = list(itertools.accumulate((last - first for first, last in pieces), initial=0))
    return ends[:-1]


@register_func("runtime.disco._dt_bind_overlap")
def bind_overlap(
    function: str,
    axes: Sequence[Any],
    tables: Sequence[Any],
    trim: bool,
    dtype: str,
) -> NamedCall:
    """Makes a function that calls another one with this worker's part of a tensor and its halos.

    It takes the part with halos, and what that one takes besides by name, and it itself where
    it has no name. It returns the part without halos; None outside the mesh.

    Args:
        function: Its name; empty where it is given at each call.
        axes: For each axis with halos the axis, the depth, the boundary, and its extent.
        tables: For each worker the shape of its part, and of each of these axes its pieces
            without halos and with them.
        trim: Whether it returns halos, too, which are cut off.
        dtype: Of the result.

    Raises, when it is called:
        ArgumentRefused: The function returns another shape or dtype.
    """
    worker = current_worker()
    xp: Any = worker.xp
    said = dtype_from_name(dtype)
    mine = tables[worker.worker_id]
    if mine is None:
        return NamedCall("map_overlap", lambda *_: None)
    shape, own, held = tuple(mine[0]), mine[1], mine[2]
    along = [Along(*each[:4], held=pieces) for each, pieces in zip(axes, held, strict=True)]

    def compute(part: Array, options: Mapping[str, Any] | None = None, *given: Any) -> Array:
        if not math.prod(shape):
            return xp.empty(shape, said)
        chosen = given[0] if given else function
        called = _found(chosen)
        made: list[tuple[Array, _HaloBlock]] = []
        for block in _blocks(xp, part, along, own, shape):
            result = called(block.array, **(options or {}))
            expected = block.array.shape if trim else block.extents
            result = _checked(xp, chosen, result, expected, said, "dtype")
            result = result[(*block.inner, ...)] if trim else result
            made.append((_copy_if_shared(xp, result, (block.array,)), block))
        if len(made) == 1:
            return xp.ascontiguousarray(made[0][0]).reshape(shape)
        out = xp.empty(shape, said)
        for result, block in made:
            out[(*block.place, ...)] = result
        return out

    return NamedCall("map_overlap", compute)
