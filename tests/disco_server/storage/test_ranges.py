"""The bytes of parts of tensors, against numpy's slices of the same file."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from disco_client.wire.partition import divide
from disco_server.storage import slices
from disco_server.storage.files import DataFile
from disco_server.storage.slices import Strips, plan_part, read_strips

BEFORE = 5
"""Bytes before the tensor in its file."""


@st.composite
def divisions(draw):
    """A shape, an axis, its fused parts, and one worker of some."""
    shape = draw(st.lists(st.integers(0, 9), min_size=1, max_size=4))
    axis = draw(st.integers(0, len(shape) - 1))
    parts = draw(st.lists(st.integers(0, 5), min_size=1, max_size=3))
    shape[axis] = sum(parts)
    workers = draw(st.integers(1, 5))
    return tuple(shape), axis, parts, workers, draw(st.integers(0, workers - 1))


@given(division=divisions(), itemsize=st.sampled_from([1, 2, 8]), gap=st.sampled_from([0, 3, 128]))
@settings(max_examples=300)
def test_a_part_is_what_numpy_slices(tmp_path, monkeypatch, division, itemsize, gap):
    """Whether pieces are read one by one or picked out of blocks, of any size."""
    shape, axis, parts, workers, index = division
    dtype = np.dtype(f"u{itemsize}")
    count = math.prod(shape)
    whole = np.arange(count).astype(dtype).reshape(shape)
    path = tmp_path / "data"
    path.write_bytes(b"x" * BEFORE + whole.tobytes())
    pieces = divide(parts, workers, index)
    indices = [i for start, stop in pieces for i in range(start, stop)]
    expected = np.take(whole, indices, axis)

    strips = plan_part(shape, itemsize, axis, pieces)
    assert strips.nbytes == expected.nbytes
    out = np.zeros(expected.nbytes, np.uint8)
    with monkeypatch.context() as patch, DataFile(path, ("*",)) as file:
        patch.setattr(slices, "_GAP", gap)
        patch.setattr(slices, "_BLOCK", 64)
        read_strips(file, BEFORE, strips, out)
        assert out.tobytes() == expected.tobytes()
        if gap == 0:
            assert file.bytes_read == expected.nbytes
        assert file.bytes_read <= whole.nbytes


def test_a_slice_of_the_first_axis_is_one_piece():
    """So is the whole of any axis: one read."""
    assert plan_part((8, 4, 2), 4, 0, ((2, 4),)) == Strips(1, 256, ((64, 64),))
    assert plan_part((8, 4, 2), 4, 2, ((0, 2),)) == Strips(1, 256, ((0, 256),))


def test_a_slice_of_an_inner_axis_is_a_pattern():
    """One segment for each piece, once for each index of the axes before."""
    assert plan_part((8, 4, 2), 4, 1, ((1, 2), (3, 4))) == Strips(8, 32, ((8, 8), (24, 8)))


def test_nothing_is_no_bytes():
    """An axis that a worker has nothing of, and an empty tensor."""
    assert plan_part((8, 4), 4, 1, ()).nbytes == 0
    assert plan_part((0, 4), 4, 1, ((0, 2),)).nbytes == 0
    assert plan_part((8, 0), 4, 0, ((0, 2),)).nbytes == 0


@pytest.mark.parametrize(
    ("columns", "workers", "picks"), [(64, 4, True), (1024, 4, False), (65536, 4, False)]
)
def test_only_small_gaps_are_read_over(columns, workers, picks):
    """float16 rows: what has some hundred bytes between its pieces is read for its own bytes."""
    strips = plan_part((512, columns), 2, 1, ((0, columns // workers),))
    assert strips.pick_from_blocks() is picks


def test_a_pattern_larger_than_a_block_is_not_picked_from():
    """However small the gaps inside it are."""
    strips = plan_part((2, 1 << 21), 1, 1, tuple((i, i + 2) for i in range(0, 1 << 10, 4)))
    assert not strips.pick_from_blocks()
