"""Pictures in box characters."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from disco_client.distributed import DeviceMesh, DTensorStructInfo, TensorStructInfo
from disco_client.distributed.pictures.model import picture_of
from disco_client.distributed.pictures.text import ASCII, draw, plain

LINE, GRID = DeviceMesh((4,), range(4)), DeviceMesh((2, 2), range(4), ("dp", "tp"))


def text(shape, mesh, placement, width=80):
    info = DTensorStructInfo(TensorStructInfo(shape, "float32"), mesh, placement)
    return plain(draw(picture_of(info), width))


def test_a_tensor_of_two_axes():
    """To scale, with where its parts begin and end."""
    assert (
        text((3, 8), GRID, "S[0], S[1]")
        == """\
(3, 8) float32: S[0] along dp (2), S[1] along tp (2)
                0:4                        4:8
    ┌──────────────────────────┬──────────────────────────┐
    │                          │                          │
    │                          │                          │
0:2 │            0             │            1             │
    │                          │                          │
    │                          │                          │
    │                          │                          │
    ├──────────────────────────┼──────────────────────────┤
    │                          │                          │
2:3 │            2             │            3             │
    │                          │                          │
    └──────────────────────────┴──────────────────────────┘
Axis 0 goes down, axis 1 across.
Each cell names the workers that hold it."""
    )


def test_a_tensor_of_one_axis_and_of_none():
    """A row, and a cell."""
    assert (
        text((10,), LINE, "S[0]", 40)
        == """\
(10,) float32: S[0] along mesh axis 0
(4)
    0:3        3:6       6:8     8:10
┌──────────┬──────────┬───────┬───────┐
│    0     │    1     │   2   │   3   │
└──────────┴──────────┴───────┴───────┘
Each cell names the workers that hold
it."""
    )
    assert (
        text((), LINE, "P[max]")
        == """\
() float32: P[max] along mesh axis 0 (4)
┌──────────┐
│ max(0-3) │
└──────────┘
Each cell names the workers that hold it.
max(...): partial values, whole once they are combined."""
    )


def test_a_tensor_without_elements():
    """There is nothing to draw, and that is said."""
    assert text((0, 4), LINE, "S[0]").splitlines()[1:] == ["Without elements: workers 0-3."]


def test_long_labels_become_keys():
    """With a legend below, where nothing else fits."""
    drawn = text((5, 8), DeviceMesh((4, 2), range(8)), "S[1], P", 26).splitlines()
    assert "│ a  │ b  │ c  │ d  │" in " ".join(drawn)
    assert "a: [0:5, 0:2] sum(0, 1)" in drawn
    assert "d: [0:5, 6:8] sum(6, 7)" in drawn


def test_many_parts_are_left_out_in_the_middle():
    """In rows and columns, and it is said how many."""
    drawn = text((1000,), DeviceMesh((128,), range(128)), "S[0]")
    assert "│ … │119│" in drawn
    assert "110 columns of parts are left out in the middle." in drawn
    drawn = text((1000, 40), DeviceMesh((32,), range(32)), "S[0]")
    assert "9 rows of parts are left out in the middle." in drawn
    assert "⋮" in drawn


def test_a_narrow_terminal_has_no_room_for_a_margin():
    """Then where rows begin and end is not said."""
    drawn = text((106, 3), DeviceMesh((16, 16), range(256)), "S[0], S[1]", 20)
    assert "0:7" not in drawn
    assert "│  16 │  17 │  18 │" in drawn


@settings(max_examples=60)
@given(
    st.lists(st.integers(0, 300), max_size=4),
    st.sampled_from([(3,), (40,), (2, 3), (16, 16), (2, 2, 2)]),
    st.integers(20, 120),
    st.data(),
)
def test_no_line_is_wider_than_it_may_be(shape, mesh_shape, width, data):
    """Whatever is drawn, in box characters that have others to stand for them."""
    size = 1
    for extent in mesh_shape:
        size *= extent
    kinds = st.sampled_from(["R", "P", *(f"S[{axis}]" for axis in range(len(shape)))])
    placement = ", ".join(data.draw(kinds) for _ in mesh_shape)
    drawn = text(shape, DeviceMesh(mesh_shape, range(size)), placement, width)
    assert max(map(len, drawn.splitlines())) <= width
    assert drawn.translate(ASCII).isascii()


@pytest.mark.parametrize("width", [0, -3, 7])
def test_there_is_a_width_that_is_always_taken(width):
    """So that a terminal of no size shows something."""
    assert text((4, 4), GRID, "S[0], S[1]", width) == text((4, 4), GRID, "S[0], S[1]", 20)
