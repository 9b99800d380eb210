"""The ``with`` block of a trace: follows the flight recorders of all ranks while it is open.

Ranks record what they do anyway, so a trace costs them nothing. A thread fetches new
records before the rings wrap around, as often as the program's pace requires, and nothing
of them is parsed before the block is over.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, cast

from disco_client.clock import monotonic
from disco_client.errors import ConfigError, SessionError
from disco_client.reentry import import_uninterrupted
from disco_client.text import many
from disco_client.threads import start_thread
from disco_client.tracing.clocks import Clock, ClockSample
from disco_client.tracing.rank_flights import RankFlight, read_report
from disco_client.tracing.ring import (
    COLLECTIVES,
    SLOTS,
    CollectiveRecord,
    CommandRecord,
    FlightRecord,
)
from disco_client.tracing.ring_cuts import CUT_MAGIC, FlightDelta, Since
from disco_client.tracing.timeline import ClientFlight, TimedArrays, TimedInbox, Timeline

if TYPE_CHECKING:
    from types import TracebackType

    from disco_client.core import SessionCore
    from disco_client.transport.base import Transport
    from disco_client.wire.reports import Inspection, RankReport

__all__ = ["Flight", "Trace"]


@dataclass(frozen=True)
class Flight:
    """What the ranks of a session did last, or while they were traced.

    Attributes:
        session: The session's name.
        ranks: Those that are known of, in order.
        client: What the program did meanwhile, where it was traced.

    Examples:
        >>> session.get_global_func("numpy.arange")(3).numpy()
        array([0, 1, 2])
        >>> flight = session.flight()
        >>> [rank.worker for rank in flight.ranks]
        [0, 1, 2, 3]
        >>> flight.save("flight.json")  # for https://ui.perfetto.dev
    """

    session: str
    ranks: tuple[RankFlight, ...]
    client: ClientFlight | None = None

    @classmethod
    def of(cls, found: Inspection) -> Flight:
        """Reads what a transport has fetched.

        Raises:
            ValueError: Something in it is no memory of a flight recorder.
        """
        return cls(found.name, tuple(map(RankFlight.of, found.ranks)))

    def chrome_trace(self) -> dict[str, Any]:
        """The records in Chrome's trace format, which Perfetto reads too.

        There is one process for each rank, with rows for its commands, its
        collectives, its waits for other ranks, and its copies; and one for the program,
        where it was traced. ``otherData`` says how the clocks of ranks were corrected,
        by how much that may be wrong, and what is missing.
        """
        import_uninterrupted("disco_client.tracing.chrome_trace")
        from disco_client.tracing.chrome_trace import ChromeTrace

        return ChromeTrace(self.session, self.ranks, self.client).whole()

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes :meth:`chrome_trace` as JSON, for ui.perfetto.dev or chrome://tracing.

        Raises:
            OSError: The file cannot be written.
        """
        import_uninterrupted("disco_client.tracing.chrome_trace")
        from disco_client.tracing.chrome_trace import ChromeTrace

        with Path(path).open("w", encoding="utf-8") as out:
            ChromeTrace(self.session, self.ranks, self.client).write(out)


KEPT_BYTES = 256 << 20
"""How much is kept of all ranks together: some twenty million commands of microseconds."""

_TICK_S = 0.025
_COMMANDS, _COLLECTIVES = SLOTS // 2, COLLECTIVES // 2
"""After so many a rank's records are fetched, which costs milliseconds: half of what it holds."""

_RARELY_S, _AGAIN_S = 0.25, 1.0
_SECOND = 10**9


@dataclass
class Track:
    """What was fetched of one rank's process.

    Attributes:
        since: How far it was followed.
        node: Where it runs.
        missing: What was overwritten before it was fetched, in words.
        begun: Whether anything was fetched yet.
    """

    since: Since
    node: str
    missing: list[str] = field(default_factory=list[str])
    begun: bool = False

    def __post_init__(self) -> None:
        self._after = self.since.seq
        self._kept: list[RankReport] = []
        self._torn: set[int] = set()
        self._latest: RankReport | None = None

    def add(self, report: RankReport) -> tuple[float, int]:
        """Adds a fetched report.

        Returns:
            The share of the fetch threshold that new records reached, and how many bytes are kept.

        Raises:
            ValueError: It is no cut of a flight recorder's memory.
        """
        if not report.flight.raw:
            return 0.0, 0
        if not report.flight.raw.startswith(CUT_MAGIC):
            self._latest = report  # all that is left of a session that has ended
            return 0.0, len(report.flight.raw)
        cut, before = FlightDelta.of(report.flight.raw), self.since
        if cut.oldest > before.seq + 1 and cut.kinds.size:
            self._torn.add(len(self._kept))
        lost = cut.first_collective - before.collectives
        if lost > 0 and self.begun:
            self.missing.append(f"{many(lost, 'collective')} before command #{cut.oldest}")
        self.since, self.begun, self._latest = cut.follow(before), True, report
        if self.since == before:
            return 0.0, 0
        self._kept.append(report)
        commands = self.since.seq - before.seq
        collectives = self.since.collectives - max(before.collectives, cut.first_collective)
        return max(commands / _COMMANDS, collectives / _COLLECTIVES), len(report.flight.raw)

    def flight(self, clock: Clock) -> RankFlight:
        """Merges what was fetched.

        Raises:
            ValueError: It is damaged.
        """
        commands: list[CommandRecord] = []
        collectives: dict[int, CollectiveRecord] = {}
        last, missing = self._after, list(self.missing)
        pieces = [*self._kept, *filter(None, [self._latest])]
        for number, report in enumerate(pieces, 1):
            record = read_report(report, max(last, 1))
            first = record.commands[0].seq if record.commands else 0
            if number - 1 in self._torn and first > last + 1:
                missing.append(f"commands #{last + 1} to #{first - 1}")
            for command in record.commands:
                if command.seq > last and (command.end_ns or number == len(pieces)):
                    commands.append(command)
                    last = command.seq
            for each in record.collectives:
                if each.seq > self._after:
                    # A second record, if the rank was still in it at the first one.
                    collectives[each.entered_ns] = each
        whole = FlightRecord(tuple(commands), tuple(collectives.values()))
        worker, pid = self.since.worker, self.since.pid
        return RankFlight.on(clock, worker, self.node, pid, whole, tuple(missing))


class Samples:
    """Comparisons of one clock with the common one: the best of each second."""

    def __init__(self) -> None:
        self._best: dict[int, ClockSample] = {}

    def add(self, sample: ClockSample) -> None:
        """Takes one."""
        second = sample.at_ns // _SECOND
        known = self._best.get(second)
        if known is None or sample.error_ns < known.error_ns:
            self._best[second] = sample

    def clock(self) -> Clock:
        """The clock that results from all of them."""
        return Clock(self._best.values())


class Trace:
    """Made by ``session.trace``; see there.

    Args:
        core: Of the session whose ranks are followed.
        path: What is written at the end.
    """

    def __init__(self, core: SessionCore, path: str | os.PathLike[str]) -> None:
        self._core = core
        self.path: Path = Path(path)
        self._timeline = Timeline()
        self._tracks: dict[tuple[int, int], Track] = {}
        self._clocks: dict[str, Samples] = {}
        self._client_clock = Samples()
        self._missing: list[str] = []
        self._kept = 0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._follow, name="disco-trace", daemon=True)

    # The block ------------------------------------------------------------------------------

    def __enter__(self) -> Self:
        core, under_way = self._core, self._core.part(_UnderWay)
        if self._thread.ident is not None:
            msg = "a trace cannot be entered again; begin another one"
            raise ConfigError(msg)
        if under_way.trace is not None:
            msg = f"this session is traced already, into {under_way.trace.path}"
            raise ConfigError(msg)
        core.log.check_open()
        with self.path.open("a", encoding="utf-8"):
            pass  # refused now where it cannot be written, not after all is done
        self._begun = core.log.last_seq
        for place in core.welcome.ranks:
            since = Since(place.worker, place.pid, self._begun)
            self._tracks[place.worker, place.pid] = Track(since, place.node)
        self._fetch()
        start_thread(self._thread)
        under_way.trace = self
        core.array_transport = cast("Transport", TimedArrays(core.transport, self._timeline))
        core.inbox = cast("Any", TimedInbox(core.inbox, self._timeline))
        core.log.watch(self._timeline)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        core = self._core
        if core.log.timeline is not self._timeline:
            return  # in a forked child, and the file is its parent's
        try:
            if kind is None and core.log.closed is None:
                _settle(core)
        finally:
            core.log.watch(None)
            core.inbox = cast("TimedInbox", core.inbox).inbox
            core.array_transport = core.transport
            core.part(_UnderWay).trace = None
            self._stop.set()
            self._thread.join()
            try:
                self._fetch()
            except (SessionError, ValueError) as failed:
                self._missing.append(f"the last records cannot be fetched: {failed}")
            self.flight().save(self.path)

    def __repr__(self) -> str:
        return f"<trace of session {self._core.name!r} into {self.path}>"

    def flight(self) -> Flight:
        """What was recorded so far.

        Raises:
            ValueError: A rank's records are damaged.
        """
        clocks = {node: samples.clock() for node, samples in self._clocks.items()}
        tracks = sorted(self._tracks.values(), key=lambda track: track.since.worker)
        ranks = tuple(track.flight(clocks.get(track.node, Clock())) for track in tracks)
        client = self._timeline.flight(self._client_clock.clock(), self._missing)
        return Flight(self._core.name, ranks, client)

    # Meanwhile ------------------------------------------------------------------------------

    def _follow(self) -> None:
        """Fetches new records, as often as needed."""
        log = self._core.log
        issued, fetched, pause = log.last_seq, monotonic(), _TICK_S
        while not self._stop.wait(_TICK_S) and self._kept < KEPT_BYTES:
            now = monotonic()
            if now - fetched < pause and log.last_seq - issued < _COMMANDS:
                continue
            issued = log.last_seq
            try:
                filled = self._fetch()
            except (SessionError, ValueError):
                fetched, pause = now, _AGAIN_S  # a connection may come back
                continue
            pause = min((now - fetched) / filled if filled else _RARELY_S, _RARELY_S)
            fetched = now
        if self._kept >= KEPT_BYTES:
            self._missing.append(
                f"what came after {KEPT_BYTES >> 20} MiB of records, up to the end"
            )

    def _fetch(self) -> float:
        """Fetches new records; returns the largest share of the fetch threshold that they reached.

        Raises:
            SessionError: The controller cannot be asked.
            ValueError: Some of them are damaged.
        """
        since = [track.since for track in self._tracks.values()]
        found = self._core.transport.inspect(stacks=False, flights=False, since=since)
        self._client_clock.add(found.clock)
        filled = 0.0
        for report in found.ranks:
            key = report.worker, report.pid
            if key not in self._tracks:  # it took the place of one that was lost
                self._tracks[key] = Track(Since(*key), report.node)
            self._clocks.setdefault(report.node, Samples()).add(report.flight.clock)
            much, nbytes = self._tracks[key].add(report)
            filled = max(filled, much)
            self._kept += nbytes
        self._note_silent(silence.node for silence in found.silent)
        return filled

    def _note_silent(self, nodes: Iterable[str]) -> None:
        for node in nodes:
            text = f"node {node} did not answer for a while"
            if text not in self._missing:
                self._missing.append(text)


class _UnderWay:
    """The trace of a session that is being written, if there is one."""

    def __init__(self, core: SessionCore) -> None:
        del core
        self.trace: Trace | None = None


def _settle(core: SessionCore) -> None:
    """Waits until every worker has executed every command; raises no errors of those.

    Raises:
        SessionError: The session was lost meanwhile.
    """
    pump, alive = core.transport.progress, core.transport.check_alive
    if pump is None:
        core.inbox.wait(core.mark(), alive)
    else:
        core.inbox.reach(range(core.num_workers), pump, alive)
