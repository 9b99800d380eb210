"""Which part of a tensor lies where."""

from __future__ import annotations

import itertools
import math

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from disco_client.wire.partition import WHOLE, bounds_of, coordinate_of, cut, line_of, shape_within


@given(st.integers(0, 40), st.integers(1, 9))
def test_cuts_are_those_of_numpy(extent, parts):
    """The first parts get one more; late ones are empty where there is too little."""
    pieces = np.array_split(np.arange(extent), parts)
    cuts = [cut(0, extent, parts, index) for index in range(parts)]
    assert [list(range(*each)) for each in cuts] == [piece.tolist() for piece in pieces]


def test_places_count_the_last_axis_fastest():
    """As numpy's arrays do; a line is what remains along one axis."""
    mesh = (2, 3, 2)
    places = np.arange(12).reshape(mesh)
    for place, coordinate in enumerate(np.ndindex(*mesh)):
        assert coordinate_of(mesh, place) == coordinate
        for axis in range(3):
            index = [*coordinate]
            index[axis] = slice(None)
            assert line_of(mesh, place, axis) == tuple(places[tuple(index)])


@given(
    st.lists(st.integers(0, 9), min_size=1, max_size=3),
    st.lists(st.integers(1, 3), min_size=1, max_size=3),
    st.data(),
)
def test_parts_make_up_the_whole(shape, mesh, data):
    """Each element is held by as many workers as the axes that copy it have."""
    choices = st.integers(WHOLE, len(shape) - 1)
    axes = [data.draw(choices) for _ in mesh]
    held = np.zeros(shape, int)
    for coordinate in itertools.product(*map(range, mesh)):
        bounds = bounds_of(shape, mesh, axes, coordinate)
        part = held[tuple(slice(*each) for each in bounds)]
        assert part.shape == shape_within(bounds)
        part += 1
    copies = math.prod(n for n, axis in zip(mesh, axes, strict=True) if axis == WHOLE)
    assert (held == copies).all()
