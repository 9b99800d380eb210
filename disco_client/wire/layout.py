"""Which part of a distributed tensor lies where: the arithmetic both sides share.

A tensor lies on a grid of workers, the mesh. Along each axis of the mesh it is
either split along one of its own axes, or not split at all. Several axes of the
mesh may split the same axis of the tensor: the first one cuts it, the next one cuts
each piece, and so on.
"""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["WHOLE", "Bounds", "bounds_of", "coordinate_of", "cut", "line_of", "shape_within"]

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
