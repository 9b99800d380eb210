"""What is found out about the ranks of a session from outside, and how it travels."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import TypeAlias

from disco_client.pb import controller_pb2
from disco_client.wire.clocks import NO_DIFFERENCE, ClockSample, clock_offset
from disco_client.wire.codec import Action
from disco_client.wire.flight import CollectiveRecord, CommandRecord, FlightRecord
from disco_client.wire.flight_cuts import Since

__all__ = [
    "ACTION_NAMES",
    "CollectiveReport",
    "CommandReport",
    "EncodedRankReport",
    "Inspection",
    "NodeSilence",
    "RankReport",
    "RankState",
    "decode_followed",
    "decode_inspection",
    "decode_report",
    "encode_followed",
    "encode_report",
    "encode_silence",
    "report_of",
    "what_is_done",
]

EncodedRankReport: TypeAlias = controller_pb2.RankReport

_NS = 1e9
ACTION_NAMES: dict[int, str] = {
    Action.GET_GLOBAL_FUNC: "get_global_func",
    Action.SYNC_WORKER: "sync_worker",
    Action.COPY_FROM_WORKER0: "copy_from_worker_0",
    Action.COPY_TO_WORKER0: "copy_to_worker_0",
    Action.DEBUG_GET_FROM_REMOTE: "debug_get_from_remote",
    Action.DEBUG_SET_REGISTER: "debug_copy_from",
    Action.DEFINE_PROGRAM: "capture",
    Action.RUN_PROGRAM: "run_program",
}
"""What the client's methods are called by which a person asks for an action."""

_PLAIN = {
    **ACTION_NAMES,
    Action.SHUT_DOWN: "shutdown",
    Action.KILL_REG: "release of references",
    Action.CALL_PACKED: "call",
}
_NAMED: dict[int, str] = {
    Action.CALL_PACKED: "{}",
    Action.GET_GLOBAL_FUNC: "get_global_func({!r})",
    Action.RUN_PROGRAM: "program {!r}",
}
_KNOWN = frozenset(int(action) for action in Action)


class RankState(StrEnum):
    """What the system says of a rank's process."""

    RUNNING = "running"
    STOPPED = "stopped"
    UNINTERRUPTIBLE = "uninterruptible"
    ENDED = "ended"


@dataclass(frozen=True, slots=True)
class CommandReport:
    """A command that a rank runs, or has run.

    Attributes:
        seq: Its number.
        action: Its DiscoAction.
        name: The function or program that it calls; empty where it has no name.
        seconds: For how long it has run, or how long ago it ended.
        failed: It reported a failure.
    """

    seq: int
    action: int
    name: str
    seconds: float
    failed: bool = False

    @property
    def what(self) -> str:
        """What it does, in words: "load_batch", "program 'decode'", "copy_to_worker_0"."""
        return what_is_done(self.action, self.name)


def what_is_done(action: int, name: str) -> str:
    """A command in words; see :attr:`CommandReport.what`."""
    if name and action in _NAMED:
        return _NAMED[action].format(name)
    return _PLAIN[Action(action)] if action in _KNOWN else f"action {action}"


@dataclass(frozen=True, slots=True)
class CollectiveReport:
    """A collective that a rank is in.

    Attributes:
        number: The how-manieth of its circle this is, from 1.
        seq: The command in which it happens.
        nth: Which collective of its circle in that command, from 0.
        name: The operation: "allreduce(sum)".
        dtype: The name of the dtype; empty for none.
        shape: Of this rank's array.
        nbytes: Of this rank's array.
        members: The workers that take part.
        seconds: How long ago the rank entered it.
        met: Whether all have come, and data moves.
    """

    number: int
    seq: int
    nth: int
    name: str
    dtype: str
    shape: tuple[int, ...]
    nbytes: int
    members: tuple[int, ...]
    seconds: float
    met: bool

    @property
    def key(self) -> tuple[object, ...]:
        """The same on every rank that is in this collective."""
        return self.members, self.seq, self.nth

    @property
    def text(self) -> str:
        """What and which it is: "allreduce(sum) #7 float32[1024]"."""
        of = f" {self.dtype}{list(self.shape)}" if self.dtype else ""
        return f"{self.name} #{self.number}{of}"


@dataclass(frozen=True, slots=True)
class RankReport:
    """What one rank does.

    Attributes:
        worker: Which.
        node: Where.
        pid: Its process.
        state: What the system says of that.
        current: The command that runs, if one does.
        finished: The last one that ended.
        collective: The collective that it is in, if it is in one.
        stack: Its Python stacks as faulthandler writes them, or empty.
        note: Why there is no stack.
        flight: A compressed copy of its flight recorder's memory, where it was asked for.
        emptied: What to read that with; see ``wire.flight``.
        clock_offset_ns: What to add to its times for those of the controller.
        memory_bytes: How much of its process is in memory; 0 where that is not known.
        collectives: How many it has entered.
        collective_bytes: The bytes of its arrays in them.
        clock_error_ns: By how much that may be wrong.
        clock_at_ns: When that was found, by the rank's clock.
    """

    worker: int
    node: str
    pid: int
    state: RankState = RankState.RUNNING
    current: CommandReport | None = None
    finished: CommandReport | None = None
    collective: CollectiveReport | None = None
    stack: str = ""
    note: str = ""
    flight: bytes = b""
    emptied: int = 0
    clock_offset_ns: int = 0
    memory_bytes: int = 0
    collectives: int = 0
    collective_bytes: int = 0
    clock_error_ns: int = 0
    clock_at_ns: int = 0

    @property
    def clock(self) -> ClockSample:
        """How the rank's clock differs from the controller's."""
        return ClockSample(self.clock_at_ns, self.clock_offset_ns, self.clock_error_ns)


@dataclass(frozen=True, slots=True)
class NodeSilence:
    """A node that did not answer.

    Attributes:
        node: Which.
        workers: The ranks on it.
        seconds: For how long nothing was heard of it; 0 where it is not connected.
    """

    node: str
    workers: tuple[int, ...]
    seconds: float


@dataclass(frozen=True, slots=True)
class Inspection:
    """All that was found out about a session.

    Attributes:
        session: Its id.
        name: Its name.
        num_workers: How many ranks it has.
        ranks: Those that are known of, in order.
        silent: The nodes that did not answer.
        clock: How the clock of whoever asked differs from the controller's.
    """

    session: int
    name: str
    num_workers: int
    ranks: tuple[RankReport, ...]
    silent: tuple[NodeSilence, ...] = ()
    clock: ClockSample = NO_DIFFERENCE


def report_of(
    record: FlightRecord, now_ns: int
) -> tuple[CommandReport | None, CommandReport | None, CollectiveReport | None]:
    """What a flight record says of this moment: current and last command, collective.

    Args:
        record: Of one rank.
        now_ns: The time, by the clock of the record.
    """
    current, finished, collective = record.current, record.finished, record.collective
    return (
        None if current is None else _command(current, now_ns - current.start_ns),
        None if finished is None else _command(finished, now_ns - finished.end_ns),
        None if collective is None else _collective(collective, now_ns),
    )


def _command(record: CommandRecord, age_ns: int) -> CommandReport:
    return CommandReport(
        record.seq, record.action, record.name, max(age_ns, 0) / _NS, record.failed
    )


def _collective(record: CollectiveRecord, now_ns: int) -> CollectiveReport:
    return CollectiveReport(
        record.number,
        record.seq,
        record.nth,
        record.name,
        record.dtype,
        record.shape,
        record.nbytes,
        record.members,
        max(now_ns - record.entered_ns, 0) / _NS,
        record.met_ns != 0,
    )


# As messages ------------------------------------------------------------------------------


def encode_report(report: RankReport) -> EncodedRankReport:
    """Writes a report as a message."""
    out = EncodedRankReport(
        worker=report.worker,
        node=report.node,
        pid=report.pid,
        state=report.state.value,
        stack=report.stack,
        note=report.note,
        flight=report.flight,
        emptied=report.emptied,
        clock_offset_ns=report.clock_offset_ns,
        memory_bytes=report.memory_bytes,
        collectives=report.collectives,
        collective_bytes=report.collective_bytes,
        clock_error_ns=report.clock_error_ns,
        clock_at_ns=report.clock_at_ns,
    )
    for given, message in ((report.current, out.current), (report.finished, out.finished)):
        if given is not None:
            message.seq, message.action, message.name = given.seq, given.action, given.name
            message.seconds, message.failed = given.seconds, given.failed
    found = report.collective
    if found is not None:
        out.collective.CopyFrom(
            controller_pb2.CollectiveReport(
                number=found.number,
                seq=found.seq,
                nth=found.nth,
                name=found.name,
                dtype=found.dtype,
                shape=found.shape,
                nbytes=found.nbytes,
                members=found.members,
                seconds=found.seconds,
                met=found.met,
            )
        )
    return out


def encode_silence(silence: NodeSilence) -> controller_pb2.NodeSilence:
    """Writes a silence as a message."""
    return controller_pb2.NodeSilence(
        node=silence.node, workers=silence.workers, seconds=silence.seconds
    )


def encode_followed(since: Iterable[Since]) -> list[controller_pb2.Followed]:
    """Writes how far ranks were followed as messages."""
    return [
        controller_pb2.Followed(
            worker=each.worker, pid=each.pid, seq=each.seq, collectives=each.collectives
        )
        for each in since
    ]


def decode_followed(messages: Iterable[controller_pb2.Followed]) -> list[Since]:
    """Reads the same."""
    return [Since(m.worker, m.pid, m.seq, m.collectives) for m in messages]


def decode_inspection(
    result: controller_pb2.InspectResult, asked_ns: int = 0, heard_ns: int = 0
) -> Inspection:
    """Reads what a controller answers.

    Args:
        result: The answer.
        asked_ns: When the question left, by the clock of whoever asked.
        heard_ns: When the answer came, by the same.
    """
    silent = (NodeSilence(s.node, tuple(s.workers), s.seconds) for s in result.silent)
    offset, error = clock_offset(asked_ns, result.received_ns, result.sent_ns, heard_ns)
    return Inspection(
        result.session,
        result.name,
        result.num_workers,
        tuple(sorted(map(decode_report, result.ranks), key=lambda report: report.worker)),
        tuple(silent),
        ClockSample(heard_ns, -offset, error),
    )


def decode_report(raw: EncodedRankReport) -> RankReport:
    """Reads a report."""
    collective = None
    if raw.HasField("collective"):
        c = raw.collective
        shape, members = tuple(c.shape), tuple(c.members)
        collective = CollectiveReport(
            c.number, c.seq, c.nth, c.name, c.dtype, shape, c.nbytes, members, c.seconds, c.met
        )
    known: Iterable[str] = [state.value for state in RankState]
    return RankReport(
        raw.worker,
        raw.node,
        raw.pid,
        RankState(raw.state) if raw.state in known else RankState.RUNNING,
        _decode_command(raw.current) if raw.HasField("current") else None,
        _decode_command(raw.finished) if raw.HasField("finished") else None,
        collective,
        raw.stack,
        raw.note,
        raw.flight,
        raw.emptied,
        raw.clock_offset_ns,
        raw.memory_bytes,
        raw.collectives,
        raw.collective_bytes,
        raw.clock_error_ns,
        raw.clock_at_ns,
    )


def _decode_command(raw: controller_pb2.CommandReport) -> CommandReport:
    return CommandReport(raw.seq, raw.action, raw.name, raw.seconds, raw.failed)
