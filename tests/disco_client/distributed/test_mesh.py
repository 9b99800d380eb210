"""Meshes: what they are made of, and their parts."""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace

import pytest

from disco_client import ConfigError, DtypeError
from disco_client.distributed import DeviceMesh, device_mesh


def test_a_mesh_knows_its_workers():
    """By place and along each axis, from a list as from a range."""
    mesh = device_mesh((2, 3), range(6), ("dp", "tp"))
    assert (mesh.ndim, mesh.size, tuple(mesh.shape)) == (2, 6, (2, 3))
    assert mesh.device_ids == [0, 1, 2, 3, 4, 5]
    assert mesh.device_range == range(6)
    assert mesh.lines("tp") == mesh.lines(1) == mesh.lines(-1) == [(0, 1, 2), (3, 4, 5)]
    assert mesh.lines("dp") == [(0, 3), (1, 4), (2, 5)]
    assert DeviceMesh([2, 3], [0, 1, 2, 3, 4, 5]).device_range is None


@dataclass
class Expression:
    """A number, as tvm.ir has them."""

    value: int


def test_a_range_of_the_original_s_is_a_range():
    """By its first number and its extent, which may be expressions."""
    mesh = DeviceMesh((2, 2), SimpleNamespace(min=Expression(1), extent=Expression(4)))
    assert mesh.device_range == range(1, 5)
    assert mesh == DeviceMesh((2, 2), SimpleNamespace(min=1, extent=4))
    with pytest.raises(TypeError, match="expected an integer for a worker"):
        DeviceMesh((2,), SimpleNamespace(min=0, extent=Expression("n")))


def test_meshes_of_the_same_workers_are_equal():
    """However the workers were given; other shapes, orders and names are others."""
    mesh = DeviceMesh((2, 2), range(4))
    assert mesh == DeviceMesh([2, 2], (0, 1, 2, 3))
    assert hash(mesh) == hash(DeviceMesh((2, 2), [0, 1, 2, 3]))
    for other in (
        DeviceMesh((4,), range(4)),
        DeviceMesh((2, 2), [0, 1, 3, 2]),
        DeviceMesh((2, 2), range(4), ("a", "b")),
        "a mesh",
    ):
        assert mesh != other


def test_a_mesh_is_cut_as_an_array_is():
    """Numbers drop an axis, slices keep it with its name; names say which axis."""
    mesh = DeviceMesh((2, 3), range(6), ("dp", "tp"))
    assert mesh[1] == DeviceMesh((3,), [3, 4, 5], ("tp",))
    assert mesh["tp"] == mesh.at(dp=0) == DeviceMesh((3,), [0, 1, 2], ("tp",))
    assert mesh["dp"] == mesh.at(tp=0) == DeviceMesh((2,), [0, 3], ("dp",))
    assert mesh[:, 2] == mesh.at(tp=2) == DeviceMesh((2,), [2, 5], ("dp",))
    assert mesh[:, 1:] == DeviceMesh((2, 2), [1, 2, 4, 5], ("dp", "tp"))
    assert mesh[1, 1] == DeviceMesh((1,), [4])


def test_a_mesh_says_what_it_is():
    """In words that make it again."""
    for mesh in (DeviceMesh((2, 2), range(1, 5), ("a", "b")), DeviceMesh((2,), [3, 1])):
        assert eval(repr(mesh)) == mesh


@pytest.mark.parametrize(
    ("arguments", "error", "text"),
    [
        ((4, [0, 1, 2, 3]), DtypeError, "the shape of a mesh as a tuple"),
        (((2.0,), [0, 1]), DtypeError, "an integer for an extent"),
        (((2,), None), DtypeError, "a list, tuple or range"),
        (((2,), [0.0, 1.0]), DtypeError, "an integer for a worker"),
        (((2,), [True, False]), DtypeError, "an integer for a worker"),
        (((10**12,), range(10**12)), ConfigError, "of at most 65536 workers"),
        (((2,), range(10**12)), ConfigError, "has places, 2, got 10000"),
        (((2, 2), [0, 1, 2]), ConfigError, "has places, 4, got 3"),
        (((0,), []), ConfigError, "at least 1"),
        (((2,), [1, 1]), ConfigError, "worker 1 is there more than once"),
        (((2,), [0, -1]), ConfigError, "worker -1 is negative"),
        (((2,), [0, 1], ("a", "b")), ConfigError, "expected 1 different names"),
        (((1, 2), [0, 1], ("a", "a")), ConfigError, "expected 2 different names"),
    ],
)
def test_what_is_no_mesh_is_refused(arguments, error, text):
    """With what was expected and what came."""
    with pytest.raises(error, match=text):
        DeviceMesh(*arguments)


def test_axes_and_parts_that_there_are_not():
    """By number, by name, and by index."""
    mesh = DeviceMesh((2, 2), range(4), ("dp", "tp"))
    with pytest.raises(ConfigError, match="no axis 'pp'; its axes are 'dp', 'tp'"):
        mesh.axis("pp")
    with pytest.raises(ConfigError, match="none with names"):
        DeviceMesh((2,), range(2)).axis("pp")
    with pytest.raises(ConfigError, match="no axis 2"):
        mesh.lines(2)
    with pytest.raises(ConfigError, match=r"no part of a mesh of shape \(2, 2\)"):
        mesh[2]
