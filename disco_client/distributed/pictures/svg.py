"""Draws a picture as SVG, for notebooks and documents."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Sequence
from html import escape
from itertools import accumulate
from typing import NamedTuple

from disco_client.distributed.pictures.model import (
    INK,
    TINTS,
    Axis,
    Names,
    Picture,
    key_of,
    left_out,
    line_up,
    span,
    tint_of,
)
from disco_client.wire.partition import WHOLE

__all__ = [
    "LETTER",
    "Drawing",
    "below",
    "beside",
    "document",
    "draw_svg",
    "figure",
    "lines_of_text",
]

# In pixels.
LETTER = 7
"""How wide a letter is, about."""

_LEADING = 18
_NARROWEST, _HIGHEST, _LOWEST, _ROW = 150, 170, 34, 24
_ROOM, _MOST_HEIGHT = 640, 620
_SHORT = 5 * LETTER + 6


class Drawing(NamedTuple):
    """Elements of SVG, and how much room they take from the origin.

    Attributes:
        elements: The elements.
        width: In pixels.
        height: In pixels.
        notes: What is to be said below.
    """

    elements: tuple[str, ...]
    width: int
    height: int
    notes: tuple[str, ...] = ()


class _SvgGrid(NamedTuple):
    rows: Axis
    columns: Axis
    gutter: int
    headed: bool


def draw_svg(picture: Picture, widest: int = 420) -> Drawing:
    """The grids of a picture, one below the other; what is around them has the current colour.

    Args:
        picture: What to draw.
        widest: How wide cells are together, in pixels, where their labels need no more.
    """
    if not picture.panels:
        return Drawing((), 0, 0, picture.notes)
    grid, names = _layout(picture, widest)
    elements: list[str] = []
    y = 0
    for number, panel in enumerate(picture.panels):
        if panel.title:
            y += _LEADING
            elements.append(_text(grid.gutter, y - 5, panel.title, "start"))
        if grid.headed:
            y += _LEADING
            elements += _header(picture, grid, y - 5)
        elements += _cells(picture, number, grid, y, names)
        y += grid.rows.length + 8
    width = grid.gutter + grid.columns.length
    legend = (*names.legend, *picture.notes, *left_out(grid.rows, grid.columns))
    return Drawing(tuple(elements), width, y, legend)


def document(title: str, body: Drawing, notes: Sequence[str] = ()) -> str:
    """An SVG document on a light ground of its own, so that it can be read on any page.

    Args:
        title: What stands above, and is read aloud.
        body: What to show.
        notes: What stands below.
    """
    margin = 16
    width = max(body.width, 360)
    above, below = lines_of_text([title], width), lines_of_text([*body.notes, *notes], width)
    full = width + 2 * margin
    height = above.height + body.height + below.height + 2 * margin + 12
    label = escape(" ".join([title, *body.notes, *notes]), quote=True)
    opening = (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{full}" height="{height}"'
        f' viewBox="0 0 {full} {height}" role="img" aria-label="{label}" color="{INK}" {_FONT}>'
    )
    return "\n".join(
        [
            opening,
            f'<rect width="{full}" height="{height}" rx="6" fill="#ffffff" stroke="#d0d7de"/>',
            *_at(margin, margin, above),
            *_at(margin, margin + above.height + 8, body),
            *_at(margin, margin + above.height + body.height + 8, below),
            "</svg>\n",
        ]
    )


def figure(picture: Picture, *, title: bool) -> str:
    """The picture as a part of a page, in the colour of the page's text.

    Args:
        picture: What to draw.
        title: Whether to say below what the tensor is.
    """
    body = draw_svg(picture)
    label = escape(picture.title, quote=True)
    image = (
        f'<svg width="{body.width}" height="{body.height}" viewBox="0 0 {body.width}'
        f' {body.height}" role="img" aria-label="{label}" style="max-width:100%" {_FONT}>'
        f"{''.join(body.elements)}</svg>"
    )
    lines = [escape(picture.title)] if title else []
    lines += [f"<small>{escape(note)}</small>" for note in body.notes]
    return (
        f'<figure style="margin:0">{image if body.elements else ""}'
        f"<figcaption>{'<br/>'.join(lines)}</figcaption></figure>"
    )


def beside(*drawings: Drawing, gap: int = 24) -> Drawing:
    """Drawings side by side, their middles on one line."""
    high = max(drawing.height for drawing in drawings)
    elements: list[str] = []
    x = 0
    for drawing in drawings:
        elements += _at(x, (high - drawing.height) // 2, drawing)
        x += drawing.width + gap
    return Drawing(tuple(elements), x - gap, high)


def below(*drawings: Drawing, gap: int = 10) -> Drawing:
    """Drawings below each other."""
    elements: list[str] = []
    y = 0
    for drawing in drawings:
        elements += _at(0, y, drawing)
        y += drawing.height + gap
    return Drawing(tuple(elements), max(drawing.width for drawing in drawings), y - gap)


def lines_of_text(texts: Iterable[str], width: int, *, strong: bool = False) -> Drawing:
    """Sentences below each other, wrapped to a width."""
    lines = [line for text in texts for line in textwrap.wrap(text, width * 10 // 74)]
    elements = [
        _text(0, _LEADING * number + 13, line, "start", strong=strong)
        for number, line in enumerate(lines)
    ]
    return Drawing(tuple(elements), width, _LEADING * len(lines))


def _layout(picture: Picture, widest: int) -> tuple[_SvgGrid, Names]:
    labels = [label for panel in picture.panels for row in panel.labels for label in row]
    down, across = ([stop - start for start, stop in c] for c in (picture.rows, picture.columns))
    gutter = 0
    if picture.row_axis != WHOLE:
        gutter = max(len(span(cut)) for cut in picture.rows) * LETTER + 8
    spans = [span(cut) for cut in picture.columns] if picture.column_axis != WHOLE else []
    room = _ROOM - gutter
    least = max(map(len, (*labels, *spans))) * LETTER + 12
    fits = len(across) * (least + 1) < room
    longest = max(map(len, labels)) * LETTER + 6
    keyed = not fits and longest > _SHORT and len(across) * (longest + 1) >= room
    if not fits:
        least = len(key_of(len(labels))) * LETTER + 6 if keyed else longest
    total, high = (widest if spans else least), _LOWEST
    if picture.row_axis != WHOLE:
        total = min(max(_HIGHEST * sum(across) // sum(down), _NARROWEST), widest)
        high = min(max(total * sum(down) // sum(across), _LOWEST), _HIGHEST)
    rows = line_up(down, high, min(_ROW, _LOWEST), _MOST_HEIGHT)
    columns = line_up(across, total, least, room)
    return _SvgGrid(rows, columns, gutter, bool(spans) and fits), Names(picture, keyed=keyed)


def _header(picture: Picture, grid: _SvgGrid, y: int) -> list[str]:
    starts = _starts(grid.gutter, grid.columns)
    return [
        _text(x + size // 2, y, "…" if column is None else span(picture.columns[column]))
        for x, column, size in zip(starts, grid.columns.shown, grid.columns.sizes, strict=True)
    ]


def _cells(picture: Picture, panel: int, grid: _SvgGrid, top: int, names: Names) -> list[str]:
    found: list[str] = []
    places = zip(_starts(top, grid.rows), grid.rows.shown, grid.rows.sizes, strict=True)
    for y, row, high in places:
        middle = y + high // 2 + 4
        if grid.gutter and row is not None:
            found.append(_text(grid.gutter - 6, middle, span(picture.rows[row]), "end"))
        starts = _starts(grid.gutter, grid.columns)
        for x, column, wide in zip(starts, grid.columns.shown, grid.columns.sizes, strict=True):
            if row is None or column is None:
                found.append(_text(x + wide // 2, middle, "⋮" if row is None else "…"))
                continue
            tip = f"{names.where(panel, row, column)}: {picture.panels[panel].labels[row][column]}"
            fill = TINTS[tint_of(panel, row, column)]
            found.append(
                f"<g><title>{escape(tip)}</title>"
                f'<rect x="{x}" y="{y}" width="{wide}" height="{high}" fill="{fill}"'
                f' stroke="{INK}"/>'
                f"{_text(x + wide // 2, middle, names.text(panel, row, column), ink=INK)}</g>"
            )
    return found


def _starts(first: int, line: Axis) -> list[int]:
    return [first + 1 + at for at in accumulate((size + 1 for size in line.sizes[:-1]), initial=0)]


def _text(
    x: int,
    y: int,
    text: str,
    anchor: str = "middle",
    ink: str = "currentColor",
    *,
    strong: bool = False,
) -> str:
    weight = ' font-weight="bold"' if strong else ""
    return (
        f'<text x="{x}" y="{y}" text-anchor="{anchor}" fill="{ink}"{weight}>{escape(text)}</text>'
    )


def _at(x: int, y: int, drawing: Drawing) -> list[str]:
    return [f'<g transform="translate({x} {y})">', *drawing.elements, "</g>"]


_FONT = 'font-family="ui-monospace, Menlo, Consolas, monospace" font-size="12"'
