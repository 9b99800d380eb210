"""Sizes of rows and columns."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from disco_client.distributed import DeviceMesh, DTensorStructInfo, TensorStructInfo
from disco_client.distributed.pictures.model import (
    Names,
    key_of,
    left_out,
    line_up,
    picture_of,
    spread,
)

extents = st.lists(st.integers(1, 1000), min_size=1, max_size=40)


@given(extents, st.integers(0, 400), st.integers(1, 20))
def test_a_length_is_divided_in_proportion(sizes, total, least):
    """Larger extents never get less, equal ones the same, and nobody less than the least."""
    found = spread(sizes, total, least)
    assert min(found) >= least
    length = max(total, least * len(sizes))
    assert length - len(sizes) < sum(found) <= length
    ordered = sorted(zip(sizes, found, strict=True))
    for (extent, size), (larger, other) in itertools.pairwise(ordered):
        assert size == other if extent == larger else size <= other


def test_proportions_are_kept():
    """Exactly where they can be; what must be larger takes from the others."""
    assert spread([1, 2, 3], 60, 1) == [10, 20, 30]
    assert spread([1, 2, 97], 100, 10) == [10, 10, 80]
    assert spread([3, 3, 2, 2], 5, 4) == [4, 4, 4, 4]


@given(extents, st.integers(1, 9), st.integers(40, 90))
def test_a_line_fits_into_the_room(sizes, least, room):
    """Whatever has to be left out for it, which is what is in the middle."""
    line = line_up(sizes, 64, least, room)
    assert line.length <= room
    shown = [number for number in line.shown if number is not None]
    assert shown[0] == 0
    assert shown[-1] == len(sizes) - 1
    if None in line.shown:
        (note,) = left_out(line, line_up([1], 1, 1, 9))
        assert note.startswith(f"{len(sizes) - len(shown)} rows")
    else:
        assert len(shown) == len(sizes)


def test_keys_are_short_and_different():
    """Letters, then pairs of them."""
    assert [key_of(number) for number in (0, 1, 25, 26, 27, 52, 701, 702)] == [
        *("a", "b", "z", "aa", "ab", "ba", "zz", "aaa"),
    ]
    assert len({key_of(number) for number in range(2000)}) == 2000


def test_a_legend_says_what_keys_mean():
    """With the part of the tensor, since there is no room for that either."""
    info = DTensorStructInfo(TensorStructInfo((5,), "int8"), DeviceMesh((2,), range(2)), "S[0]")
    names = Names(picture_of(info), keyed=True)
    assert [names.text(0, 0, column) for column in range(2)] == ["a", "b"]
    assert names.legend == ["a: [0:3] 0", "b: [3:5] 1"]
    names = Names(picture_of(info), keyed=False)
    assert (names.text(0, 0, 1), names.legend) == ("1", [])
