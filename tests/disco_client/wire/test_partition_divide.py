"""Divisions of an axis, against numpy."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from disco_client import ConfigError
from disco_client.wire.partition import divide, divide_all, length_of

sizes = st.lists(st.integers(0, 20), min_size=1, max_size=5)
workers = st.integers(1, 7)


@given(sizes, workers)
def test_a_share_is_a_slice_of_each_part(parts, count):
    """As numpy splits each part by itself, unevenly where it must."""
    axis = np.arange(sum(parts))
    fused = np.split(axis, np.cumsum(parts)[:-1])
    for index in range(count):
        expected = np.concatenate([np.array_split(part, count)[index] for part in fused])
        pieces = divide(parts, count, index)
        got = np.concatenate([axis[a:b] for a, b in pieces] or [axis[:0]])
        assert np.array_equal(got, expected)


@given(sizes, workers)
def test_the_shares_are_the_whole_axis(parts, count):
    """Every index belongs to exactly one worker, in pieces that neither touch nor are empty."""
    seen = []
    for index in range(count):
        pieces = divide(parts, count, index)
        assert all(start < stop for start, stop in pieces)
        assert all(a[1] < b[0] for a, b in itertools.pairwise(pieces))
        seen += [i for start, stop in pieces for i in range(start, stop)]
    assert sorted(seen) == list(range(sum(parts)))


@pytest.mark.parametrize(
    ("extent", "fused", "text"),
    [
        (6, 1, "its extent 6 cannot be divided by 4 workers without uneven=True"),
        (8, 3, "its extent 8 cannot be cut into 3 equal parts"),
        (12, 2, "the extent of a part, 6 cannot be divided by 4"),
        (12, (4, 4), r"its extent 12 is not the sum 8 of parts \(4, 4\)"),
        (10, (8, 2), "the extent of a part, 2 cannot be divided by 4"),
    ],
)
def test_an_axis_that_does_not_fit_is_refused_with_figures(extent, fused, text):
    """The extent, the parts, the workers."""
    with pytest.raises(ConfigError, match=text):
        divide_all(extent, 4, fused, uneven=False)


def test_pieces_of_shares_are_known():
    """Even and uneven, of one matrix and of fused ones."""
    assert divide_all(8, 4, uneven=False)[2] == ((4, 6),)
    assert [length_of(pieces) for pieces in divide_all(5, 3)] == [2, 2, 1]
    assert divide_all(16, 4, (8, 4, 4), uneven=False)[1] == ((2, 4), (9, 10), (13, 14))
