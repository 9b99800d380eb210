"""What ranks print: the last lines of each session, for readers that come later or follow.

Writing never waits for a reader: each reader has a position in the lines that are kept, and
one that falls behind them learns how many it has missed.
"""

from __future__ import annotations

import asyncio
import time
from bisect import bisect_right
from collections import Counter, OrderedDict
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass, field, replace

from disco_client.clock import monotonic
from disco_client.pb import controller_pb2
from disco_client.wire.printed import LineCounter
from disco_server.core.token_bucket import TokenBucket

__all__ = ["Logs", "Printed", "SessionLog"]

KEPT_LINES = 10_000
KEPT_BYTES = 1 << 20
"""How much is kept of one session."""

ALL_BYTES = 64 << 20
"""How much is kept of all together."""

ENDED_S = 600.0
ENDED_SESSIONS = 64
"""For how long sessions are kept that are over, and how many of them."""

_OF_A_LINE = 64
"""What a line takes beyond its text, approximately."""

_PART_LINES = 1_000

_BUDGET = (16 << 20, 1 << 20, 64 << 10)
"""How many bytes of a session, from all its nodes, are taken: at once, and each second beyond
that; where they are spent, the next ones come in pieces of the last of these."""


@dataclass(frozen=True, slots=True)
class Printed:
    """Lines that one rank printed and that came together.

    Attributes:
        number: How many lines of the session came before these.
        nth: How many lines of this rank did.
        time_s: When they came, in seconds since 1970.
        worker, node: The rank that printed them.
        stderr: Whether to standard error.
        lines: Without their ends.
    """

    number: int
    nth: int
    time_s: float
    worker: int
    node: str
    stderr: bool
    lines: tuple[str, ...]

    @property
    def nbytes(self) -> int:
        """How much memory they take, approximately."""
        return sum(map(len, self.lines)) + _OF_A_LINE * len(self.lines)

    @property
    def message(self) -> controller_pb2.Printed:
        """The same as readers get it."""
        return controller_pb2.Printed(
            time_s=self.time_s,
            lines=controller_pb2.LogLines(
                worker=self.worker, node=self.node, stderr=self.stderr, lines=self.lines
            ),
        )

    def after(self, count: int) -> Printed:
        """The same without some of the first lines."""
        if count <= 0:
            return self
        return replace(
            self, number=self.number + count, nth=self.nth + count, lines=self.lines[count:]
        )


def _end(printed: Printed) -> int:
    return printed.number + len(printed.lines)


@dataclass(slots=True)
class _LogPosition:
    """A reader's position in the lines of the session, and in those of its rank."""

    number: int
    nth: int = 0


class SessionLog:
    """The last lines of one session.

    Args:
        max_lines: How many are kept.
        max_bytes: In how many bytes.

    Attributes:
        lines: Counts which of each rank's lines came here.
        budget: How many bytes more are taken.
        nbytes: How much memory they take, approximately.
        over: When the session ended; None while it runs.
    """

    def __init__(self, max_lines: int = KEPT_LINES, max_bytes: int = KEPT_BYTES) -> None:
        self._max_lines = max_lines
        self._max_bytes = max_bytes
        self._kept: list[Printed] = []
        self._first = 0
        self._count = 0
        self._counts: Counter[int] = Counter()
        self._lines = 0
        self._change = asyncio.Event()
        # What was printed before a controller was started again is not known to it.
        self.lines = LineCounter(from_first=False)
        self.budget = TokenBucket(*_BUDGET, monotonic())
        self.nbytes = 0
        self.over: float | None = None

    def add(self, worker: int, node: str, stderr: bool, lines: Sequence[str]) -> None:
        """Adds lines that came together; drops the oldest if there are too many."""
        printed = Printed(
            self._count, self._counts[worker], time.time(), worker, node, stderr, tuple(lines)
        )
        self._count += len(lines)
        self._counts[worker] += len(lines)
        printed = printed.after(len(lines) - self._max_lines)
        self._kept.append(printed)
        self._lines += len(printed.lines)
        self.nbytes += printed.nbytes
        while self._lines > self._max_lines or self.nbytes > self._max_bytes:
            self.drop_oldest()
        self._tell()

    def drop_oldest(self) -> None:
        """Drops the oldest lines that came together."""
        oldest = self._kept[self._first]
        self._first += 1
        self._lines -= len(oldest.lines)
        self.nbytes -= oldest.nbytes
        if 2 * self._first > len(self._kept):
            del self._kept[: self._first]
            self._first = 0

    def close(self) -> None:
        """Marks the end of the lines; readers that follow them end."""
        self.over = monotonic()
        self._tell()

    def _tell(self) -> None:
        """Wakes all waiting readers."""
        self._change.set()
        self._change = asyncio.Event()

    # Reading --------------------------------------------------------------------------

    async def read(
        self, *, worker: int | None = None, last: int | None = None, follow: bool = False
    ) -> AsyncGenerator[controller_pb2.LogsPart]:
        """Yields the lines that are kept, and then new ones.

        Args:
            worker: Only this rank's lines.
            last: At most this many of the lines that are kept.
            follow: Whether to go on until the session is over.
        """
        place = self._begin(worker, last)
        while True:
            changed, over = self._change, self.over is not None
            part = self._take(place, worker)
            if part.printed or part.lost:
                yield part
            elif over or not follow:
                return
            else:
                await changed.wait()

    def _begin(self, worker: int | None, last: int | None) -> _LogPosition:
        mine = [p for p in self._kept[self._first :] if worker in (None, p.worker)]
        of_rank = 0 if worker is None else self._counts[worker]
        if not mine:
            return _LogPosition(self._count, of_rank)
        if last is None:
            return _LogPosition(mine[0].number, mine[0].nth)
        if worker is None:
            return _LogPosition(max(mine[0].number, self._count - last))
        return _LogPosition(mine[0].number, max(mine[0].nth, of_rank - last))

    def _take(self, place: _LogPosition, worker: int | None) -> controller_pb2.LogsPart:
        """Takes some lines, and moves the position behind them."""
        at = max(bisect_right(self._kept, place.number, key=_end), self._first)
        found: list[Printed] = []
        lost, many = 0, 0
        while at < len(self._kept) and many < _PART_LINES:
            printed = self._kept[at]
            at += 1
            if worker is None:
                printed = printed.after(place.number - printed.number)
                lost += printed.number - place.number
            elif printed.worker == worker:
                printed = printed.after(place.nth - printed.nth)
                lost += printed.nth - place.nth
                place.nth = printed.nth + len(printed.lines)
            place.number = _end(printed)
            if worker in (None, printed.worker) and printed.lines:
                found.append(printed)
                many += len(printed.lines)
        if at >= len(self._kept):  # of what came after that, nothing is kept
            if worker is None:
                lost += self._count - place.number
            else:
                lost += self._counts[worker] - place.nth
                place.nth = self._counts[worker]
            place.number = self._count
        return controller_pb2.LogsPart(printed=(each.message for each in found), lost=lost)


@dataclass(slots=True)
class Logs:
    """The lines of all sessions of a controller; used from the event loop only."""

    _sessions: OrderedDict[int, SessionLog] = field(default_factory=OrderedDict[int, SessionLog])
    _nbytes: int = 0

    def of(self, session: int, *, over: bool = False) -> SessionLog:
        """The lines of a session.

        Args:
            session: Its id.
            over: Whether it is; then there may be none.
        """
        self._forget()
        log = self._sessions.get(session)
        if log is None:
            log = SessionLog()
            if over:
                log.close()
            else:
                self._sessions[session] = log
        return log

    def add(
        self,
        session: int,
        worker: int,
        node: str,
        stderr: bool,
        lines: Sequence[str],
        *,
        first: int = 0,
    ) -> bool:
        """Adds what a rank has printed; False where the session has printed too much of late.

        Args:
            session: The rank's session.
            worker: The rank.
            node: Where it runs.
            stderr: Whether it went to standard error.
            lines: The lines, of which none is kept in that case.
            first: How many lines of this rank came before.
        """
        log = self._sessions.get(session) or self.of(session)
        cost = sum(map(len, lines)) + _OF_A_LINE * len(lines)
        left = log.budget.left(monotonic())
        log.budget.take(min(cost, left))
        if cost > left:
            return False
        if not (lines := log.lines.receive(worker, first, lines)):
            return True
        self._nbytes -= log.nbytes
        log.add(worker, node, stderr, lines)
        self._nbytes += log.nbytes
        while self._nbytes > ALL_BYTES:
            largest = max(self._sessions.values(), key=lambda log: log.nbytes)
            self._nbytes -= largest.nbytes
            largest.drop_oldest()
            self._nbytes += largest.nbytes
        return True

    def end(self, session: int) -> None:
        """Marks a session as over; what it printed can be read for a while."""
        log = self._sessions.get(session)
        if log is None:
            return
        log.close()
        self._sessions.move_to_end(session)
        self._forget()

    def _forget(self) -> None:
        now = monotonic()
        over = [(key, log.over) for key, log in self._sessions.items() if log.over is not None]
        for at, (key, since) in enumerate(over):
            if now - since > ENDED_S or at < len(over) - ENDED_SESSIONS:
                self._nbytes -= self._sessions.pop(key).nbytes
