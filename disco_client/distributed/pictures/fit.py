"""Gives the rows and columns of a grid their sizes: to scale, and large enough to be read."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from disco_client.distributed.pictures.model import Picture, span
from disco_client.wire.layout import WHOLE

__all__ = ["Line", "Names", "key_of", "left_out", "line_up", "spread"]

_ENDS = 2
_LETTERS = 26


class Line(NamedTuple):
    """The rows, or the columns, that are drawn.

    Attributes:
        shown: Their numbers; None once for those that are left out.
        sizes: Their sizes, without borders.
    """

    shown: tuple[int | None, ...]
    sizes: tuple[int, ...]

    @property
    def length(self) -> int:
        """Of all of them, with a border of one around each."""
        return sum(self.sizes) + len(self.sizes) + 1


def line_up(extents: Sequence[int], total: int, least: int, room: int) -> Line:
    """Sizes for rows or columns, in proportion to their extents.

    Args:
        extents: Theirs; each at least 1.
        total: How large all of them should be together, without borders.
        least: How large each must be.
        room: How large they may be together, with a border of 1 around each; where
            they do not fit, those in the middle are left out.
    """
    capacity = max((room - 1) // (least + 1), _ENDS + 1)
    shown: list[int | None] = list(range(len(extents)))
    if len(extents) > capacity:
        front = capacity // 2
        shown = [*shown[:front], None, *shown[len(extents) - (capacity - front - 1) :]]
    # Whatever is left out is drawn as small as can be.
    sizes = [1 if number is None else extents[number] for number in shown]
    borders = len(shown) + 1
    return Line(tuple(shown), tuple(spread(sizes, min(total, room - borders), least)))


def spread(extents: Sequence[int], total: int, least: int) -> list[int]:
    """Divides a length in proportion, where no part gets less than it must.

    Args:
        extents: In which proportion.
        total: The length. It is used up but for what is rounded away; where the least
            of all does not fit, they get more.
        least: What each gets at least.
    """
    sizes = [least] * len(extents)
    free = [number for number, _ in enumerate(extents)]
    while free:
        room = total - least * (len(extents) - len(free))
        whole = sum(extents[number] for number in free)
        small = [number for number in free if extents[number] * room < least * whole]
        if not small:
            # Rounded down, so that equal extents look equal.
            for number in free:
                sizes[number] = extents[number] * room // whole
            break
        free = [number for number in free if number not in small]
    return sizes


def key_of(number: int) -> str:
    """A short name where a label is too long: a to z, then aa, ab and so on."""
    letters = ""
    number += 1
    while number:
        number, rest = divmod(number - 1, _LETTERS)
        letters = chr(ord("a") + rest) + letters
    return letters


def left_out(rows: Line, columns: Line) -> list[str]:
    """Says how many rows and columns are not shown."""
    notes: list[str] = []
    for name, line in (("rows", rows), ("columns", columns)):
        if None in line.shown:
            at = line.shown.index(None)
            first, behind = line.shown[at - 1], line.shown[at + 1]
            if first is not None and behind is not None:
                notes.append(f"{behind - first - 1} {name} of parts are left out in the middle.")
    return notes


class Names:
    """What stands in the cells: who holds a part, or a key with which a legend says so.

    Args:
        picture: What is drawn.
        keyed: Whether there is room for keys only.

    Attributes:
        legend: What the keys given so far mean.
    """

    def __init__(self, picture: Picture, *, keyed: bool) -> None:
        self._picture = picture
        self._keyed = keyed
        self.legend: list[str] = []

    def where(self, panel: int, row: int, column: int) -> str:
        """Which part of the tensor a cell is."""
        picture = self._picture
        axes = (picture.row_axis, picture.rows[row]), (picture.column_axis, picture.columns[column])
        found = ", ".join(span(cut) for axis, cut in axes if axis != WHOLE)
        title = picture.panels[panel].title
        return f"{title}, [{found}]" if title else f"[{found}]"

    def text(self, panel: int, row: int, column: int) -> str:
        """What stands in a cell."""
        label = self._picture.panels[panel].labels[row][column]
        if not self._keyed:
            return label
        key = key_of(len(self.legend))
        self.legend.append(f"{key}: {self.where(panel, row, column)} {label}")
        return key
