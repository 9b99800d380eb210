"""The flight records of a session's ranks on one axis of time."""

from __future__ import annotations

import os
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from disco_client.wire.flight import (
    RING_BYTES,
    CollectiveRecord,
    CommandRecord,
    FlightRecord,
    read_flight,
)
from disco_client.wire.inspection import Inspection, RankReport, what_is_done

__all__ = ["Flight", "RankFlight"]

_US = 1e-3
"""Microseconds in a nanosecond, which is what traces count in."""


@dataclass(frozen=True)
class RankFlight:
    """What one rank did last.

    Attributes:
        worker: Which.
        node: Where.
        pid: Its process.
        commands: The last 10 000 at most, oldest first. Times are nanoseconds of one
            clock for all ranks of the session.
        collectives: The last ones, oldest first.
    """

    worker: int
    node: str
    pid: int
    commands: tuple[CommandRecord, ...] = field(repr=False)
    collectives: tuple[CollectiveRecord, ...] = field(repr=False)

    @classmethod
    def of(cls, report: RankReport) -> RankFlight:
        """Reads the memory that came with a report.

        Raises:
            ValueError: It is no memory of a flight recorder, or of another version.
        """
        record = FlightRecord()
        if report.flight:
            try:
                raw = zlib.decompressobj().decompress(report.flight, RING_BYTES)
            except zlib.error as error:
                msg = f"the records of rank {report.worker} came damaged: {error}"
                raise ValueError(msg) from None
            record = read_flight(raw, report.emptied)
        shift = report.clock_offset_ns
        commands, collectives = record.commands, record.collectives
        if shift:
            commands = tuple(
                c._replace(start_ns=c.start_ns + shift, end_ns=c.end_ns and c.end_ns + shift)
                for c in commands
            )
            collectives = tuple(
                c._replace(
                    entered_ns=c.entered_ns + shift,
                    met_ns=c.met_ns and c.met_ns + shift,
                    left_ns=c.left_ns and c.left_ns + shift,
                )
                for c in collectives
            )
        return cls(report.worker, report.node, report.pid, commands, collectives)


@dataclass(frozen=True)
class Flight:
    """What the ranks of a session did last.

    Attributes:
        session: The session's name.
        ranks: Those that are known of, in order.
    """

    session: str
    ranks: tuple[RankFlight, ...]

    @classmethod
    def of(cls, found: Inspection) -> Flight:
        """Reads what a transport has fetched.

        Raises:
            ValueError: Something in it is no memory of a flight recorder.
        """
        return cls(found.name, tuple(map(RankFlight.of, found.ranks)))

    def chrome_trace(self) -> dict[str, Any]:
        """The records in Chrome's trace format, which Perfetto reads too.

        There is one process for each node and one row for each rank: its commands,
        and inside them its collectives, with the wait for the other ranks apart.
        """
        times = [c.start_ns for rank in self.ranks for c in rank.commands]
        ends = [c.end_ns for rank in self.ranks for c in rank.commands]
        first, last = min(times, default=0), max((*times, *ends), default=0)
        nodes = list(dict.fromkeys(rank.node for rank in self.ranks))
        events: list[dict[str, Any]] = []
        for number, node in enumerate(nodes):
            events.append(_name("process_name", number, 0, f"node {node}"))
        for rank in self.ranks:
            process = nodes.index(rank.node)
            events.append(_name("thread_name", process, rank.worker, f"rank {rank.worker}"))
            where = {"pid": process, "tid": rank.worker}
            events += (each | where for each in _command_events(rank, first, last))
            events += (each | where for each in _collective_events(rank, first, last))
        return {
            "traceEvents": events,
            "displayTimeUnit": "ms",
            "otherData": {"session": self.session, "first_ns": first},
        }

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes :meth:`chrome_trace` as JSON, for ui.perfetto.dev or chrome://tracing.

        Raises:
            OSError: The file cannot be written.
        """
        import json

        Path(path).write_text(json.dumps(self.chrome_trace()))


def _name(what: str, process: int, thread: int, name: str) -> dict[str, Any]:
    return {"name": what, "ph": "M", "pid": process, "tid": thread, "args": {"name": name}}


def _event(name: str, category: str, span: tuple[float, float], **args: Any) -> dict[str, Any]:
    start, end = span
    return {
        "name": name,
        "cat": category,
        "ph": "X",
        "ts": start * _US,
        "dur": max(end - start, 0) * _US,
        "args": args,
    }


def _command_events(rank: RankFlight, first: int, last: int) -> Iterator[dict[str, Any]]:
    place = 0
    previous = (-1, -1)
    for command in rank.commands:
        key = command.start_ns, command.group
        place = place + 1 if key == previous and command.group > 1 else 0
        previous = key
        start, end = command.start_ns - first, (command.end_ns or last) - first
        # What was timed together is shown one after the other, in equal parts.
        part = (end - start) / command.group
        span = start + place * part, start + (place + 1) * part
        args: dict[str, Any] = {"command": command.seq}
        if command.group > 1:
            args["timed_together"] = command.group
        marks = {
            "running": not command.end_ns,
            "failed": command.failed,
            "skipped": command.skipped,
            "for_another_worker": command.elsewhere,
        }
        args |= {name: True for name, holds in marks.items() if holds}
        yield _event(what_is_done(command.action, command.name), "command", span, **args)


def _collective_events(rank: RankFlight, first: int, last: int) -> Iterator[dict[str, Any]]:
    ends = {command.seq: command.end_ns or last for command in rank.commands}
    for each in rank.collectives:
        if each.seq not in ends:
            continue  # its command is not there any more
        entered, left = each.entered_ns - first, (each.left_ns or ends[each.seq]) - first
        args = {
            "command": each.seq,
            "number": each.number,
            "dtype": each.dtype,
            "shape": list(each.shape),
            "bytes": each.nbytes,
            "workers": list(each.members),
        }
        yield _event(each.name, "collective", (entered, left), **args)
        if each.met_ns:
            yield _event("wait for the others", "wait", (entered, each.met_ns - first))
