"""Divisions of an axis, against numpy."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from disco_client import ConfigError, Split
from disco_client.wire.splits import divide, read_split

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
    ("entry", "split"),
    [
        ("R", None),
        (" R ", None),
        (None, None),
        ("S[0]", Split(0)),
        (" S [ -1 ] ", Split(-1)),
        (2, Split(2)),
        (Split(1, parts=3), Split(1, parts=3)),
    ],
)
def test_an_entry_is_a_placement_an_axis_or_a_split(entry, split):
    """The words of placements, and numbers for short."""
    assert read_split(entry) == split


@pytest.mark.parametrize(
    "entry", ["", "r", "S", "S[]", "S[a]", "S0", "S[0], R", "S[0]]", "S[1.5]", 1.0, True, [0], b"R"]
)
def test_another_entry_is_refused(entry):
    """With what would have been right."""
    with pytest.raises(ConfigError, match=r"expected 'R', None, 'S\[axis\]', an axis or a Split"):
        read_split(entry)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"axis": "0"}, "expected an axis"),
        ({"axis": True}, "expected an axis"),
        ({"axis": 0, "parts": 0}, "expected the number of fused parts"),
        ({"axis": 0, "parts": ()}, "expected the number of fused parts"),
        ({"axis": 0, "parts": (1, -1)}, "expected the number of fused parts"),
        ({"axis": 0, "parts": "3"}, "expected the number of fused parts"),
        ({"axis": 0, "parts": 1.5}, "expected the number of fused parts"),
    ],
)
def test_a_split_of_nonsense_is_refused(arguments, text):
    """When it is made, not when it is used."""
    with pytest.raises(ConfigError, match=text):
        Split(**arguments)


@pytest.mark.parametrize(
    ("split", "shape", "text"),
    [
        (Split(2), (4, 4), "there is no axis 2"),
        (Split(-3), (4, 4), "there is no axis -3"),
        (Split(0), (), "there is no axis 0"),
        (Split(0), (6, 4), "its extent 6 cannot be divided by 4 workers without uneven=True"),
        (Split(0, parts=3), (8, 4), "its extent 8 cannot be cut into 3 equal parts"),
        (Split(0, parts=2), (12, 4), "the extent of a part, 6 cannot be divided by 4"),
        (Split(0, parts=(4, 4)), (12, 4), r"its extent 12 is not the sum 8 of parts \(4, 4\)"),
        (Split(0, parts=(8, 2)), (10, 4), "the extent of a part, 2 cannot be divided by 4"),
    ],
)
def test_a_split_that_does_not_fit_is_refused_with_figures(split, shape, text):
    """The axis, the extent, the parts, the workers."""
    with pytest.raises(ConfigError, match=text):
        split.check(shape, 4)


def test_shapes_of_shares_are_known():
    """Even and uneven, of one matrix and of fused ones."""
    Split(-1).check((3, 8), 4)
    assert Split(-1).shape_of((3, 8), 4, 2) == (3, 2)
    Split(0, uneven=True).check((5,), 3)
    assert [Split(0, uneven=True).shape_of((5,), 3, i) for i in range(3)] == [(2,), (2,), (1,)]
    Split(0, parts=[8, 4, 4]).check((16, 2), 4)
    assert Split(0, parts=(8, 4, 4)).shape_of((16, 2), 4, 1) == (4, 2)
    assert Split(0, parts=(8, 4, 4)).intervals((16, 2), 4, 1) == ((2, 4), (9, 10), (13, 14))


def test_a_split_reads_as_its_placement():
    """With what goes beyond a placement behind it."""
    assert str(Split(1)) == "S[1]"
    assert str(Split(0, parts=3, uneven=True)) == "S[0] (parts=3, uneven)"
