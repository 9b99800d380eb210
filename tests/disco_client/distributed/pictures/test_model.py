"""What pictures show, before it is drawn."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from disco_client.distributed import DeviceMesh, DTensorStructInfo, TensorStructInfo
from disco_client.distributed.pictures.model import INK, TINTS, picture_of, ranges, tint_of

GRID = DeviceMesh((2, 2), [4, 5, 6, 7], ("dp", "tp"))
CUBE = DeviceMesh((2, 2, 2), range(8))


def picture(shape, mesh, placement):
    return picture_of(DTensorStructInfo(TensorStructInfo(shape, "float32"), mesh, placement))


@pytest.mark.parametrize(
    ("placement", "labels"),
    [
        ("R, R", (("4-7",),)),
        ("S[0], R", (("4, 5",), ("6, 7",))),
        ("R, S[0]", (("4, 6",), ("5, 7",))),
        ("S[1], S[0]", (("4", "6"), ("5", "7"))),
        ("S[1], S[1]", (("4", "5", "6", "7"),)),
        ("P, R", (("sum(4, 6), sum(5, 7)",),)),
        ("S[0], P[max]", (("max(4, 5)",), ("max(6, 7)",))),
        ("P, P", (("sum(4-7)",),)),
    ],
)
def test_cells_name_the_workers_that_hold_them(placement, labels):
    """Copies by their workers, partial values by what combines them."""
    (panel,) = picture((6, 8), GRID, placement).panels
    assert panel.labels == labels


@pytest.mark.parametrize(
    ("shape", "mesh", "placement", "drawn", "panels"),
    [
        ((), GRID, "R, R", (-1, -1), [""]),
        ((5,), GRID, "S[0], R", (-1, 0), [""]),
        ((5, 6), GRID, "R, R", (0, 1), [""]),
        ((5, 6, 7), GRID, "R, R", (1, 2), [""]),
        ((5, 6, 7), GRID, "S[0], R", (0, 2), [""]),
        ((5, 6, 7), GRID, "S[2], S[0]", (0, 2), [""]),
        ((5, 6, 7), CUBE, "S[0], S[1], S[2]", (0, 1), ["axis 2: 0:4", "axis 2: 4:7"]),
        ((0, 6), GRID, "S[0], R", (0, 1), []),
    ],
)
def test_the_axes_that_are_split_are_drawn(shape, mesh, placement, drawn, panels):
    """Or the last ones; more than two in a grid for each part along the others."""
    found = picture(shape, mesh, placement)
    assert (found.row_axis, found.column_axis) == drawn
    assert [panel.title for panel in found.panels] == panels


def test_what_is_not_drawn_is_said():
    """Whole axes, partial values, and workers that got nothing."""
    notes = " ".join(picture((3, 2, 9), GRID, "S[0], S[0]").notes)
    assert "Axis 0 goes down, axis 2 across" in notes
    assert "whole everywhere: axis 1 of 2" in notes
    assert "Without elements: worker 7." in notes
    assert "Without elements: workers 4-7." in picture((0,), GRID, "S[0], R").notes
    assert "sum(...): partial values" in " ".join(picture((3,), GRID, "P, R").notes)
    assert picture((3, 2), GRID, "S[0], R").title == (
        "(3, 2) float32: S[0] along dp (2), R along tp (2)"
    )


kinds = st.sampled_from(["R", "S[0]", "S[1]", "S[2]", "P"])


@given(
    st.tuples(*[st.integers(0, 6)] * 3),
    st.sampled_from([(2,), (5,), (2, 3), (2, 2, 2)]),
    st.data(),
)
def test_every_element_is_drawn_once(shape, mesh_shape, data):
    """Cells cover the drawn axes without gaps, and each worker is named exactly once."""
    size = 1
    for extent in mesh_shape:
        size *= extent
    mesh = DeviceMesh(mesh_shape, range(size))
    found = picture(shape, mesh, ", ".join(data.draw(kinds) for _ in mesh_shape))
    if 0 in shape:
        assert found.panels == ()
        return
    for axis, cuts in ((found.row_axis, found.rows), (found.column_axis, found.columns)):
        assert [stop for _, stop in cuts] == [*(start for start, _ in cuts[1:]), shape[axis]]
        assert cuts[0][0] == 0
    named = []
    texts = [label for panel in found.panels for row in panel.labels for label in row]
    texts += [note for note in found.notes if note.startswith("Without")]
    for text in texts:
        for word in (
            text.replace("sum(", "").strip(").").replace(")", "").split(": ")[-1].split(",")
        ):
            first, _, last = word.replace("workers", "").replace("worker", "").partition("-")
            named += range(int(first), int(last or first) + 1)
    assert sorted(named) == list(range(size))


def test_workers_in_a_row_are_a_range():
    """Three and more; two are named."""
    assert ranges([7, 0, 1, 2, 5, 4]) == "0-2, 4, 5, 7"
    assert ranges([]) == ""


def test_neighbours_have_different_colours():
    """Beside each other, below each other, and in the same place of the next panel."""
    for row in range(9):
        for column in range(9):
            here = tint_of(0, row, column)
            others = (tint_of(0, row, column + 1), tint_of(0, row + 1, column))
            assert here not in (*others, tint_of(1, row, column))


def luminance(color):
    parts = [int(color[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
    return sum(weight * p for weight, p in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


def test_what_is_written_on_colours_can_be_read():
    """With the contrast of 7 that the strictest level of WCAG asks for."""
    for tint in TINTS:
        assert (luminance(tint) + 0.05) / (luminance(INK) + 0.05) >= 7
