"""What a tensor is, and how it lies on which mesh."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import numpy as np

from disco_client.distributed.mesh import DeviceMesh
from disco_client.distributed.placement import Kind, Placement, PlacementSpec
from disco_client.errors import ConfigError
from disco_client.wire.layout import WHOLE, Bounds, bounds_of, coordinate_of
from disco_client.wire.values import Shape, dtype_from_name

__all__ = ["DTensorStructInfo", "DTensorType", "TensorStructInfo"]


@dataclass(frozen=True, slots=True)
class TensorStructInfo:
    """The shape and dtype of a tensor.

    Args:
        shape: The extents.
        dtype: A dtype or its name.

    Raises:
        ConfigError: There is no such dtype.
    """

    shape: Shape
    dtype: np.dtype[Any]

    def __init__(self, shape: Sequence[int], dtype: object) -> None:
        object.__setattr__(self, "shape", Shape(shape))
        object.__setattr__(self, "dtype", dtype_from_name(dtype))

    @property
    def ndim(self) -> int:
        """How many axes it has."""
        return len(self.shape)

    @property
    def nbytes(self) -> int:
        """How many bytes the whole has."""
        return math.prod(self.shape) * self.dtype.itemsize


@dataclass(frozen=True, slots=True)
class DTensorStructInfo:
    """A tensor on a mesh, after ``tvm.relax.distributed.DTensorStructInfo``.

    Args:
        tensor_sinfo: The tensor as a whole.
        device_mesh: The mesh.
        placement: How it lies there, or the text of it. Negative axes are counted
            from the end, and come out as those from the front.

    Raises:
        TypeError: An argument is of another type.
        ConfigError: The placement has not one spec for each axis of the mesh, or an
            axis that the tensor has not, or partial values of a kind that its
            dtype does not have.
    """

    tensor_sinfo: TensorStructInfo
    device_mesh: DeviceMesh
    placement: Placement
    _hash: int = field(repr=False, compare=False)

    def __init__(
        self,
        tensor_sinfo: TensorStructInfo,
        device_mesh: DeviceMesh,
        placement: Placement | str,
    ) -> None:
        given: tuple[tuple[str, object, type[object]], ...] = (
            ("tensor_sinfo", tensor_sinfo, TensorStructInfo),
            ("device_mesh", device_mesh, DeviceMesh),
        )
        for name, value, kind in given:
            if not isinstance(value, kind):
                msg = f"expected a {kind.__name__} for {name}, got {value!r}"
                raise TypeError(msg)
        found = Placement.from_text(placement) if isinstance(placement, str) else placement
        if not isinstance(cast("object", found), Placement):
            msg = f"expected a Placement or its text for placement, got {placement!r}"
            raise TypeError(msg)
        object.__setattr__(self, "tensor_sinfo", tensor_sinfo)
        object.__setattr__(self, "device_mesh", device_mesh)
        placed = _resolved(tensor_sinfo, device_mesh, found)
        object.__setattr__(self, "placement", placed)
        # Each call looks up what is known of its operands, by this.
        object.__setattr__(self, "_hash", hash((tensor_sinfo, device_mesh, placed)))

    def __hash__(self) -> int:
        return self._hash

    @property
    def tensor_ty(self) -> TensorStructInfo:
        """The tensor as a whole, under the name that newer versions of the original use."""
        return self.tensor_sinfo

    @property
    def axes(self) -> tuple[int, ...]:
        """For each axis of the mesh the tensor's axis that it splits, or WHOLE."""
        return tuple(
            spec.axis if spec.kind is Kind.SHARDING else WHOLE for spec in self.placement.dim_specs
        )

    def bounds(self, place: int) -> Bounds:
        """The part that the worker at a place of the mesh's list holds."""
        mesh = self.device_mesh.shape
        return bounds_of(self.tensor_sinfo.shape, mesh, self.axes, coordinate_of(mesh, place))

    def __repr__(self) -> str:
        tensor = self.tensor_sinfo
        return (
            f"DTensor({tuple(tensor.shape)}, {tensor.dtype.name!r}, {self.device_mesh!r},"
            f" {str(self.placement)!r})"
        )


DTensorType = DTensorStructInfo
"""The name that newer versions of the original give it."""


def _resolved(tensor: TensorStructInfo, mesh: DeviceMesh, placement: Placement) -> Placement:
    if len(placement) != mesh.ndim:
        raise ConfigError(
            f"expected a spec for each of the {mesh.ndim} axes of the mesh, got {len(placement)}:"
            f" {str(placement)!r}"
        )
    ops = dict.fromkeys(spec.op for spec in placement.dim_specs if spec.is_partial)
    if tensor.dtype.kind == "c" and not ops.keys().isdisjoint(("min", "max")):
        raise ConfigError(f"{tensor.dtype.name} has no order, so no {' and '.join(ops)}")
    specs: list[PlacementSpec] = []
    for spec in placement.dim_specs:
        if spec.kind is not Kind.SHARDING:
            specs.append(spec)
            continue
        if not -tensor.ndim <= spec.axis < tensor.ndim:
            raise ConfigError(
                f"{spec} splits an axis that a tensor of shape {tuple(tensor.shape)} does not have"
            )
        specs.append(PlacementSpec.sharding(spec.axis % tensor.ndim))
    return Placement(specs)
