"""What a picture of a distributed tensor shows: its parts in a grid, and their workers."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from disco_client.wire.partition import WHOLE, coordinate_of

if TYPE_CHECKING:
    from disco_client.distributed.placement import DTensorStructInfo

__all__ = [
    "INK",
    "TINTS",
    "Axis",
    "Cut",
    "Names",
    "Panel",
    "Picture",
    "key_of",
    "left_out",
    "line_up",
    "picture_of",
    "ranges",
    "span",
    "spread",
    "tint_of",
]


Cut = tuple[int, int]
"""The first index of an interval along an axis, and the one behind its last."""

# Paul Tol's light scheme, made for what is written upon; distinct for the colour-blind.
TINTS = (
    "#77aadd",
    "#eedd88",
    "#ee8866",
    "#44bb99",
    "#ffaabb",
    "#bbcc33",
    "#99ddff",
    "#dddddd",
)
"""The colours of cells."""

INK = "#111111"
"""The colour of what is written upon them."""

_Key = tuple[Cut, ...]
_PLANE = 2


@dataclass(frozen=True)
class Panel:
    """One grid: the parts that differ along the drawn axes only.

    Attributes:
        title: Which part of the other split axes it shows; empty where none is split.
        labels: The workers that hold each part, row by row.
    """

    title: str
    labels: tuple[tuple[str, ...], ...]


@dataclass(frozen=True)
class Picture:
    """All that is to be drawn, in no particular form.

    Attributes:
        title: What the tensor is.
        rows: The intervals down the grid; one where no axis is drawn there.
        columns: The intervals across it; one where no axis is drawn there.
        row_axis: The tensor's axis down the grid, or WHOLE.
        column_axis: The tensor's axis across it, or WHOLE.
        panels: The grids; none where the tensor has no elements.
        notes: What is to be said below, a sentence each.
    """

    title: str
    rows: tuple[Cut, ...]
    columns: tuple[Cut, ...]
    row_axis: int
    column_axis: int
    panels: tuple[Panel, ...]
    notes: tuple[str, ...]


def picture_of(info: DTensorStructInfo) -> Picture:
    """Says what a picture of a tensor has to show.

    Of a tensor of more than two axes those that are split are drawn, or else the
    last ones; where more than two are split there is a grid for each part along
    the others.

    Args:
        info: The tensor.
    """
    shape, ndim = info.tensor_sinfo.shape, info.tensor_sinfo.ndim
    parts = [
        (place, block)
        for place in range(info.device_mesh.size)
        for block in itertools.product(*info.pieces(place))
        if _filled(block)
    ]
    cuts = [sorted({block[axis] for _, block in parts}) for axis in range(ndim)]
    split = [axis for axis in range(ndim) if axis in info.axes]
    row_axis, column_axis = _drawn(ndim, split)
    others = [axis for axis in split if axis not in (row_axis, column_axis)]
    rows, columns = (
        tuple(cuts[axis]) if axis != WHOLE else ((0, 1),) for axis in (row_axis, column_axis)
    )
    holders: dict[_Key, list[int]] = {}
    for place, block in parts:
        holders.setdefault(block, []).append(place)

    def label(rest: Sequence[Cut], row: Cut, column: Cut) -> str:
        known = dict(zip((*others, row_axis, column_axis), (*rest, row, column), strict=True))
        key = tuple(known.get(axis, (0, extent)) for axis, extent in enumerate(shape))
        return _label(info, holders[key])

    panels: list[Panel] = []
    for rest in itertools.product(*(cuts[axis] for axis in others)) if holders else ():
        title = ", ".join(f"axis {a}: {span(c)}" for a, c in zip(others, rest, strict=True))
        labels = tuple(tuple(label(rest, row, column) for column in columns) for row in rows)
        panels.append(Panel(title, labels))
    notes = _notes(info, row_axis, column_axis, others, bool(panels))
    return Picture(_title(info), rows, columns, row_axis, column_axis, tuple(panels), notes)


def span(cut: Cut) -> str:
    """An interval as a slice is written."""
    return f"{cut[0]}:{cut[1]}"


def ranges(workers: Sequence[int]) -> str:
    """Workers in ascending order, three and more in a row as a range: ``0-3, 7``."""
    found: list[str] = []
    ordered = sorted(workers)
    for _, run in itertools.groupby(enumerate(ordered), lambda pair: pair[1] - pair[0]):
        ids = [worker for _, worker in run]
        found += [f"{ids[0]}-{ids[-1]}"] if len(ids) > _PLANE else map(str, ids)
    return ", ".join(found)


def _filled(part: Sequence[Cut]) -> bool:
    return all(start < stop for start, stop in part)


def _drawn(ndim: int, split: Sequence[int]) -> tuple[int, int]:
    """The axes down and across."""
    if ndim < _PLANE:
        return WHOLE, ndim - 1 if ndim else WHOLE
    drawn = list(split[:_PLANE])
    for axis in reversed(range(ndim)):
        if len(drawn) < _PLANE and axis not in drawn:
            drawn.append(axis)
    return min(drawn), max(drawn)


def _label(info: DTensorStructInfo, places: Sequence[int]) -> str:
    """The workers that hold a part; those with partial values with what combines them."""
    specs = info.placement.dim_specs
    groups: dict[tuple[int, ...], list[int]] = {}
    for place in places:
        at = coordinate_of(info.device_mesh.shape, place)
        key = tuple(-1 if s.is_partial else index for s, index in zip(specs, at, strict=True))
        groups.setdefault(key, []).append(info.device_mesh.device_ids[place])
    ops = dict.fromkeys(spec.op for spec in specs if spec.is_partial)
    if not ops:
        return ranges([worker for group in groups.values() for worker in group])
    name = " of ".join(ops)
    return ", ".join(f"{name}({ranges(group)})" for group in groups.values())


def _title(info: DTensorStructInfo) -> str:
    tensor, mesh = info.tensor_sinfo, info.device_mesh
    names = mesh.names or [f"mesh axis {axis}" for axis in range(mesh.ndim)]
    axes = zip(names, mesh.shape, info.placement.dim_specs, strict=True)
    lies = ", ".join(f"{spec} along {name} ({extent})" for name, extent, spec in axes)
    return f"{tuple(tensor.shape)} {tensor.dtype.name}: {lies}"


def _notes(
    info: DTensorStructInfo, row_axis: int, column_axis: int, others: Sequence[int], drawn: object
) -> tuple[str, ...]:
    tensor, mesh = info.tensor_sinfo, info.device_mesh
    notes: list[str] = []
    if row_axis != WHOLE and drawn:
        notes.append(f"Axis {row_axis} goes down, axis {column_axis} across.")
    rest = [a for a in range(tensor.ndim) if a not in (row_axis, column_axis, *others)]
    if rest:
        which = ", ".join(f"axis {axis} of {tensor.shape[axis]}" for axis in rest)
        notes.append(f"Not drawn, because it is whole everywhere: {which}.")
    if drawn:
        notes.append("Each cell names the workers that hold it.")
    ops = dict.fromkeys(spec.op for spec in info.placement.dim_specs if spec.is_partial)
    if ops and drawn:
        notes.append(f"{' and '.join(ops)}(...): partial values, whole once they are combined.")
    empty = [w for at, w in enumerate(mesh.device_ids) if 0 in info.local_shape(at)]
    if empty:
        notes.append(f"Without elements: {'workers' if empty[1:] else 'worker'} {ranges(empty)}.")
    return tuple(notes)


def tint_of(panel: int, row: int, column: int) -> int:
    """The colour of a cell, by its number in the palette; another one than its neighbours'."""
    return (3 * row + column + 5 * panel) % len(TINTS)


# Gives the rows and columns of a grid their sizes: to scale, and large enough to be read.


_ENDS = 2
_LETTERS = 26


class Axis(NamedTuple):
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


def line_up(extents: Sequence[int], total: int, least: int, room: int) -> Axis:
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
    return Axis(tuple(shown), tuple(spread(sizes, min(total, room - borders), least)))


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


def left_out(rows: Axis, columns: Axis) -> list[str]:
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
    """The texts of the cells: the workers that hold a part, or a key explained in a legend.

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
