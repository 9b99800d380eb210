"""The flight records of a session's ranks on one axis of time."""

from __future__ import annotations

import zlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from disco_client.tracing.clocks import Clock
from disco_client.tracing.ring import (
    RING_BYTES,
    CollectiveRecord,
    CommandRecord,
    FlightRecord,
    read_flight,
)
from disco_client.tracing.ring_cuts import CUT_MAGIC, FlightDelta

if TYPE_CHECKING:
    from disco_client.wire.reports import RankReport

__all__ = ["RankFlight", "read_report"]


def read_report(report: RankReport, first: int = 1) -> FlightRecord:
    """Reads the records that came with a report, by the clock of their rank.

    Args:
        report: With a whole memory, or with a cut of one.
        first: Nothing before this command is wanted.

    Raises:
        ValueError: It is no memory of a flight recorder, or of another version.
    """
    copied = report.flight
    if not copied.raw:
        return FlightRecord()
    if copied.raw.startswith(CUT_MAGIC):
        return FlightDelta.of(copied.raw).record()
    try:
        raw = zlib.decompressobj().decompress(copied.raw, RING_BYTES)
    except zlib.error as error:
        msg = f"the records of rank {report.worker} came damaged: {error}"
        raise ValueError(msg) from None
    return read_flight(raw, copied.emptied, first=first)


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
        missing: What was requested and is missing, in words.

    Examples:
        >>> _ = session.allreduce(session.broadcast(np.ones(2))).numpy()
        >>> rank = session.flight().ranks[2]
        >>> [each.name for each in rank.collectives if "allreduce" in each.name]
        ['allreduce(sum)']
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
        record, clock = read_report(report), Clock([report.flight.clock])
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
