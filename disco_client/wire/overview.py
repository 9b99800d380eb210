"""What a cluster does at one moment, and how that travels.

The controller makes it, `disco top` and the controller's own page show it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from typing import Any

from disco_client.pb import controller_pb2
from disco_client.text import many, name_workers, natural
from disco_client.wire.reports import CollectiveReport, CommandReport, decode_report

__all__ = [
    "GpuView",
    "LoadView",
    "NodeView",
    "Overview",
    "RankView",
    "SessionView",
    "decode_overview",
    "describe_late",
    "describe_wait",
    "limit_name",
]


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


def describe_late(late: Iterable[int], grace: float) -> str:
    """Says which workers have not reacted to an interrupt within so many seconds, and what then."""
    return (
        f"{name_workers(late)} did not react within {grace:g} s: the command ends when the library"
        " returns that it is in; `disco stack` shows where, `disco interrupt --force` ends the"
        " process"
    )


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
