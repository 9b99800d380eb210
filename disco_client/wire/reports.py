"""Reports about the ranks of a session, made from outside, and their messages."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from typing import Any, TypeAlias

from disco_client.pb import controller_pb2
from disco_client.text import many, natural
from disco_client.tracing.ring import (
    NO_DIFFERENCE,
    ClockSample,
    CollectiveRecord,
    CommandRecord,
    FlightRecord,
    clock_offset,
)
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
    "GpuView",
    "Inspection",
    "LoadView",
    "NodeSilence",
    "NodeView",
    "Overview",
    "RankReport",
    "RankState",
    "RankView",
    "SessionView",
    "WholeTensor",
    "decode_inspection",
    "decode_overview",
    "decode_report",
    "describe_wait",
    "limit_name",
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
        flight: A compressed copy of its flight recorder's memory, where it was requested.
        emptied: Needed to read that; see ``tracing.ring``.
        clock_offset_ns: What to add to its times for those of the controller.
        memory_bytes: How much of its process is in memory; 0 where that is not known.
        collectives: How many it has entered.
        collective_bytes: The bytes of its arrays in them.
        clock_error_ns: By how much that may be wrong.
        clock_at_ns: When that was found, by the rank's clock.
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
    flight: bytes = b""
    emptied: int = 0
    clock_offset_ns: int = 0
    memory_bytes: int = 0
    collectives: int = 0
    collective_bytes: int = 0
    clock_error_ns: int = 0
    clock_at_ns: int = 0
    entered: tuple[EnteredReport, ...] = ()
    holdings: EncodedHoldings | None = None

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
        tuple(EnteredReport(tuple(e.members), e.seq, e.nth, e.name) for e in raw.entered),
        raw.holdings if raw.HasField("holdings") else None,
    )


def _decode_command(raw: controller_pb2.CommandReport) -> CommandReport:
    return CommandReport(raw.seq, raw.action, raw.name, raw.seconds, raw.failed)


# What a cluster does at one moment, and how that travels.
#
# The controller makes it, `disco top` and the controller's own page show it.


@dataclass(frozen=True, slots=True)
class GpuView:
    """What one GPU of a machine does.

    Attributes:
        busy, memory: For which share of the time it computes, and how much of its memory is
            used, from 0 to 1.
        memory_bytes: How much memory it has.
    """

    busy: float
    memory: float
    memory_bytes: int


@dataclass(frozen=True, slots=True)
class LoadView:
    """What the machine of a worker daemon does, of the last ten seconds.

    Attributes:
        cpu, memory: Which share of its cores works, and of its memory is used, from 0 to 1.
        cores, memory_bytes: How much of both it has.
        received_per_s, sent_per_s: Bytes in a second, over all its networks but the loopback.
        gpus: What its GPUs do.
    """

    cpu: float
    memory: float
    cores: int
    memory_bytes: int
    received_per_s: float
    sent_per_s: float
    gpus: tuple[GpuView, ...] = ()


@dataclass(frozen=True, slots=True)
class NodeView:
    """A worker daemon.

    Attributes:
        name: Which.
        state: ``ready``, ``draining``, or ``away`` while its connection is broken.
        slots, used: How many slots it has, and how many of them sessions hold.
        devices: The device of each slot.
        version: Its release.
        age_s: For how long it has been here, in seconds.
        latency_s: The round-trip time of a request; None where it did not answer.
        carrier: What carries its stream: ``frames`` or ``grpc``.
        drained: Who drained it and why, where an administrator did.
        load: What its machine does; None before the first sample.
    """

    name: str
    state: str
    slots: int
    used: int
    devices: tuple[str, ...]
    version: str
    age_s: float
    latency_s: float | None = None
    carrier: str = ""
    drained: str = ""
    load: LoadView | None = None


@dataclass(frozen=True, slots=True)
class RankView:
    """A rank of a session.

    Attributes:
        worker, node, pid, device: Which, and where.
        state: The state of its process: ``running``, ``stopped``,
            ``uninterruptible`` or ``ended``; ``unknown`` where its node did not answer, and
            then all that follows is empty.
        executed: The newest command that it has executed.
        current: The command that it executes, if it does.
        collective: The collective that it is in, if it is in one.
        memory_bytes: How much of its process is in memory; 0 where that is not known.
        collectives, collective_bytes: How many collectives it entered, and the bytes of its
            arrays in them.
        commands_per_s, collective_bytes_per_s: Lately; None without a recent request.
    """

    worker: int
    node: str
    pid: int
    device: str
    state: str = "unknown"
    executed: int = 0
    current: CommandReport | None = None
    collective: CollectiveReport | None = None
    memory_bytes: int = 0
    collectives: int = 0
    collective_bytes: int = 0
    commands_per_s: float | None = None
    collective_bytes_per_s: float | None = None

    def as_dict(self) -> dict[str, Any]:
        """The same for programs: values that JSON has."""
        found = asdict(replace(self, current=None, collective=None))
        current, collective = self.current, self.collective
        found["current"] = current and {
            "seq": current.seq,
            "what": current.what,
            "seconds": current.seconds,
        }
        found["collective"] = collective and {
            "what": collective.text,
            "seq": collective.seq,
            "nbytes": collective.nbytes,
            "members": list(collective.members),
            "seconds": collective.seconds,
            "met": collective.met,
        }
        return found


@dataclass(frozen=True, slots=True)
class SessionView:
    """A session; for those of other owners some things are left out.

    Attributes:
        session: Its id.
        name: Its name.
        owner: Its owner, for people.
        state: ``queued``, ``starting``, ``running``, ``returning``, ``detached`` or ``ending``;
            of one that is over ``ended``, or ``failed`` if that was not intended.
        num_workers: How many ranks it has.
        attached: Whether a client is connected to it.
        age_s: Seconds since it was requested.
        lease_left_s: Where it waits for its client, for how much longer; else None.
        yours: Whether the asking client may see the rest; otherwise `issued` and `executed`
            are 0, and of the ranks at most their places are there.
        issued: The newest command that arrived at its nodes.
        executed: The newest command that all of its ranks have executed.
        ranks: Its ranks.
        ended_s: Where it is over, for how many seconds; else None.
        end_reason: The family of the reason, as metrics name it: ``closed``, ``rank_lost``, ...;
            empty while there is none, or where it belongs to another owner.
        end_message: The reason in words, likewise.
        carrier: What carries the stream of its client, ``frames`` or ``grpc``; empty where none
            is connected.
        waits_for: Where it waits for slots: why it has none, in words.
        ends_in_s: Where a limit will end it soon, in how many seconds; else None.
        ends_by: Which limit: ``length`` or ``idle``; else empty.
    """

    session: int
    name: str
    owner: str
    state: str
    num_workers: int
    attached: bool
    age_s: float
    lease_left_s: float | None = None
    yours: bool = True
    issued: int = 0
    executed: int = 0
    ranks: tuple[RankView, ...] = ()
    ended_s: float | None = None
    end_reason: str = ""
    end_message: str = ""
    carrier: str = ""
    waits_for: str = ""
    ends_in_s: float | None = None
    ends_by: str = ""

    @property
    def queued(self) -> int:
        """How many commands arrived at its nodes, and wait for a rank."""
        return max(self.issued - self.executed, 0)

    @property
    def nodes(self) -> tuple[str, ...]:
        """Where its ranks run."""
        return tuple(sorted({rank.node for rank in self.ranks}, key=natural))

    @property
    def memory_bytes(self) -> int:
        """How much of the processes of all ranks is in memory."""
        return sum(rank.memory_bytes for rank in self.ranks)

    @property
    def commands_per_s(self) -> float | None:
        """Commands that each of its ranks executed in a second: the slowest of them."""
        rates = [r.commands_per_s for r in self.ranks if r.commands_per_s is not None]
        return min(rates, default=None)

    @property
    def collective_bytes_per_s(self) -> float | None:
        """Bytes of collectives in a second, of all ranks together."""
        rates = [r.collective_bytes_per_s for r in self.ranks]
        known = [rate for rate in rates if rate is not None]
        return sum(known) if known else None

    def as_dict(self) -> dict[str, Any]:
        """The same for programs: values that JSON has."""
        return {
            **asdict(replace(self, ranks=())),
            "session": f"{self.session:016x}",
            "nodes": list(self.nodes),
            "queued": self.queued,
            "memory_bytes": self.memory_bytes,
            "commands_per_s": self.commands_per_s,
            "collective_bytes_per_s": self.collective_bytes_per_s,
            "ranks": [rank.as_dict() for rank in self.ranks],
        }


@dataclass(frozen=True, slots=True)
class Overview:
    """A cluster at one moment.

    Attributes:
        version: The controller's release.
        taken_s: When nodes were asked, in seconds of a clock of the controller that never
            goes back; the same in two views of the same answers.
        nodes: The worker daemons.
        sessions: Those that have not ended, and if requested, those that ended lately.
    """

    version: str
    taken_s: float
    nodes: tuple[NodeView, ...] = ()
    sessions: tuple[SessionView, ...] = ()

    def as_dict(self) -> dict[str, Any]:
        """The same for programs: values that JSON has."""
        return {
            "version": self.version,
            "taken_s": self.taken_s,
            "nodes": [asdict(node) for node in self.nodes],
            "sessions": [session.as_dict() for session in self.sessions],
        }


def decode_overview(raw: controller_pb2.OverviewResult) -> Overview:
    """Reads what a controller answers."""
    return Overview(
        raw.version,
        raw.taken_s,
        tuple(map(_decode_node, raw.nodes)),
        tuple(map(_decode_session, raw.sessions)),
    )


def _decode_node(raw: controller_pb2.NodeOverview) -> NodeView:
    info = raw.info
    return NodeView(
        info.name,
        info.state,
        info.slots,
        info.slots - info.free_slots,
        tuple(info.devices),
        info.version,
        info.age_s,
        raw.latency_s if raw.HasField("latency_s") else None,
        info.carrier,
        info.drained,
        _decode_load(raw.load) if raw.HasField("load") else None,
    )


def _decode_load(raw: controller_pb2.HostSample) -> LoadView:
    return LoadView(
        raw.cpu,
        raw.memory,
        raw.cores,
        raw.memory_bytes,
        raw.received_per_s,
        raw.sent_per_s,
        tuple(GpuView(gpu.busy, gpu.memory, gpu.memory_bytes) for gpu in raw.gpus),
    )


def _decode_session(raw: controller_pb2.SessionOverview) -> SessionView:
    info = raw.info
    known = {rank.report.worker: rank for rank in raw.ranks}
    return SessionView(
        info.session,
        info.name,
        info.owner,
        info.state,
        info.num_workers,
        info.attached,
        info.age_s,
        info.lease_left_s if info.HasField("lease_left_s") else None,
        raw.yours,
        raw.issued,
        raw.executed,
        tuple(_decode_rank(place, known.get(place.worker)) for place in info.ranks),
        info.ended_s if info.HasField("ended_s") else None,
        info.end_reason,
        info.end_message,
        info.carrier,
        info.waits_for,
        info.ends_in_s if info.HasField("ends_in_s") else None,
        limit_name(info.ends_by) if info.HasField("ends_in_s") else "",
    )


def limit_name(reason: int) -> str:
    """What a limit is called that ends a session: ``length`` or ``idle``."""
    return "idle" if reason == controller_pb2.END_REASON_IDLE else "length"


def describe_wait(queued: controller_pb2.Queued) -> str:
    """What a session in the queue waits for, in words; empty where only slots are missing."""
    reason = controller_pb2.WaitReason
    ahead = f"{many(queued.ahead, 'session')} ahead" if queued.ahead else ""
    if queued.why == reason.WAIT_REASON_OWNER_SLOTS:
        if not queued.owner_limit:
            return "its owner holds as many slots as it may"
        held = f"its owner holds {queued.owner_slots} of the {queued.owner_limit} slots"
        return f"{held} that it may"
    if queued.why == reason.WAIT_REASON_HIGHER_CLASS:
        return f"{ahead}, of a higher priority than {queued.priority!r} too"
    return ahead


def _decode_rank(
    place: controller_pb2.RankInfo, raw: controller_pb2.RankOverview | None
) -> RankView:
    if raw is None:
        return RankView(place.worker, place.node, place.pid, place.device)
    report = decode_report(raw.report)
    return RankView(
        place.worker,
        place.node,
        place.pid,
        place.device,
        report.state.value,
        report.finished.seq if report.finished else 0,
        report.current,
        report.collective,
        report.memory_bytes,
        report.collectives,
        report.collective_bytes,
        raw.commands_per_s if raw.HasField("commands_per_s") else None,
        raw.collective_bytes_per_s if raw.HasField("collective_bytes_per_s") else None,
    )
