"""Pictures as SVG."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET

import pytest

from disco_client.distributed import DeviceMesh, DTensorStructInfo, TensorStructInfo
from disco_client.distributed.pictures.model import picture_of
from disco_client.distributed.pictures.svg import document, draw_svg, figure, lines_of_text

GRID = DeviceMesh((2, 2), range(4), ("dp", '<&">'))
MANY = DeviceMesh((16, 16), range(256))
NAMESPACE = "{http://www.w3.org/2000/svg}"

CASES = [
    ((6, 8), GRID, "S[0], R"),
    ((3,), GRID, "S[0], S[0]"),
    ((), GRID, "P, R"),
    ((0, 2), GRID, "S[0], R"),
    ((100, 100), MANY, "S[0], S[1]"),
    ((100, 100), MANY, "S[1], P"),
    ((100000, 3), MANY, "S[0], S[0]"),
    ((2, 4, 6), DeviceMesh((2, 2, 2), range(8)), "S[0], S[1], S[2]"),
]


def picture(case):
    shape, mesh, placement = case
    return picture_of(DTensorStructInfo(TensorStructInfo(shape, "float32"), mesh, placement))


def svg(case):
    found = picture(case)
    return document(found.title, draw_svg(found))


@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_document_is_well_formed_and_read_aloud(case):
    """With all that it says as its label, escaped, and neither script nor style of others."""
    root = ET.fromstring(svg(case))
    assert root.tag == f"{NAMESPACE}svg"
    assert root.get("role") == "img"
    assert root.get("aria-label").startswith(picture(case).title)
    assert {each.tag for each in root.iter()} <= {
        NAMESPACE + tag for tag in ("svg", "g", "rect", "text", "title")
    }


@pytest.mark.parametrize("case", CASES, ids=str)
def test_everything_is_inside(case):
    """No rectangle and no text reaches beyond the document, as wide as letters are."""
    root = ET.fromstring(svg(case))
    width, height = (int(root.get(name)) for name in ("width", "height"))

    def check(element, x, y):
        if element.tag.endswith("}g") and element.get("transform"):
            dx, dy = map(int, re.findall(r"\d+", element.get("transform")))
            x, y = x + dx, y + dy
        if element.tag.endswith("}text"):
            long = 7.3 * len(element.text)
            share = {"start": 0, "middle": 0.5, "end": 1}[element.get("text-anchor")]
            left = x + int(element.get("x")) - long * share
            assert left >= 0
            assert left + long <= width
            assert 0 < y + int(element.get("y")) <= height
        if element.tag.endswith("}rect"):
            assert x + int(element.get("x", "0")) + int(element.get("width")) <= width
            assert y + int(element.get("y", "0")) + int(element.get("height")) <= height
        for child in element:
            check(child, x, y)

    check(root, 0, 0)


def test_cells_say_what_they_are():
    """Each with its part and its workers, as what a pointer over it shows."""
    root = ET.fromstring(svg(CASES[0]))
    assert [title.text for title in root.iter(f"{NAMESPACE}title")] == [
        "[0:3, 0:8]: 0, 1",
        "[3:6, 0:8]: 2, 3",
    ]


def test_the_same_tensor_gives_the_same_document():
    """Byte for byte, so that it can be committed."""
    assert svg(CASES[4]) == svg(CASES[4])


def test_a_figure_takes_the_colour_of_its_page():
    """Only what is written on colours has a colour of its own; a title may be left out."""
    drawn = figure(picture(CASES[0]), title=True)
    assert 'fill="currentColor"' in drawn
    assert "#ffffff" not in drawn
    assert "<figcaption>(6, 8) float32: S[0] along dp (2), R along &lt;&amp;&quot;&gt; (2)" in drawn
    assert "<figcaption><small>Axis 0" in figure(picture(CASES[0]), title=False)
    assert "<svg" not in figure(picture(CASES[3]), title=True)


def test_sentences_are_wrapped():
    """To the width that they may have."""
    lines = lines_of_text(["a few words", "more"], 60)
    assert (len(lines.elements), lines.height) == (3, 54)
    assert "bold" in lines_of_text(["a"], 60, strong=True).elements[0]
