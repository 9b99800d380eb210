"""Distributed tensors: their placement on a mesh of workers, and computing with them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from disco_client.distributed.dtensor import DTensor
from disco_client.distributed.file_tensors import (
    FileTensor,
    from_hdf5,
    from_netcdf,
    from_npy,
    from_safetensors,
    from_zarr,
)
from disco_client.distributed.mesh import DeviceMesh, device_mesh
from disco_client.distributed.ops import LOCAL_AXIS, Local, Pattern, register_rule
from disco_client.distributed.placement import (
    DTensorStructInfo,
    DTensorType,
    Placement,
    PlacementSpec,
    TensorStructInfo,
)
from disco_client.distributed.redistribute import RedistributionPlan
from disco_client.notebook import draw_with
from disco_client.reentry import import_uninterrupted

if TYPE_CHECKING:
    from disco_client.distributed.pictures.show import ShardingPicture, visualize_sharding

__all__ = [
    "LOCAL_AXIS",
    "DTensor",
    "DTensorStructInfo",
    "DTensorType",
    "DeviceMesh",
    "FileTensor",
    "Local",
    "Pattern",
    "Placement",
    "PlacementSpec",
    "RedistributionPlan",
    "ShardingPicture",
    "TensorStructInfo",
    "device_mesh",
    "from_hdf5",
    "from_netcdf",
    "from_npy",
    "from_safetensors",
    "from_zarr",
    "register_rule",
    "visualize_sharding",
]

_PICTURES = ("ShardingPicture", "visualize_sharding")


def _mesh_html(mesh: DeviceMesh) -> str:
    import_uninterrupted("disco_client.distributed.pictures.show")
    from disco_client.distributed.pictures.show import mesh_html

    return mesh_html(mesh)


def _tensor_html(tensor: DTensor) -> str:
    import_uninterrupted("disco_client.distributed.pictures.show")
    from disco_client.distributed.pictures.show import tensor_html

    return tensor_html(tensor.info)


draw_with(DeviceMesh, _mesh_html)
draw_with(DTensor, _tensor_html)


def __getattr__(name: str) -> Any:
    # Every session loads this package; drawing is loaded only when a picture is requested.
    if name in _PICTURES:
        import_uninterrupted("disco_client.distributed.pictures.show")
        from disco_client.distributed.pictures import show

        return getattr(show, name)
    msg = f"module {__name__!r} has no attribute {name!r}"
    raise AttributeError(msg)
