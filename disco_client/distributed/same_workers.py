"""How what lies on a mesh of some workers lies on another mesh of the same workers."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Sequence

from disco_client.distributed.mesh import DeviceMesh
from disco_client.distributed.placement import (
    DTensorStructInfo,
    Placement,
    PlacementSpec,
    crosses,
    mixes,
)
from disco_client.wire.partition import Intervals

__all__ = ["seen_on", "seen_on_one"]


def seen_on_one(infos: Sequence[DTensorStructInfo]) -> list[DTensorStructInfo] | None:
    """The same tensors on one of their meshes, where each worker has what it has already.

    Of several such meshes one with names is taken, and then that of the first tensor.

    Args:
        infos: Tensors.

    Returns:
        None if there is no such mesh.
    """
    meshes = sorted(dict.fromkeys(info.device_mesh for info in infos), key=lambda m: not m.names)
    for mesh in meshes:
        found = [seen for info in infos if (seen := seen_on(info, mesh)) is not None]
        if len(found) == len(infos):
            return found
    return None


@functools.lru_cache(maxsize=1024)
def seen_on(info: DTensorStructInfo, mesh: DeviceMesh) -> DTensorStructInfo | None:
    """The same tensor on another mesh, where each worker has what it has already.

    Args:
        info: The tensor.
        mesh: The other mesh.

    Returns:
        None if no placement says that there.
    """
    before = info.device_mesh
    if mesh == before:
        return info
    if set(mesh.device_ids) != set(before.device_ids):
        return None
    specs = info.placement.dim_specs
    if mesh.shape == before.shape and mesh.device_ids == before.device_ids:
        return DTensorStructInfo(info.tensor_sinfo, mesh, info.placement)
    held = _held(info)
    partial = [spec for spec in dict.fromkeys(specs) if spec.is_partial]
    choices = [*map(PlacementSpec.sharding, range(info.tensor_sinfo.ndim))]
    # Copies of partial values are not parts of the whole.
    choices += partial or [PlacementSpec.replica()]
    if partial and any(spec.is_replica for spec in specs):
        return None
    for found in itertools.product(choices, repeat=mesh.ndim):
        sums = any(spec.is_partial for spec in found)
        if bool(partial) != sums or mixes(found) or crosses(found):
            continue
        after = DTensorStructInfo(info.tensor_sinfo, mesh, Placement(found))
        if _held(after) == held:
            return after
    return None


def _held(info: DTensorStructInfo) -> dict[int, tuple[Intervals, ...]]:
    """What each worker holds of each axis."""
    workers = info.device_mesh.device_ids
    return {
        worker: tuple(
            tuple(piece for piece in pieces if piece[0] < piece[1]) for pieces in info.pieces(place)
        )
        for place, worker in enumerate(workers)
    }
