"""The tables by which workers learn what differs from one of them to the other."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from disco_client.distributed.mesh import DeviceMesh
from disco_client.distributed.struct_info import DTensorStructInfo
from disco_client.wire.layout import coordinate_of, line_of, shape_within
from disco_client.wire.values import Shape

__all__ = [
    "all_bounds",
    "first_places",
    "flat_bounds",
    "line_extents",
    "local_shapes",
    "per_worker",
]


def per_worker(mesh: DeviceMesh, num_workers: int, entries: Sequence[Any]) -> list[Any]:
    """Sorts entries by worker; None for workers outside the mesh.

    Args:
        mesh: The mesh.
        num_workers: Of the session.
        entries: In the order of the mesh's list.
    """
    table: list[Any] = [None] * num_workers
    for worker, entry in zip(mesh.device_ids, entries, strict=True):
        table[worker] = entry
    return table


def local_shapes(info: DTensorStructInfo) -> list[Shape]:
    """The shapes of the parts, in the order of the mesh's list."""
    return [Shape(shape_within(info.bounds(place))) for place in range(info.device_mesh.size)]


def all_bounds(info: DTensorStructInfo) -> list[Shape]:
    """Where in the whole each part lies: first, last for each axis."""
    places = range(info.device_mesh.size)
    return [Shape(at for bounds in info.bounds(place) for at in bounds) for place in places]


def first_places(info: DTensorStructInfo) -> list[int]:
    """The places of the mesh's list that are the first of all with the same part."""
    mesh, specs = info.device_mesh.shape, info.placement.dim_specs
    copies = [axis for axis, spec in enumerate(specs) if spec.is_replica]
    return [
        place
        for place in range(info.device_mesh.size)
        if not any(coordinate_of(mesh, place)[axis] for axis in copies)
    ]


def flat_bounds(before: DTensorStructInfo, after: DTensorStructInfo) -> list[Shape]:
    """Where in each part the smaller one lies that is to be: first, last for each axis."""
    found: list[Shape] = []
    for place in range(before.device_mesh.size):
        pairs = zip(before.bounds(place), after.bounds(place), strict=True)
        found.append(Shape(at - start for (start, _), part in pairs for at in part))
    return found


def line_extents(info: DTensorStructInfo, mesh_axis: int, axis: int) -> list[Shape]:
    """For each place of the mesh the extents of the parts of its line along an axis.

    Args:
        info: The tensor.
        mesh_axis: Along which axis of the mesh.
        axis: Which axis of the tensor.
    """
    mesh = info.device_mesh
    extents = [shape[axis] for shape in local_shapes(info)]
    return [
        Shape(extents[other] for other in line_of(mesh.shape, place, mesh_axis))
        for place in range(mesh.size)
    ]
