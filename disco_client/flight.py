"""The flight records of a session's ranks on one axis of time."""

from __future__ import annotations

import os
import zlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from disco_client.wire.clocks import Clock
from disco_client.wire.flight import (
    RING_BYTES,
    CollectiveRecord,
    CommandRecord,
    FlightRecord,
    read_flight,
)
from disco_client.wire.flight_cuts import CUT_MAGIC, FlightCut
from disco_client.wire.inspection import Inspection, RankReport

if TYPE_CHECKING:
    from disco_client.timeline import ClientFlight

__all__ = ["Flight", "RankFlight", "read_report"]


def read_report(report: RankReport, first: int = 1) -> FlightRecord:
    """Reads the records that came with a report, by the clock of their rank.

    Args:
        report: With a whole memory, or with a cut of one.
        first: Nothing before this command is wanted.

    Raises:
        ValueError: It is no memory of a flight recorder, or of another version.
    """
    if not report.flight:
        return FlightRecord()
    if report.flight.startswith(CUT_MAGIC):
        return FlightCut.of(report.flight).record()
    try:
        raw = zlib.decompressobj().decompress(report.flight, RING_BYTES)
    except zlib.error as error:
        msg = f"the records of rank {report.worker} came damaged: {error}"
        raise ValueError(msg) from None
    return read_flight(raw, report.emptied, first=first)


@dataclass(frozen=True)
class RankFlight:
    """What one rank did last, or while it was traced.

    Attributes:
        worker: Which.
        node: Where.
        pid: Its process.
        commands: Oldest first; of a flight recorder the last 10 000 at most. Times are
            nanoseconds of one clock for all ranks of the session.
        collectives: Likewise.
        clock_offset_ns: What was added to the times of the rank for that.
        clock_error_ns: By how much that may be wrong.
        missing: What was asked for and is not there, in words.
    """

    worker: int
    node: str
    pid: int
    commands: tuple[CommandRecord, ...] = field(repr=False)
    collectives: tuple[CollectiveRecord, ...] = field(repr=False)
    clock_offset_ns: int = 0
    clock_error_ns: int = 0
    missing: tuple[str, ...] = ()

    @classmethod
    def of(cls, report: RankReport) -> RankFlight:
        """Reads the memory that came with a report.

        Raises:
            ValueError: It is no memory of a flight recorder, or of another version.
        """
        record, clock = read_report(report), Clock([report.clock])
        return cls.on(clock, report.worker, report.node, report.pid, record)

    @classmethod
    def on(
        cls,
        clock: Clock,
        worker: int,
        node: str,
        pid: int,
        record: FlightRecord,
        missing: tuple[str, ...] = (),
    ) -> RankFlight:
        """Brings the times of a record to the common clock."""
        commands, collectives = record.commands, record.collectives
        correct = clock.correct
        if not clock.same:
            commands = tuple(
                c._replace(start_ns=correct(c.start_ns), end_ns=correct(c.end_ns)) for c in commands
            )
            collectives = tuple(
                c._replace(
                    entered_ns=correct(c.entered_ns),
                    met_ns=correct(c.met_ns),
                    left_ns=correct(c.left_ns),
                )
                for c in collectives
            )
        offset, error = clock.offset_ns, clock.error_ns
        return cls(worker, node, pid, commands, collectives, offset, error, missing)


@dataclass(frozen=True)
class Flight:
    """What the ranks of a session did last, or while they were traced.

    Attributes:
        session: The session's name.
        ranks: Those that are known of, in order.
        client: What the program did meanwhile, where it was traced.
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
        from disco_client.chrome_trace import ChromeTrace

        return ChromeTrace(self).whole()

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes :meth:`chrome_trace` as JSON, for ui.perfetto.dev or chrome://tracing.

        Raises:
            OSError: The file cannot be written.
        """
        from pathlib import Path

        from disco_client.chrome_trace import ChromeTrace

        with Path(path).open("w", encoding="utf-8") as out:
            ChromeTrace(self).write(out)
