"""Parts that are cut along any axes, in any array."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from disco_server.storage import slices
from disco_server.storage.files import DataFile
from disco_server.storage.slices import read_box


@st.composite
def parts(draw):
    """A shape, and the bounds of a part of it."""
    shape = tuple(draw(st.lists(st.integers(0, 5), max_size=4)))
    cuts = [sorted(draw(st.tuples(*[st.integers(0, extent)] * 2))) for extent in shape]
    return shape, tuple(tuple(cut) for cut in cuts)


@given(part=parts(), dtype=st.sampled_from(["u1", "f4", "c16"]), strided=st.booleans())
def test_a_part_is_what_numpy_slices(write, part, dtype, strided):
    """Into an array of its own, or into a part of a larger one."""
    shape, bounds = part
    array = np.arange(np.prod(shape, dtype=int)).reshape(shape).astype(dtype)
    expected = array[tuple(slice(*each) for each in bounds)]
    larger = np.zeros((*expected.shape, 2), dtype)
    out = larger[..., 0] if strided else np.zeros(expected.shape, dtype)
    with DataFile(write(b"12345" + array.tobytes()), ("*",)) as file:
        read_box(file, 5, shape, bounds, out)
    assert np.array_equal(out, expected)
    assert not larger[..., 1].any()


def test_what_lies_in_pieces_is_read_in_pieces(write, monkeypatch):
    """So that little is held beside its place."""
    monkeypatch.setattr(slices, "_AT_ONCE", 64)
    array = np.arange(400, dtype="f4").reshape(20, 20)
    out = np.zeros((20, 30), "f4")
    with DataFile(write(array.tobytes()), ("*",)) as file:
        read_box(file, 0, (20, 20), ((0, 20), (3, 10)), out[:, 5:12])
        assert file.bytes_read < 2 * array.nbytes
    assert np.array_equal(out[:, 5:12], array[:, 3:10])
