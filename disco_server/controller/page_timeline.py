"""What ranks did in a stretch of time, in as few spans as a screen can show.

Commands that are too short to be seen are put together with their neighbours. So an answer
has a bounded size, however many commands there were.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from disco_client.clock import monotonic_ns
from disco_client.tracing.chrome_trace import arrivals, identity_of
from disco_client.tracing.rank_flights import RankFlight
from disco_client.tracing.ring import CommandRecord
from disco_client.tracing.trace import Flight
from disco_client.wire.reports import Inspection, what_is_done

__all__ = ["MOST_RANKS", "MOST_SECONDS", "MOST_SPANS", "PARTS", "Stretch", "timeline"]


MOST_RANKS: Final = 16
"""Of how many ranks one answer tells."""

MOST_SPANS: Final = 4000
"""Into how many parts a stretch of time is cut at most; a rank has up to twice as many spans."""

MOST_SECONDS: Final = 60.0

PARTS: Final = 200
"""For how many parts of the time the bandwidth is told."""

_MOST_NAMES: Final = 100
_REST: Final = "others"
_US: Final = 1e3


@dataclass(frozen=True, slots=True)
class Stretch:
    """A stretch of time, and how finely it is told of.

    Attributes:
        end_ns: Its end, by the controller's monotonic clock.
        seconds: Its length.
        spans: Into how many parts it is cut; what is shorter than one is put together.
    """

    end_ns: int
    seconds: float
    spans: int

    @classmethod
    def until_now(cls, seconds: float, spans: int) -> Stretch:
        """The last seconds."""
        return cls(monotonic_ns(), seconds, spans)

    @property
    def begin_ns(self) -> int:
        """Its beginning."""
        return self.end_ns - round(self.seconds * 1e9)

    @property
    def shortest_ns(self) -> int:
        """The length of a part."""
        return max((self.end_ns - self.begin_ns) // self.spans, 1)

    def within(self, start_ns: int, end_ns: int) -> tuple[int, int] | None:
        """The part of a span that is in it, None for none; an end of 0 is one to come."""
        start = max(start_ns, self.begin_ns)
        end = min(end_ns or self.end_ns, self.end_ns)
        return (start, end) if end > start or (end == start and start_ns == start) else None


def timeline(found: Inspection, stretch: Stretch) -> dict[str, object]:
    """Says what each rank did in a stretch of time.

    Args:
        found: With the records of the ranks.
        stretch: Which time.

    Returns:
        ``functions``, the names of what was done, those that took longest first, with their
        seconds and counts over all ranks; for each of ``ranks`` its ``spans``, each a list of
        begin and length in microseconds, the number of the function that took most of it, how
        many commands it is of and the number of the first, and ``waits``, begins and lengths of
        waiting for other ranks in collectives; ``bandwidth``, the bytes in a second that
        collectives moved in each of `PARTS` parts, of all these ranks together; and
        ``collectives``, by operation how many there were, of how many bytes, for how long
        they moved data and waited before, and how fast that was for one rank.
    """
    try:
        ranks = Flight.of(found).ranks
    except ValueError:  # a rank's own code wrote into its records
        ranks = ()
    names = _Names()
    came = arrivals(ranks)
    moved = {rank.worker: list(_moves(rank, came)) for rank in ranks}
    told = [_of_rank(rank, moved[rank.worker], stretch, names) for rank in ranks]
    functions, numbers = names.sorted()
    for rank in told:
        for span in rank["spans"]:
            span[2] = numbers[span[2]]
    collectives = [each for moves in moved.values() for each in moves]
    return {
        "end_ns": stretch.end_ns,
        "seconds": stretch.seconds,
        "functions": functions,
        "ranks": told,
        "bandwidth": _bandwidth(collectives, stretch),
        "collectives": _operations(collectives, stretch),
    }


class _Names:
    """The functions that were called: for how long and how often."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}
        self._ns: list[int] = []
        self._counts: list[int] = []

    def add(self, name: str, ns: int) -> int:
        """Counts a command; returns the number of its function."""
        if name not in self._numbers and len(self._numbers) >= _MOST_NAMES:
            name = _REST
        number = self._numbers.setdefault(name, len(self._numbers))
        if number == len(self._ns):
            self._ns.append(0)
            self._counts.append(0)
        self._ns[number] += ns
        self._counts[number] += 1
        return number

    def sorted(self) -> tuple[list[dict[str, object]], list[int]]:
        """The functions, those that took longest first, and the new number of each old one."""
        order = sorted(self._numbers.values(), key=lambda number: -self._ns[number])
        names = {number: name for name, number in self._numbers.items()}
        numbers = [0] * len(order)
        for place, number in enumerate(order):
            numbers[number] = place
        functions: list[dict[str, object]] = [
            {
                "name": names[number],
                "seconds": self._ns[number] / 1e9,
                "count": self._counts[number],
            }
            for number in order
        ]
        return functions, numbers


@dataclass(slots=True)
class _Block:
    """A span of one command, or of several that are short."""

    start: int
    end: int
    seq: int
    count: int = 0
    by_function: dict[int, int] = field(default_factory=lambda: defaultdict[int, int](int))


@dataclass(frozen=True, slots=True)
class _Move:
    """A collective of one rank: when it came, when all had come, when it left; 0 for not yet."""

    name: str
    nbytes: int
    entered: int
    met: int
    left: int


def _moves(rank: RankFlight, came: Mapping[tuple[object, ...], tuple[int, int]]) -> Iterator[_Move]:
    """The collectives of a rank.

    Where the rank did not note when all had come, that is when the last of the ranks that are
    known came.
    """
    ends = {command.seq: command.end_ns for command in rank.commands}
    for each in rank.collectives:
        left = each.left_ns or ends.get(each.seq, 0)
        count, last = came[identity_of(each)]
        known = last if left or count == len(each.members) else 0
        yield _Move(each.name, each.nbytes, each.entered_ns, each.met_ns or known, left)


def _of_rank(
    rank: RankFlight, moves: Sequence[_Move], stretch: Stretch, names: _Names
) -> dict[str, list[list[int]]]:
    spans = [
        [
            round((block.start - stretch.begin_ns) / _US),
            round((block.end - block.start) / _US),
            max(block.by_function, key=lambda number: block.by_function[number]),
            block.count,
            block.seq,
        ]
        for block in _blocks(rank.commands, stretch, names)
    ]
    waits = (
        within
        for each in moves
        if (within := stretch.within(each.entered, each.met or each.left)) is not None
    )
    merged = [
        [round((start - stretch.begin_ns) / _US), round((end - start) / _US)]
        for start, end in _merged(waits, stretch.shortest_ns)
    ]
    return {"worker": rank.worker, "node": rank.node, "spans": spans, "waits": merged}  # type: ignore[dict-item]


def _blocks(commands: Sequence[CommandRecord], stretch: Stretch, names: _Names) -> Iterator[_Block]:
    """The spans of a rank: a long command for itself, short ones together."""
    shortest = stretch.shortest_ns
    block: _Block | None = None
    last = 0
    for command in commands:
        within = stretch.within(command.start_ns, command.end_ns)
        if within is None:
            continue
        # Commands that were timed together have the same times, which count once.
        start, end = max(within[0], last), within[1]
        took = max(end - start, 0)
        last = max(last, end)
        number = names.add(what_is_done(command.action, command.name), took)
        long = took >= shortest
        if block is not None and (
            long or start - block.end >= shortest or end - block.start > 2 * shortest
        ):
            yield block
            block = None
        if block is None:
            block = _Block(min(start, end), end, command.seq)
        block.end = max(block.end, end)
        block.count += 1
        block.by_function[number] += took
        if long:
            yield block
            block = None
    if block is not None:
        yield block


def _merged(spans: Iterable[tuple[int, int]], shortest: int) -> Iterator[tuple[int, int]]:
    """Spans in order, those that are closer than can be seen as one; the shortest are left out."""
    block: tuple[int, int] | None = None
    for start, end in spans:
        if block is not None and start - block[1] < shortest:
            block = block[0], max(block[1], end)
            continue
        if block is not None and block[1] - block[0] >= shortest:
            yield block
        block = start, end
    if block is not None and block[1] - block[0] >= shortest:
        yield block


def _bandwidth(collectives: Iterable[_Move], stretch: Stretch) -> list[int]:
    """How many bytes a second were moved in each part, of all ranks together."""
    part_ns = (stretch.end_ns - stretch.begin_ns) / PARTS
    moved = [0.0] * PARTS
    for each in collectives:
        if not each.met or not each.left or not each.nbytes:
            continue
        within = stretch.within(each.met, each.left)
        if within is None:
            continue
        start, end = ((at - stretch.begin_ns) / part_ns for at in within)
        per_part = each.nbytes / max((each.left - each.met) / part_ns, 1e-9)
        for part in range(int(start), min(int(end) + 1, PARTS)):
            moved[part] += per_part * max(min(end, part + 1) - max(start, part), 0.0)
    return [round(nbytes / (part_ns / 1e9)) for nbytes in moved]


def _operations(collectives: Iterable[_Move], stretch: Stretch) -> list[dict[str, object]]:
    """By operation how often, of how many bytes, how long and how fast."""
    sums: dict[str, list[float]] = {}
    for each in collectives:
        if each.met and each.left and stretch.begin_ns <= each.left <= stretch.end_ns:
            known = sums.setdefault(each.name, [0, 0, 0, 0])
            known[0] += 1
            known[1] += each.nbytes
            known[2] += max(each.left - each.met, 0) / 1e9
            known[3] += max(each.met - each.entered, 0) / 1e9
    ordered = sorted(sums.items(), key=lambda item: -item[1][2])
    return [
        {
            "name": name,
            "count": count,
            "bytes": nbytes,
            "seconds": seconds,
            "wait_s": waited,
            "bytes_per_s": nbytes / seconds if seconds > 0 else None,
        }
        for name, (count, nbytes, seconds, waited) in ordered[:_MOST_NAMES]
    ]
