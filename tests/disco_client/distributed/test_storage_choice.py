"""How loaded tensors are to lie, decided without any worker."""

from __future__ import annotations

import pytest

from disco_client import ConfigError, Shape
from disco_client.distributed import DeviceMesh
from disco_client.distributed.storage import LoadChoice, Stored

ROW = {
    "name": "layers.0.w",
    "shape": Shape((4, 6)),
    "dtype": "float32",
    "mesh": Shape((2,)),
    "workers": Shape((1, 2)),
    "names": ["tp"],
    "placement": "S[1]",
}
STORED = [Stored.read("/c", ROW | {"name": name}) for name in ("layers.0.w", "layers.1.w", "bias")]


def test_a_row_of_the_catalog_says_how_a_tensor_lay():
    """Or is refused with path and name."""
    info = STORED[0].info
    assert info.device_mesh == DeviceMesh((2,), [1, 2], ("tp",))
    assert (str(info.placement), tuple(info.tensor_sinfo.shape)) == ("S[1]", (4, 6))
    for wrong in ({"placement": "S[7]"}, {"mesh": Shape((3,))}, {"dtype": "float33"}):
        with pytest.raises(ConfigError, match=r"/c, tensor 'layers.0.w': "):
            Stored.read("/c", ROW | wrong)


def placed(choice):
    return [str(info.placement) for info in choice.decide(STORED).values()]


def test_the_first_pattern_that_matches_counts():
    """And what none matches lies as it was saved."""
    assert placed(LoadChoice(None, None, 3)) == ["S[1]"] * 3
    assert placed(LoadChoice(None, "R", 3)) == ["R"] * 3
    assert placed(LoadChoice(None, {"layers.1.*": "S[0]"}, 3)) == ["S[1]", "S[0]", "S[1]"]
    assert placed(LoadChoice(None, {"*.w": None, "*": "R"}, 3)) == ["S[1]", "S[1]", "R"]


def test_a_mesh_of_the_saved_shape_takes_tensors_as_they_were():
    """Another one needs to be told."""
    there = DeviceMesh((2,), [0, 1])
    assert {info.device_mesh for info in LoadChoice(there, None, 2).decide(STORED).values()} == {
        there
    }
    with pytest.raises(ConfigError, match=r"'bias' was saved .* such as placements='R' or"):
        LoadChoice(DeviceMesh((3,), range(3)), {"layers*": "R"}, 3).decide(STORED)
    with pytest.raises(ConfigError, match=r"was saved on .* give a mesh"):
        LoadChoice(None, "R", 2).decide(STORED)
