"""Operands that lie on several meshes of the same workers."""

import contextlib
import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from disco_client import ThreadedSession
from disco_client.distributed import DeviceMesh
from disco_client.errors import ConfigError

MESHES = ((4,), (2, 2), (4, 1), (1, 4))


@pytest.fixture(scope="module")
def threads():
    with ThreadedSession(4) as session:
        yield session


def test_names_make_no_other_mesh(threads):
    """And the result is on the one with names, whichever operand comes first."""
    whole = np.arange(12.0).reshape(6, 2)
    x = threads.distribute(whole, threads.mesh((2, 2)), "S[0], R")
    y = threads.distribute(whole, threads.mesh((2, 2), ("dp", "tp")), "S[0], S[1]")
    for made in (x + y, y + x, np.concatenate([x, y])):
        assert made.mesh.names == ("dp", "tp")
    np.testing.assert_array_equal((x * y).numpy(), whole * whole)
    z = threads.distribute(whole, threads.mesh((2, 2), ("a", "b")), "R, R")
    assert (z + y).mesh.names == ("a", "b")


@pytest.mark.parametrize(("ours", "theirs"), [*itertools.permutations(MESHES, 2)])
@given(data=st.data())
@settings(max_examples=15)
def test_what_need_not_move_is_computed_with(threads, ours, theirs, data):
    """Tensors of any extents; what would have to move is refused with the bytes that it takes."""
    shape = data.draw(st.lists(st.integers(0, 6), min_size=1, max_size=2))
    kinds = st.sampled_from(["R", *(f"S[{axis}]" for axis in range(len(shape)))])
    whole = np.arange(1.0, 1 + np.prod(shape, dtype=int)).reshape(shape)
    x, y = (
        threads.distribute(whole, threads.mesh(mesh), ", ".join(data.draw(kinds) for _ in mesh))
        for mesh in (ours, theirs)
    )
    x = x + x.sum() if data.draw(st.booleans()) else x
    expected = x.numpy() - whole
    with contextlib.suppress(ConfigError):
        made = x - y
        assert made.mesh in (x.mesh, y.mesh)
        np.testing.assert_array_equal(made.numpy(), expected)
        return
    with pytest.raises(ConfigError, match="which sends"):
        x - y


def test_partial_values_are_seen_on_another_mesh(threads):
    """Where all workers have some; copies of some on several of them are none of the whole."""
    whole = np.arange(24.0).reshape(4, 6)
    mesh = threads.mesh((2, 2))
    x = threads.distribute(whole, threads.mesh((4,)), "S[1]").sum(axis=1)
    assert str(x.placement) == "P[sum]"
    y = threads.distribute(whole, mesh, "S[0], R").sum(axis=0)
    z = threads.distribute(np.zeros(4), mesh, "R, R")
    np.testing.assert_array_equal((x + z).numpy(), whole.sum(axis=1))
    with pytest.raises(ConfigError, match="on one mesh"):
        y + threads.distribute(np.zeros(6), threads.mesh((4,)), "S[0]")


def test_other_workers_are_another_mesh(threads):
    """Also where a part of them has all that is needed."""
    x = threads.distribute(np.ones(4), threads.mesh((4,)), "R")
    y = threads.distribute(np.ones(4), DeviceMesh((2,), [0, 1]), "R")
    with pytest.raises(ConfigError, match="on one mesh"):
        x + y
