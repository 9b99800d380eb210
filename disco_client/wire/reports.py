"""Reports about the ranks of a session, made from outside, and their messages."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import TypeAlias

from disco_client.pb import controller_pb2
from disco_client.tracing.clocks import NO_DIFFERENCE, ClockSample, clock_offset
from disco_client.tracing.ring import CollectiveRecord, CommandRecord, FlightRecord
from disco_client.wire.codec import Action

__all__ = [
    "ACTION_NAMES",
    "MOST_SOURCES",
    "CollectiveReport",
    "CommandReport",
    "EncodedHoldings",
    "EncodedHoldingsRequest",
    "EncodedRankReport",
    "EnteredReport",
    "Inspection",
    "NodeSilence",
    "RankReport",
    "RankState",
    "WholeTensor",
    "decode_inspection",
    "decode_report",
    "report_of",
    "what_is_done",
]


EncodedRankReport: TypeAlias = controller_pb2.RankReport

EncodedHoldings: TypeAlias = controller_pb2.Holdings

EncodedHoldingsRequest: TypeAlias = controller_pb2.HoldingsRequest

WholeTensor: TypeAlias = controller_pb2.WholeTensor

MOST_SOURCES = 16
"""Of how many values that a step of a program reads a rank says where they come from."""

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
"""The names of the client's methods that request an action."""

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
    """The state of a rank's process, as the system reports it."""

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
        number: Which collective of its group this is, from 1.
        seq: The command in which it happens.
        nth: Which collective of its group in that command, from 0.
        name: The operation: "allreduce(sum)".
        dtype: The name of the dtype; empty for none.
        shape: Of this rank's array.
        nbytes: Of this rank's array.
        members: The workers that take part.
        seconds: How long ago the rank entered it.
        met: Whether all have entered it, and data moves.
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
class EnteredReport:
    """A collective that a rank has entered, and left.

    Attributes:
        members: The workers that take part.
        seq: The command in which it happened.
        nth: Which collective of its group in that command, from 0.
        name: The operation.
    """

    members: tuple[int, ...]
    seq: int
    nth: int
    name: str


@dataclass(frozen=True, slots=True)
class FlightCopy:
    """A copy of the memory of a rank's flight recorder, or none.

    Attributes:
        raw: It, compressed.
        emptied: Needed to read that; see ``tracing.ring``.
        clock: How the rank's clock differs from the controller's.
    """

    raw: bytes = b""
    emptied: int = 0
    clock: ClockSample = NO_DIFFERENCE


@dataclass(frozen=True, slots=True)
class RankReport:
    """What one rank does.

    Attributes:
        worker: Which.
        node: Where.
        pid: Its process.
        state: The state of that process.
        current: The command that runs, if one does.
        finished: The last one that ended.
        collective: The collective that it is in, if it is in one.
        stack: Its Python stacks as faulthandler writes them, or empty.
        note: Why there is no stack.
        flight: What its flight recorder holds, where that was requested.
        memory_bytes: How much of its process is in memory; 0 where that is not known.
        collectives: How many it has entered.
        collective_bytes: The bytes of its arrays in them.
        entered: The last collective that it entered of each group of workers, but for
            the one that it is in.
        holdings: Its programs and published tensors, where they were requested and it answered.
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
    flight: FlightCopy = FlightCopy()
    memory_bytes: int = 0
    collectives: int = 0
    collective_bytes: int = 0
    entered: tuple[EnteredReport, ...] = ()
    holdings: EncodedHoldings | None = None


@dataclass(frozen=True, slots=True)
class NodeSilence:
    """A node that did not answer.

    Attributes:
        node: Which.
        workers: The ranks on it.
        seconds: For how long nothing was received from it; 0 where it is not connected.
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
        clock: How the clock of the asking client differs from the controller's.
    """

    session: int
    name: str
    num_workers: int
    ranks: tuple[RankReport, ...]
    silent: tuple[NodeSilence, ...] = ()
    clock: ClockSample = NO_DIFFERENCE


def report_of(record: FlightRecord, now_ns: int) -> EncodedRankReport:
    """What a flight record says of this moment: current and last command, collectives.

    Args:
        record: Of one rank.
        now_ns: The time, by the clock of the record.

    Raises:
        ValueError: The record has numbers that no rank writes.
    """
    current, finished, collective = record.current, record.finished, record.collective
    return EncodedRankReport(
        state=RankState.RUNNING,
        current=None if current is None else _command(current, now_ns - current.start_ns),
        finished=None if finished is None else _command(finished, now_ns - finished.end_ns),
        collective=None if collective is None else _collective(collective, now_ns),
        entered=(
            controller_pb2.EnteredReport(
                members=each.members, seq=each.seq, nth=each.nth, name=each.name
            )
            for each in record.collectives
            if each is not collective and each.members
        ),
    )


def _command(record: CommandRecord, age_ns: int) -> controller_pb2.CommandReport:
    return controller_pb2.CommandReport(
        seq=record.seq,
        action=record.action,
        name=record.name,
        seconds=max(age_ns, 0) / _NS,
        failed=record.failed,
    )


def _collective(record: CollectiveRecord, now_ns: int) -> controller_pb2.CollectiveReport:
    return controller_pb2.CollectiveReport(
        number=record.number,
        seq=record.seq,
        nth=record.nth,
        name=record.name,
        dtype=record.dtype,
        shape=record.shape,
        nbytes=record.nbytes,
        members=record.members,
        seconds=max(now_ns - record.entered_ns, 0) / _NS,
        met=record.met_ns != 0,
    )


def decode_inspection(
    result: controller_pb2.InspectResult, asked_ns: int = 0, heard_ns: int = 0
) -> Inspection:
    """Reads what a controller answers.

    Args:
        result: The answer.
        asked_ns: When the request was sent, by the client's clock.
        heard_ns: When the answer arrived, by the same.
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
    clock = ClockSample(raw.clock_at_ns, raw.clock_offset_ns, raw.clock_error_ns)
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
        FlightCopy(raw.flight, raw.emptied, clock),
        raw.memory_bytes,
        raw.collectives,
        raw.collective_bytes,
        tuple(EnteredReport(tuple(e.members), e.seq, e.nth, e.name) for e in raw.entered),
        raw.holdings if raw.HasField("holdings") else None,
    )


def _decode_command(raw: controller_pb2.CommandReport) -> CommandReport:
    return CommandReport(raw.seq, raw.action, raw.name, raw.seconds, raw.failed)
