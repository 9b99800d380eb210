"""Which worker sends which piece of a tensor to which, from any placement on any mesh to another.

A tensor falls into cells: boxes that lie within one part of every worker, before and after. Of each
cell a route says who has it, who needs it, and from whom each of those gets it: a worker
that has it already from itself, any other from the nearest one that has it, and of several
equally near ones from that which has sent least so far.

Partial values of a cell are combined by one worker, which then sends the result on. If one
worker alone needs it, that one combines. Else it is cut among the workers that have values and
need the result, or if there are none, among all that have values. So of ``k`` holders
and ``m`` receivers each cell travels ``k + m - 1`` times, and once less where one of them is both,
which is the least possible.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

from disco_client.distributed.placement import DTensorStructInfo
from disco_client.wire.partition import Bounds, Intervals, coordinate_of, cut
from disco_client.wire.values import Shape

__all__ = ["CellCopy", "CellReduction", "Route", "RouteTables", "find_route"]


_Row = TypeVar("_Row", bound=tuple[Any, ...])


class CellReduction(NamedTuple):
    """A box whose partial values one worker combines.

    Attributes:
        worker: Who combines.
        box: Where in the whole tensor.
        holders: From whom each value comes, in the order in which they are combined.
    """

    worker: int
    box: Bounds
    holders: tuple[int, ...]


class CellCopy(NamedTuple):
    """A box that comes to a worker.

    Attributes:
        sender: From whom; the receiver itself where it stays there.
        receiver: To whom.
        box: Where in the whole tensor.
        source: The number of the reduction whose result it is; -1 for what the sender holds.
    """

    sender: int
    receiver: int
    box: Bounds
    source: int


@dataclass(frozen=True, slots=True)
class RouteTables:
    """A route as the workers get it; in each line workers are numbered in its order.

    Attributes:
        counts: For each line how many elements each worker sends to each to be combined, row by
            row, and how many it sends on, or at once; empty where there are none.
        entries: For each member the number of its line and what it does; see
            ``disco_server.rank.builtins.transfers``.
    """

    counts: tuple[tuple[Shape, Shape], ...]
    entries: tuple[list[object], ...]

    @property
    def sends(self) -> bool:
        """Whether anything is sent from worker to worker."""
        return any(map(any, self.counts))


@dataclass(frozen=True, slots=True)
class Route:
    """Who sends what to whom.

    Attributes:
        before: The tensor as it is placed.
        after: The tensor as it is to be placed.
        members: The workers of both meshes, those of the first one first.
        reductions: What is combined; before anything is copied.
        copies: What comes to whom.
        lines: Groups of members, none of which sends anything to another one.
    """

    before: DTensorStructInfo
    after: DTensorStructInfo
    members: tuple[int, ...]
    reductions: tuple[CellReduction, ...]
    copies: tuple[CellCopy, ...]
    lines: tuple[tuple[int, ...], ...]

    def traffic(self) -> dict[tuple[int, int], int]:
        """The bytes that each worker sends to each other one, by both."""
        itemsize = self.before.tensor_sinfo.dtype.itemsize
        found: dict[tuple[int, int], int] = {}
        for sender, receiver, box in self._messages():
            if sender != receiver:
                pair = sender, receiver
                found[pair] = found.get(pair, 0) + _size(box) * itemsize
        return dict(sorted(found.items()))

    def received(self) -> tuple[int, ...]:
        """How many bytes reach each member."""
        reached = dict.fromkeys(self.members, 0)
        for (_, receiver), nbytes in self.traffic().items():
            reached[receiver] += nbytes
        return tuple(reached.values())

    def _messages(self) -> Iterator[tuple[int, int, Bounds]]:
        for each in self.reductions:
            for holder in each.holders:
                yield holder, each.worker, each.box
        for copy in self.copies:
            yield copy.sender, copy.receiver, copy.box

    def tables(self) -> RouteTables:
        """What the workers need to know of it."""
        number = {worker: at for line in self.lines for at, worker in enumerate(line)}
        line_of = {worker: at for at, line in enumerate(self.lines) for worker in line}
        had, wanted = _Parts(self.before), _Parts(self.after)
        lent = [_Counts(len(line)) for line in self.lines]
        given = [_Counts(len(line)) for line in self.lines]
        work = {worker: _MemberWork() for worker in self.members}
        own: list[int] = []  # of each reduction its number among those of its worker
        for worker, box, holders in self.reductions:
            mine = had.within(worker, box) if worker in holders else Shape(())
            held = Shape(number[holder] for holder in holders)
            own.append(len(work[worker].combines))
            work[worker].combines.append([Shape(_extents(box)), held, mine])
            for holder in holders:
                if holder != worker:
                    work[holder].lends.append((number[worker], had.within(holder, box)))
                    lent[line_of[worker]].add(number[holder], number[worker], box)
        for sender, receiver, box, source in self.copies:
            there = wanted.within(receiver, box)
            here = had.within(sender, box) if source < 0 else Shape(())
            at = own[source] if source >= 0 else -1
            if sender == receiver:
                work[receiver].keeps.append((at, here, there))
            else:
                work[sender].gives.append((number[receiver], at, here))
                work[receiver].takes.append((number[sender], there))
                given[line_of[receiver]].add(number[sender], number[receiver], box)
        entries: list[list[object]] = []
        for worker in self.members:
            shapes, me = (had.shape_of(worker), wanted.shape_of(worker)), number[worker]
            given[line_of[worker]].add_elements(me, me, work[worker].send_to_self(me, *shapes))
            entries.append([line_of[worker], shapes[1], *work[worker].encode(*shapes)])
        counts = zip(lent, given, strict=True)
        return RouteTables(
            tuple((each.flat(), other.flat()) for each, other in counts), tuple(entries)
        )


class _MemberWork:
    """What one worker does."""

    def __init__(self) -> None:
        self.lends: list[tuple[int, Shape]] = []
        self.combines: list[list[object]] = []
        self.gives: list[tuple[int, int, Shape]] = []
        self.takes: list[tuple[int, Shape]] = []
        self.keeps: list[tuple[int, Shape, Shape]] = []

    def send_to_self(self, me: int, had: Shape | None, wanted: Shape | None) -> int:
        """Lets what stays go with what is sent, where all of it lies in one piece then.

        That saves a copy of all the rest, on the way out or on the way in.

        Args:
            me: The number of the worker in its line.
            had: The shape of what it has.
            wanted: The shape of its part afterwards.

        Returns:
            How many elements that are.
        """
        combined = any(at >= 0 for at, _, _ in self.keeps) or any(
            at >= 0 for _, at, _ in self.gives
        )
        if combined or not (self.gives or self.takes):
            return 0
        gives = [*self.gives, *((me, at, here) for at, here, _ in self.keeps)]
        takes = [*self.takes, *((me, there) for _, _, there in self.keeps)]
        if not (_run(_sorted(gives), had) or _run(_sorted(takes), wanted)):
            return 0
        self.gives, self.takes = gives, takes
        kept, self.keeps = self.keeps, []
        return sum(_count(here) for _, here, _ in kept)

    def encode(self, had: Shape | None, wanted: Shape | None) -> Iterator[object]:
        """As it is sent; what is sent to one worker, or comes from one, keeps its order."""
        lends, gives, takes = _sorted(self.lends), _sorted(self.gives), _sorted(self.takes)
        combined = any(at >= 0 for _, at, _ in gives)
        yield [_run(lends, had), *(list(each) for each in lends)]
        yield self.combines
        run = Shape(()) if combined else _run(gives, had)
        yield [run, *(list(each) for each in gives)]
        yield [_run(takes, wanted), *(list(each) for each in takes)]
        yield [list(each) for each in self.keeps]


def _sorted(rows: list[_Row]) -> list[_Row]:
    """By the worker that each is about; those of one keep their order."""
    return sorted(rows, key=_first)


def _run(rows: Sequence[tuple[Any, ...]], shape: Shape | None) -> Shape:
    """Where boxes lie in an array as one piece, one behind the other; empty where they do not.

    Args:
        rows: Each ends with a box.
        shape: Of the array; None where there is none.
    """
    boxes: list[Shape] = [row[-1] for row in rows]
    if shape is None or not boxes:
        return Shape(())
    if not shape:
        return Shape((0, 1) if len(boxes) == 1 else ())
    axis, first = 0, boxes[0]
    # Along the axes before this one all boxes have the same one index.
    while (
        axis < len(shape) - 1
        and first[2 * axis + 1] - first[2 * axis] == 1
        and all(box[2 * axis] == first[2 * axis] for box in boxes)
        and all(box[2 * axis + 1] == first[2 * axis + 1] for box in boxes)
    ):
        axis += 1
    rest = [bound for extent in shape[axis + 1 :] for bound in (0, extent)]
    at = first[2 * axis]
    for box in boxes:
        if list(box[2 * axis + 2 :]) != rest or box[2 * axis] != at:
            return Shape(())
        at = box[2 * axis + 1]
    start = 0
    for each in range(axis + 1):
        start = start * shape[each] + first[2 * each]
    size = math.prod(shape[axis + 1 :])
    return Shape((start * size, (start + at - first[2 * axis]) * size))


def _count(box: Shape) -> int:
    return math.prod(last - first for first, last in zip(box[::2], box[1::2], strict=True))


def _first(row: tuple[Any, ...]) -> int:
    return row[0]


class _Counts:
    """How many elements go from each member to each."""

    def __init__(self, members: int) -> None:
        self._members = members
        self._counts = [0] * (members * members)

    def add(self, sender: int, receiver: int, box: Bounds) -> None:
        """Counts the elements of a box."""
        self.add_elements(sender, receiver, _size(box))

    def add_elements(self, sender: int, receiver: int, count: int) -> None:
        """Counts so many elements."""
        self._counts[sender * self._members + receiver] += count

    def flat(self) -> Shape:
        """Row by row; empty where there are none."""
        return Shape(self._counts if any(self._counts) else ())


class _Parts:
    """Where in the part of each worker the boxes of the whole tensor lie."""

    def __init__(self, info: DTensorStructInfo) -> None:
        mesh = info.device_mesh
        self._pieces = {worker: info.pieces(place) for place, worker in enumerate(mesh.device_ids)}
        self._shapes = {
            worker: Shape(info.local_shape(place)) for place, worker in enumerate(mesh.device_ids)
        }

    def shape_of(self, worker: int) -> Shape | None:
        """The shape of a worker's part; None outside the mesh."""
        return self._shapes.get(worker)

    def within(self, worker: int, box: Bounds) -> Shape:
        """A box that the worker holds, by its own indices: first and last for each axis."""
        found: list[int] = []
        for pieces, (start, stop) in zip(self._pieces[worker], box, strict=True):
            at = 0
            for first, last in pieces:
                if first <= start < last:
                    found += (at + start - first, at + stop - first)
                    break
                at += last - first
        return Shape(found)


def find_route(
    before: DTensorStructInfo,
    after: DTensorStructInfo,
    nodes: Sequence[str] = (),
    axis: int | None = None,
) -> Route:
    """Finds the route of a tensor from one placement to another.

    Partial values are combined, unless both placements are of one mesh and partial along the
    same axes; then they stay partial.

    Args:
        before: The tensor as it is placed.
        after: The same tensor as it is to be placed, on any mesh.
        nodes: On which node each worker of the session is; empty where it does not matter.
        axis: Along which axis of the one mesh all moves; None for any way.
    """
    first, second = before.device_mesh, after.device_mesh
    members = tuple(dict.fromkeys((*first.device_ids, *second.device_ids)))
    lines = (members,) if axis is None else tuple(first.lines(axis))
    found = _RouteSearch(before, after, nodes, axis)
    if found.combines:
        found.combine_all()
    else:
        found.copy_all()
    return Route(before, after, members, tuple(found.reductions), tuple(found.copies), lines)


class _RouteSearch:
    """What is being found out for a route.

    Sets of places of a mesh are numbers, of which each bit stands for one place.
    """

    def __init__(
        self,
        before: DTensorStructInfo,
        after: DTensorStructInfo,
        nodes: Sequence[str],
        axis: int | None,
    ) -> None:
        self.reductions: list[CellReduction] = []
        self.copies: list[CellCopy] = []
        self._before, self._after, self._nodes = before, after, nodes
        self._holders = before.device_mesh.device_ids
        self._place_of = {worker: place for place, worker in enumerate(self._holders)}
        self._sent = dict.fromkeys(self._holders, 0)
        partial = _partial_axes(before)
        stays = before.device_mesh == after.device_mesh and partial == _partial_axes(after)
        self._values = _places_by(before, partial)
        self.combines = len(self._values) > 1 and not stays
        # Of what becomes partial the first of a line gets all, and the others nothing.
        self._receivers = [
            place
            for place in range(after.device_mesh.size)
            if stays or not any(_along(after, place, _partial_axes(after)))
        ]
        # From whom a worker gets anything: from those that are where it is on these axes.
        self._shared = partial if stays else []
        if axis is not None:
            self._shared = [each for each in range(before.device_mesh.ndim) if each != axis]
        self._reach = _places_by(before, self._shared)
        self._cells = _Cells(before, [before, after] if self.combines else [before])

    def copy_all(self) -> None:
        """Lets each worker get what it needs from the nearest one that has it."""
        workers = self._after.device_mesh.device_ids
        for place in self._receivers:
            receiver = workers[place]
            reach = self._reach[_along(self._after, place, self._shared)]
            for box, holders in self._cells.of(self._after.pieces(place)):
                sender = self._nearest(receiver, holders & reach, _size(box))
                self.copies.append(CellCopy(sender, receiver, box, -1))

    def combine_all(self) -> None:
        """Lets the values of each cell be combined, and the result go to all that need it."""
        workers = self._after.device_mesh.device_ids
        wanting: dict[Bounds, tuple[int, list[int]]] = {}
        for place in self._receivers:
            for box, holders in self._cells.of(self._after.pieces(place)):
                wanting.setdefault(box, (holders, []))[1].append(workers[place])
        for box, (holders, receivers) in wanting.items():
            has = [worker for place, worker in enumerate(self._holders) if holders >> place & 1]
            both = [worker for worker in receivers if worker in has]
            chosen = receivers if len(receivers) == 1 else both or has
            for reducer, part in zip(chosen, _cut(box, len(chosen)), strict=True):
                if _size(part):
                    self._combine(reducer, part, holders, receivers)

    def _combine(self, reducer: int, box: Bounds, holders: int, receivers: list[int]) -> None:
        size = _size(box)
        values = [holders & places for places in self._values.values()]
        mine = self._place_of.get(reducer)
        come = tuple(
            reducer
            if mine is not None and places >> mine & 1
            else self._nearest(reducer, places, size)
            for places in values
        )
        self.reductions.append(CellReduction(reducer, box, come))
        number = len(self.reductions) - 1
        self.copies += [CellCopy(reducer, receiver, box, number) for receiver in receivers]
        if reducer in self._sent:
            self._sent[reducer] += size * sum(receiver != reducer for receiver in receivers)

    def _nearest(self, receiver: int, holders: int, size: int) -> int:
        """Of those that hold something the one to get it from."""
        own = self._place_of.get(receiver)
        if own is not None and holders >> own & 1:
            return receiver
        have = (worker for place, worker in enumerate(self._holders) if holders >> place & 1)
        sender = min(
            have, key=lambda worker: (self._is_far(worker, receiver), self._sent[worker], worker)
        )
        self._sent[sender] += size
        return sender

    def _is_far(self, worker: int, other: int) -> bool:
        return bool(self._nodes) and self._nodes[worker] != self._nodes[other]


class _Cells:
    """Cells of a tensor, and which places of its mesh hold each.

    Args:
        info: The tensor on that mesh.
        cutting: The tensors at the ends of whose parts cells end.
    """

    def __init__(self, info: DTensorStructInfo, cutting: Iterable[DTensorStructInfo]) -> None:
        places = range(info.device_mesh.size)
        held = [info.pieces(place) for place in places]
        self._all = (1 << info.device_mesh.size) - 1
        ends: list[set[int]] = [set() for _ in info.tensor_sinfo.shape]
        for each in cutting:
            for place in range(each.device_mesh.size):
                for axis, pieces in enumerate(each.pieces(place)):
                    ends[axis].update(itertools.chain.from_iterable(pieces))
        self._axes: list[list[tuple[int, int, int]]] = []
        for axis, known in enumerate(ends):
            bounds = itertools.pairwise(sorted(known))
            self._axes.append(
                [(a, b, sum(1 << p for p in places if _has(held[p][axis], a))) for a, b in bounds]
            )

    def of(self, wanted: Sequence[Intervals]) -> Iterator[tuple[Bounds, int]]:
        """The cells that make up what is wanted, each with the places that hold it."""
        along: list[list[tuple[int, int, int]]] = []
        for pieces, cells in zip(wanted, self._axes, strict=True):
            shared = (
                (max(a, first), min(b, last), has) for first, last in pieces for a, b, has in cells
            )
            along.append([each for each in shared if each[0] < each[1]])
        for cell in itertools.product(*along):
            holders = self._all
            for _, _, has in cell:
                holders &= has
            yield tuple((start, stop) for start, stop, _ in cell), holders


def _has(pieces: Intervals, index: int) -> bool:
    return any(start <= index < stop for start, stop in pieces)


def _partial_axes(info: DTensorStructInfo) -> list[int]:
    return [axis for axis, spec in enumerate(info.placement.dim_specs) if spec.is_partial]


def _along(info: DTensorStructInfo, place: int, axes: Sequence[int]) -> tuple[int, ...]:
    """Where on some axes of the mesh a place is."""
    at = coordinate_of(info.device_mesh.shape, place)
    return tuple(at[axis] for axis in axes)


def _places_by(info: DTensorStructInfo, axes: Sequence[int]) -> dict[tuple[int, ...], int]:
    """The places of a mesh by where they are on some of its axes."""
    found: dict[tuple[int, ...], int] = {}
    for place in range(info.device_mesh.size):
        at = _along(info, place, axes)
        found[at] = found.get(at, 0) | 1 << place
    return found


def _extents(box: Bounds) -> tuple[int, ...]:
    return tuple(stop - start for start, stop in box)


def _size(box: Bounds) -> int:
    return math.prod(_extents(box))


def _cut(box: Bounds, parts: int) -> list[Bounds]:
    """Cuts a box along its longest axis; a box without axes is the first part."""
    if not box:
        return [box] + [((0, 0),)] * (parts - 1)
    axis = max(range(len(box)), key=_extents(box).__getitem__)
    return [(*box[:axis], cut(*box[axis], parts, each), *box[axis + 1 :]) for each in range(parts)]
