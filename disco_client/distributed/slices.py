"""Slices and concatenations that leave each element where it is.

A worker takes of its own part what a slice asks for, and puts its parts of several tensors one
behind the other. What the workers then hold of an axis is as uneven as it comes, so the result
lies in given parts (`PlacementSpec.explicit`), and nothing moves.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import Any, NamedTuple, TypeAlias

from disco_client.distributed.placement import (
    DTensorStructInfo,
    Placement,
    PlacementSpec,
    TensorStructInfo,
)
from disco_client.wire.partition import Intervals, Progression, coordinate_of, taken

__all__ = [
    "Bounds",
    "Region",
    "appended",
    "compressed",
    "held_along",
    "pieces_of",
    "places_along",
    "rows_along",
    "sliced",
    "split_along",
    "taken_by",
    "whole_along",
]


Bounds: TypeAlias = tuple[tuple[int, ...], tuple[int, ...]]
"""The axes of which not all is taken, and of each the first index, how many, and the step."""


def taken_by(shape: Sequence[int], items: Sequence[Any]) -> Bounds | None:
    """What slices take of a tensor; None if there is something else than slices, or too many."""
    axes: tuple[int, ...] = ()
    bounds: tuple[int, ...] = ()
    axis = 0
    for item in items:
        if type(item) is not slice or axis == len(shape):
            return None
        extent = shape[axis]
        start, stop, step = item.indices(extent)
        count = stop - start if step == 1 else len(range(start, stop, step))
        if count != extent or step < 0:
            axes += (axis,)
            bounds += (start, count, step) if count > 0 else (0, 0, 1)
        axis += 1  # noqa: SIM113  (which takes longer)
    return axes, bounds


class Region(NamedTuple):
    """Which elements of a tensor get other values; the function for it is bound once.

    Attributes:
        axes: Of which slices take some.
        at: Of which positions take some.
        how: What becomes of the elements: ``set``, ``add``, ``min`` or ``max``.
        is_masked: Whether it is those where a mask is true.
    """

    axes: tuple[int, ...]
    at: tuple[int, ...]
    how: str
    is_masked: bool = False


def split_along(info: DTensorStructInfo, axis: int) -> int | None:
    """The axis of the mesh that splits an axis of a tensor; None if there are none or several."""
    found = [at for at, each in enumerate(info.axes) if each == axis]
    return found[0] if len(found) == 1 else None


def whole_along(info: DTensorStructInfo, axes: Sequence[int]) -> Placement:
    """The placement with copies where several axes of the mesh split one of these axes.

    Of what is left of such an axis no placement could say what each worker holds.
    """
    copies = PlacementSpec.replica()
    twice = {axis for axis in axes if info.axes.count(axis) > 1}
    return Placement(
        copies if axis in twice else spec
        for axis, spec in zip(info.axes, info.placement.dim_specs, strict=True)
    )


def places_along(info: DTensorStructInfo, mesh_axis: int) -> list[int]:
    """The first place in the mesh with each coordinate along one of its axes."""
    mesh = info.device_mesh
    return [
        place
        for place in range(mesh.size)
        if not any(
            index
            for axis, index in enumerate(coordinate_of(mesh.shape, place))
            if axis != mesh_axis
        )
    ]


def held_along(info: DTensorStructInfo, mesh_axis: int) -> tuple[Intervals, ...]:
    """What each worker along an axis of the mesh holds of the tensor's axis that it splits."""
    axis = info.axes[mesh_axis]
    return tuple(pieces_of(info, place, axis) for place in places_along(info, mesh_axis))


def pieces_of(info: DTensorStructInfo, place: int, axis: int) -> Intervals:
    """The pieces that the worker at a place of the mesh has of an axis, without empty ones."""
    return tuple(piece for piece in info.pieces(place)[axis] if piece[0] < piece[1])


def sliced(
    info: DTensorStructInfo, axes: Sequence[int], bounds: Sequence[int]
) -> DTensorStructInfo:
    """How a slice of a tensor lies where each worker takes it of its own part.

    Args:
        info: The tensor.
        axes: Of which axes not all is taken; at most one axis of the mesh splits each.
        bounds: Of each of these the first index, how many, and the step.
    """
    specs = list(info.placement.dim_specs)
    shape = list(info.tensor_sinfo.shape)
    for number, axis in enumerate(axes):
        start, count, step = bounds[3 * number : 3 * number + 3]
        mesh_axis = split_along(info, axis)
        if mesh_axis is not None:
            held = held_along(info, mesh_axis)
            parts = tuple(_taken(pieces, (start, count, step)) for pieces in held)
            specs[mesh_axis] = PlacementSpec.explicit(axis, parts)
        shape[axis] = count
    whole = TensorStructInfo(shape, info.tensor_sinfo.dtype_name)
    return DTensorStructInfo(whole, info.device_mesh, Placement(specs))


def _taken(held: Intervals, item: Progression) -> Intervals:
    """Which indices of a slice lie in pieces of an axis, in ascending order."""
    in_order = held if item[2] > 0 else reversed(held)
    found = (taken(piece, item) for piece in in_order)
    return tuple(each for each in found if each[0] < each[1])


def rows_along(info: DTensorStructInfo, dtype: object) -> DTensorStructInfo:
    """How a row of something for each index of a tensor's first axis lies beside it."""
    copies = PlacementSpec.replica()
    specs = (
        copies if axis else spec
        for axis, spec in zip(info.axes, info.placement.dim_specs, strict=True)
    )
    whole = TensorStructInfo(info.tensor_sinfo.shape[:1], dtype)
    return DTensorStructInfo(whole, info.device_mesh, Placement(specs))


def compressed(info: DTensorStructInfo, counts: Sequence[Sequence[int]]) -> DTensorStructInfo:
    """How some indices of a tensor's first axis lie where each worker takes them of its part.

    Args:
        info: The tensor, whose first axis one axis of the mesh splits at most.
        counts: How many are taken of each piece of each worker along that axis of the mesh; of
            all indices, where none splits it.
    """
    specs = list(info.placement.dim_specs)
    mesh_axis = split_along(info, 0)
    if mesh_axis is not None:
        held = held_along(info, mesh_axis)
        taken_of = {
            piece: count
            for pieces, row in zip(held, counts, strict=True)
            for piece, count in zip(pieces, row, strict=False)
        }
        in_order = sorted(taken_of)
        ends = accumulate(taken_of[piece] for piece in in_order)
        new = {
            piece: (end - taken_of[piece], end) for piece, end in zip(in_order, ends, strict=True)
        }
        parts = [[new[piece] for piece in pieces if taken_of[piece]] for pieces in held]
        specs[mesh_axis] = PlacementSpec.explicit(0, parts)
    total = sum(map(sum, counts))
    whole = info.tensor_sinfo
    rows = TensorStructInfo((total, *whole.shape[1:]), whole.dtype_name)
    return DTensorStructInfo(rows, info.device_mesh, Placement(specs))


def appended(infos: Sequence[DTensorStructInfo], axis: int, dtype: object) -> DTensorStructInfo:
    """How a concatenation lies where each worker puts its own parts one behind the other.

    Args:
        infos: The tensors, of which one axis of the mesh splits this axis of each; but for that
            they lie alike.
        axis: The axis.
        dtype: Of the result.
    """
    first = infos[0]
    mesh_axis = first.axes.index(axis)
    extents = [info.tensor_sinfo.shape[axis] for info in infos]
    held = [held_along(info, mesh_axis) for info in infos]
    parts = [
        [
            (offset + start, offset + stop)
            for pieces, offset in zip(each, accumulate(extents, initial=0), strict=False)
            for start, stop in pieces[index]
        ]
        for each, index in ((held, at) for at in range(first.device_mesh.shape[mesh_axis]))
    ]
    specs = list(first.placement.dim_specs)
    specs[mesh_axis] = PlacementSpec.explicit(axis, parts)
    shape = list(first.tensor_sinfo.shape)
    shape[axis] = sum(extents)
    return DTensorStructInfo(TensorStructInfo(shape, dtype), first.device_mesh, Placement(specs))
