"""Distributed tensors: how they lie on a mesh of workers, and computing with them."""

from __future__ import annotations

from disco_client.distributed.mesh import DeviceMesh, device_mesh
from disco_client.distributed.placement import Placement, PlacementSpec
from disco_client.distributed.struct_info import DTensorStructInfo, DTensorType, TensorStructInfo

__all__ = [
    "DTensorStructInfo",
    "DTensorType",
    "DeviceMesh",
    "Placement",
    "PlacementSpec",
    "TensorStructInfo",
    "device_mesh",
]
