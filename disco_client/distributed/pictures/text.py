"""Draws a picture with box characters, for a terminal."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from disco_client.distributed.pictures.model import (
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

__all__ = ["ASCII", "TintedText", "draw", "plain"]

ASCII = str.maketrans("┌┬┐├┼┤└┴┘│─…⋮", "+++++++++|-~:")
"""What stands for box characters where there are none."""

# In characters, without borders.
_WIDEST, _NARROWEST, _HIGHEST, _MOST_ROWS = 64, 20, 10, 24
_SHORT = 5


class TintedText(NamedTuple):
    """Some characters of a line.

    Attributes:
        text: The characters.
        tint: The number of the colour behind them; None for none.
    """

    text: str
    tint: int | None = None


class _TextGrid(NamedTuple):
    """How the panels of a picture are drawn: sizes, the width of the margin, and what is said."""

    rows: Axis
    columns: Axis
    gutter: int
    headed: bool
    keyed: bool


def draw(picture: Picture, max_width: int) -> list[list[TintedText]]:
    """The lines of a picture.

    Args:
        picture: What to draw.
        max_width: How many characters a line may have; 20 where it is less.
    """
    width = max(max_width, _NARROWEST)
    lines = _wrapped([picture.title], width)
    notes = list(picture.notes)
    if picture.panels:
        grid = _grid(picture, width)
        names = Names(picture, keyed=grid.keyed)
        for number, panel in enumerate(picture.panels):
            lines += _wrapped([panel.title], width) + _panel(picture, number, grid, names)
        lines += _wrapped(names.legend, width, "   ")
        notes += left_out(grid.rows, grid.columns)
    return lines + _wrapped(notes, width)


def plain(lines: Iterable[Iterable[TintedText]]) -> str:
    """The lines without their colours."""
    return "\n".join("".join(piece.text for piece in line).rstrip() for line in lines)


def _wrapped(texts: Iterable[str], width: int, indent: str = "") -> list[list[TintedText]]:
    wrapped = (textwrap.wrap(text, width, subsequent_indent=indent) for text in texts)
    return [[TintedText(line)] for lines in wrapped for line in lines]


def _grid(picture: Picture, width: int) -> _TextGrid:
    labels = [label for panel in picture.panels for row in panel.labels for label in row]
    down, across = ([stop - start for start, stop in c] for c in (picture.rows, picture.columns))
    gutter = 0
    if picture.row_axis != WHOLE:
        gutter = max(len(span(cut)) for cut in picture.rows) + 1
    if gutter > width // 4:
        gutter = 0
    spans = [span(cut) for cut in picture.columns] if picture.column_axis != WHOLE else []
    longest = max(map(len, labels))
    least = max(longest, *map(len, spans), 0) + 2
    room = width - gutter
    headed = bool(spans) and len(across) * (least + 1) < room
    keyed = not headed and longest > _SHORT and len(across) * (longest + 1) >= room
    if not headed:
        least = len(key_of(len(labels))) if keyed else longest
        if not spans:
            least = min(least + 2, room - 2)
    total, high = (_WIDEST if spans else least), 1
    if picture.row_axis != WHOLE:
        # A character is about twice as high as it is wide.
        total = min(max(2 * _HIGHEST * sum(across) // sum(down), _NARROWEST), _WIDEST)
        high = min(max(total * sum(down) // (2 * sum(across)), 1), _HIGHEST)
    rows = line_up(down, high, 1, 2 * _MOST_ROWS + 1)
    return _TextGrid(rows, line_up(across, total, least, room), gutter, headed, keyed)


def _panel(picture: Picture, panel: int, grid: _TextGrid, names: Names) -> list[list[TintedText]]:
    lines = [_header(picture, grid)] if grid.headed else []
    margin = TintedText(" " * grid.gutter)
    last = len(grid.rows.shown) - 1
    lines.append([margin, TintedText(_border(grid.columns.sizes, "┌┬┐"))])
    for place, (row, size) in enumerate(zip(grid.rows.shown, grid.rows.sizes, strict=True)):
        texts = _texts(panel, row, grid, names)
        for at in range(size):
            middle = at == (size - 1) // 2
            side = span(picture.rows[row]) if grid.gutter and middle and row is not None else ""
            line = [
                TintedText(side.rjust(grid.gutter - 1) + " ") if grid.gutter else margin,
                TintedText("│"),
            ]
            for column, text, wide in zip(
                grid.columns.shown, texts, grid.columns.sizes, strict=True
            ):
                tint = None if row is None or column is None else tint_of(panel, row, column)
                line += [TintedText((text if middle else "").center(wide), tint), TintedText("│")]
            lines.append(line)
        lines.append(
            [margin, TintedText(_border(grid.columns.sizes, "└┴┘" if place == last else "├┼┤"))]
        )
    return lines


def _texts(panel: int, row: int | None, grid: _TextGrid, names: Names) -> list[str]:
    if row is None:
        return ["⋮"] * len(grid.columns.shown)
    shown = grid.columns.shown
    return ["…" if column is None else names.text(panel, row, column) for column in shown]


def _header(picture: Picture, grid: _TextGrid) -> list[TintedText]:
    """Where the columns begin and end."""
    columns = zip(grid.columns.shown, grid.columns.sizes, strict=True)
    spans = [
        ("…" if column is None else span(picture.columns[column])).center(size)
        for column, size in columns
    ]
    return [TintedText(" " * (grid.gutter + 1) + " ".join(spans))]


def _border(sizes: Sequence[int], ends: str) -> str:
    left, between, right = ends
    return left + between.join("─" * size for size in sizes) + right
