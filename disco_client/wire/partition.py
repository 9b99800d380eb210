"""How one axis of a tensor is divided among workers: the arithmetic both sides share.

The words are those of placements: ``R`` is replicated, ``S[axis]`` is split along
an axis.
"""

from __future__ import annotations

from collections.abc import Sequence

from disco_client.errors import ConfigError

__all__ = [
    "WHOLE",
    "Bounds",
    "Intervals",
    "Progression",
    "bounds_of",
    "coordinate_of",
    "cut",
    "divide",
    "divide_all",
    "length_of",
    "line_of",
    "shape_within",
    "taken",
]


Intervals = tuple[tuple[int, int], ...]
"""Pieces of an axis, each from its first index to the one behind its last."""


Progression = tuple[int, int, int]
"""Which indices of an axis a slice takes: the first one, how many, and the step."""


def taken(piece: tuple[int, int], item: Progression) -> tuple[int, int]:
    """Which indices of a slice lie in a piece of the axis: the first one, and that behind the last.

    Args:
        piece: From its first index to the one behind its last.
        item: What the slice takes of the axis.
    """
    start, count, step = item
    # From the index of the piece that the slice meets first to the one that it meets behind it.
    near, far = piece if step > 0 else (piece[1] - 1, piece[0] - 1)
    low, high = (min(max(-((start - at) // step), 0), count) for at in (near, far))
    return low, high


def divide_all(
    extent: int, workers: int, fused: int | tuple[int, ...] = 1, *, uneven: bool = True
) -> tuple[Intervals, ...]:
    """Cuts an axis that was fused of several matrices, each of them by itself.

    Args:
        extent: Of the axis.
        workers: Among how many.
        fused: The number of matrices, if they are equally long, or the extent of each.
        uneven: Whether an extent may be one that the workers do not divide.

    Returns:
        For each worker its pieces.

    Raises:
        ConfigError: The matrices do not make up the axis, or are not divided evenly.
    """
    sizes = _sizes_of(extent, fused)
    for size in sizes:
        if size % workers and not uneven:
            what = "its extent" if fused == 1 else "the extent of a part,"
            msg = f"{what} {size} cannot be divided by {workers} workers without uneven=True"
            raise ConfigError(msg)
    return tuple(divide(sizes, workers, index) for index in range(workers))


def _sizes_of(extent: int, fused: int | tuple[int, ...]) -> tuple[int, ...]:
    if isinstance(fused, tuple):
        if sum(fused) != extent:
            msg = f"its extent {extent} is not the sum {sum(fused)} of parts {fused}"
            raise ConfigError(msg)
        return fused
    if extent % fused:
        msg = f"its extent {extent} cannot be cut into {fused} equal parts"
        raise ConfigError(msg)
    return (extent // fused,) * fused


def length_of(pieces: Intervals) -> int:
    """How many indices pieces of an axis have together."""
    return sum(stop - start for start, stop in pieces)


def divide(sizes: Sequence[int], workers: int, index: int) -> Intervals:
    """Cuts each part of an axis among workers, and returns the pieces of one of them.

    Args:
        sizes: The extents of the parts, one after the other.
        workers: Among how many.
        index: Which of them.

    Returns:
        Its pieces in the order of the axis, none empty, adjacent ones joined.
    """
    pieces: list[tuple[int, int]] = []
    at = 0
    for size in sizes:
        each, more = divmod(size, workers)
        start = at + index * each + min(index, more)
        stop = start + each + (index < more)
        at += size
        if start == stop:
            continue
        if pieces and pieces[-1][1] == start:
            start = pieces.pop()[0]
        pieces.append((start, stop))
    return tuple(pieces)


# Which part of a distributed tensor lies where: the arithmetic both sides share.
#
# A tensor lies on a grid of workers, the mesh. Along each axis of the mesh it is
# either split along one of its own axes, or not split at all. Several axes of the
# mesh may split the same axis of the tensor: the first one cuts it, the next one cuts
# each piece, and so on.


WHOLE = -1
"""Stands for the axis of the tensor where an axis of the mesh does not split it."""

Bounds = tuple[tuple[int, int], ...]
"""For each axis of a tensor the first index of a part, and the one behind its last."""


def cut(start: int, stop: int, parts: int, index: int) -> tuple[int, int]:
    """Cuts an interval into parts as equal as can be, as :func:`numpy.array_split` does.

    The first parts get one more where it does not divide evenly; the last ones are
    empty where there are more parts than indices.

    Args:
        start: Of the interval.
        stop: Behind its end.
        parts: How many.
        index: Which of them is wanted.
    """
    each, more = divmod(stop - start, parts)
    first = start + index * each + min(index, more)
    return first, first + each + (index < more)


def coordinate_of(mesh: Sequence[int], place: int) -> tuple[int, ...]:
    """Where on a mesh of this shape the worker at a place of its row-major list is."""
    found: list[int] = []
    for extent in reversed(mesh):
        place, index = divmod(place, extent)
        found.append(index)
    return tuple(reversed(found))


def line_of(mesh: Sequence[int], place: int, axis: int) -> tuple[int, ...]:
    """The places of those that differ from one along an axis of the mesh only, in order."""
    step = 1
    for extent in mesh[axis + 1 :]:
        step *= extent
    first = place - place // step % mesh[axis] * step
    return tuple(first + index * step for index in range(mesh[axis]))


def bounds_of(
    shape: Sequence[int], mesh: Sequence[int], axes: Sequence[int], coordinate: Sequence[int]
) -> Bounds:
    """The part of a tensor that the worker at a coordinate of the mesh holds.

    Args:
        shape: Of the tensor.
        mesh: The shape of the mesh.
        axes: For each axis of the mesh the tensor's axis that it splits, or WHOLE.
        coordinate: Of the worker.
    """
    bounds = [(0, extent) for extent in shape]
    for parts, axis, index in zip(mesh, axes, coordinate, strict=True):
        if axis != WHOLE:
            bounds[axis] = cut(*bounds[axis], parts, index)
    return tuple(bounds)


def shape_within(bounds: Bounds) -> tuple[int, ...]:
    """The shape of a part."""
    return tuple(stop - start for start, stop in bounds)
