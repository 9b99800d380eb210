"""Where the halos of a tensor's parts are, and who has them.

Halos come by a redistribution: from the placement of a tensor to one whose parts overlap, in which
each worker has so many more indices on either side. So what moves is what a worker lacks, also
where a neighbour has fewer indices than a halo and others have the rest.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from disco_client.distributed.mesh import DeviceMesh
from disco_client.distributed.placement import DTensorStructInfo, Placement, PlacementSpec
from disco_client.distributed.slices import held_along, split_along
from disco_client.wire.partition import Intervals

__all__ = ["Halo", "Overlap", "split_once"]


@dataclass(frozen=True, slots=True)
class Halo:
    """What a block has beyond its own indices of an axis.

    Attributes:
        axis: The axis.
        depth: How many indices on either side.
        boundary: What is beyond the ends of the whole: one of the names, or the bytes of a number
            in the dtype of the tensor.
    """

    axis: int
    depth: int
    boundary: str | bytes


@dataclass(frozen=True, slots=True)
class Overlap:
    """A function of parts with halos.

    Attributes:
        info: The tensor, on a mesh of which at most one axis splits each of its axes.
        halos: Of the axes that have some.
        trim: Whether the function returns halos, too.
        dtype_name: The dtype of the result.
    """

    info: DTensorStructInfo
    halos: tuple[Halo, ...]
    trim: bool
    dtype_name: str

    @property
    def placement(self) -> Placement:
        """Where each worker has what the function is called with, but for what is beyond ends."""
        specs = list(self.info.placement.dim_specs)
        for halo in self.halos:
            at = split_along(self.info, halo.axis)
            if at is not None:
                extent = self.info.tensor_sinfo.shape[halo.axis]
                held = held_along(self.info, at)
                parts = [_widened(pieces, halo, extent) for pieces in held]
                specs[at] = PlacementSpec.explicit(halo.axis, parts)
        return Placement(specs)

    def axes(self) -> list[list[Any]]:
        """Of each axis with halos what the workers need to know."""
        shape = self.info.tensor_sinfo.shape
        return [[each.axis, each.depth, each.boundary, shape[each.axis]] for each in self.halos]

    def tables(self) -> list[list[Any]]:
        """For each worker of the mesh the shape of its part, and its pieces of each such axis."""
        with_halos = DTensorStructInfo(
            self.info.tensor_sinfo, self.info.device_mesh, self.placement
        )
        return [
            [
                list(self.info.local_shape(place)),
                self._pieces(self.info, place),
                self._pieces(with_halos, place),
            ]
            for place in range(self.info.device_mesh.size)
        ]

    def _pieces(self, info: DTensorStructInfo, place: int) -> list[list[list[int]]]:
        pieces = info.pieces(place)
        return [list(map(list, pieces[halo.axis])) for halo in self.halos]


def _widened(pieces: Intervals, halo: Halo, extent: int) -> Intervals:
    """Pieces of an axis with what else of the whole is in their halos, in ascending order."""
    found: list[tuple[int, int]] = []
    for start, stop in pieces:
        low, high = start - halo.depth, stop + halo.depth
        found.append((max(low, 0), min(high, extent)))
        if halo.boundary == "periodic":
            found += [(extent + low, extent)] * (low < 0) + [(0, high - extent)] * (high > extent)
    joined: list[tuple[int, int]] = []
    for start, stop in sorted(found):
        if joined and start <= joined[-1][1]:
            first, last = joined.pop()
            joined.append((first, max(last, stop)))
        else:
            joined.append((start, stop))
    return tuple(joined)


def split_once(info: DTensorStructInfo) -> DTensorStructInfo:
    """The same tensor on a mesh of the same workers, of which one axis splits what several did.

    Each worker has there what it has already.
    """
    mesh, axes = info.device_mesh, info.axes
    groups: list[list[int]] = []
    for at, axis in enumerate(axes):
        same = next((each for each in groups if axis >= 0 and axes[each[0]] == axis), None)
        if same is None:
            groups.append([at])
        else:
            same.append(at)
    if len(groups) == mesh.ndim:
        return info
    order = [at for group in groups for at in group]
    grid = np.reshape(mesh.device_ids, tuple(mesh.shape)).transpose(order)
    shape = [math.prod(mesh.shape[at] for at in group) for group in groups]
    workers = [int(each) for each in grid.reshape(-1)]
    place_of = {worker: place for place, worker in enumerate(mesh.device_ids)}
    lines = np.reshape(workers, shape)
    specs: list[PlacementSpec] = []
    for number, group in enumerate(groups):
        if len(group) == 1:
            specs.append(info.placement.dim_specs[group[0]])
            continue
        axis = axes[group[0]]
        line = np.moveaxis(lines, number, 0).reshape(shape[number], -1)[:, 0]
        specs.append(
            PlacementSpec.explicit(axis, [info.pieces(place_of[int(each)])[axis] for each in line])
        )
    return DTensorStructInfo(info.tensor_sinfo, DeviceMesh(shape, workers), Placement(specs))
