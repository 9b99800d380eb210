"""A tensor on a mesh."""

from __future__ import annotations

import pytest

from disco_client import ConfigError
from disco_client.distributed import (
    DeviceMesh,
    DTensorStructInfo,
    DTensorType,
    Placement,
    TensorStructInfo,
)

MESH = DeviceMesh((2, 2), range(4))
TENSOR = TensorStructInfo((5, 7), "float32")


def test_both_names_of_the_original():
    """Of the class and of its first field."""
    info = DTensorType(TENSOR, MESH, "S[0], R")
    assert isinstance(info, DTensorStructInfo)
    assert info.tensor_ty is info.tensor_sinfo is TENSOR
    assert (info.device_mesh, info.placement) == (MESH, Placement.from_text("S[0], R"))
    assert info == DTensorStructInfo(TENSOR, MESH, Placement.from_text("S[0]R"))
    named = {"device_mesh": MESH, "placement": "S[0], R", "span": None}
    assert info == DTensorType(tensor_ty=TENSOR, **named)
    assert info == DTensorStructInfo(tensor_sinfo=TENSOR, **named)
    with pytest.raises(TypeError, match="a DeviceMesh for device_mesh, got None"):
        DTensorType(tensor_ty=TENSOR)


def test_each_worker_has_its_part():
    """Two axes of the mesh may cut one axis of the tensor; the second cuts the pieces."""
    info = DTensorStructInfo(TENSOR, MESH, "S[0], S[-2]")
    assert str(info.placement) == "S[0], S[0]"
    assert info.axes == (0, 0)
    rows = [info.bounds(place)[0] for place in range(4)]
    assert rows == [(0, 2), (2, 3), (3, 4), (4, 5)]
    assert DTensorStructInfo(TENSOR, MESH, "R, P").bounds(3) == ((0, 5), (0, 7))


@pytest.mark.parametrize(
    ("arguments", "error", "text"),
    [
        ((None, MESH, "R, R"), TypeError, "TensorStructInfo for tensor_sinfo, got None"),
        ((TENSOR, None, "R, R"), TypeError, "DeviceMesh for device_mesh, got None"),
        ((TENSOR, MESH, None), TypeError, "a Placement or its text for placement, got None"),
        ((TENSOR, MESH, "R"), ConfigError, "one for each axis of the mesh, got 1: 'R'"),
        ((TENSOR, MESH, "S[2], R"), ConfigError, r"S\[2\] splits an axis that a tensor"),
        ((TENSOR, MESH, "S[-3], R"), ConfigError, r"S\[-3\] splits an axis that a tensor"),
    ],
)
def test_what_does_not_fit_is_refused(arguments, error, text):
    """As the original does, and where it forgets to."""
    with pytest.raises(error, match=text):
        DTensorStructInfo(*arguments)
