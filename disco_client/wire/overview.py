"""What a cluster does at one moment, and how that travels.

The controller makes it, `disco top` and the controller's own page show it.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from disco_client.pb import controller_pb2
from disco_client.wire.inspection import (
    CollectiveReport,
    CommandReport,
    RankReport,
    RankState,
    decode_report,
    encode_report,
)

__all__ = [
    "EncodedOverview",
    "NodeView",
    "Overview",
    "RankView",
    "SessionView",
    "decode_overview",
    "encode_overview",
]

EncodedOverview = controller_pb2.OverviewResult


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
        latency_s: How long a question and its answer were under way; None where it did
            not answer.
    """

    name: str
    state: str
    slots: int
    used: int
    devices: tuple[str, ...]
    version: str
    age_s: float
    latency_s: float | None = None


@dataclass(frozen=True, slots=True)
class RankView:
    """A rank of a session.

    Attributes:
        worker, node, pid, device: Which, and where.
        state: What the system says of its process: ``running``, ``stopped``,
            ``uninterruptible`` or ``ended``; ``unknown`` where its node did not answer, and
            then all that follows is empty.
        executed: The newest command that it has executed.
        current: The command that it executes, if it does.
        collective: The collective that it is in, if it is in one.
        memory_bytes: How much of its process is in memory; 0 where that is not known.
        collectives, collective_bytes: How many collectives it entered, and the bytes of its
            arrays in them.
        commands_per_s, collective_bytes_per_s: Lately; None where nobody asked lately.
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
        found = asdict(self)
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
    """A session; of those of others some things are left out.

    Attributes:
        session: Its id.
        name: Its name.
        owner: Who made it, for people.
        state: ``queued``, ``starting``, ``running``, ``returning``, ``detached`` or ``ending``.
        num_workers: How many ranks it has.
        attached: Whether a client is connected to it.
        age_s: Seconds since it was asked for.
        lease_left_s: Where it waits for its client, for how much longer; else None.
        yours: Whether whoever asked may know the rest; otherwise `issued` and `executed` are
            0, and of the ranks at most their places are there.
        issued: The newest command that came to its nodes.
        executed: The newest command that all of its ranks have executed.
        ranks: Its ranks.
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

    @property
    def queued(self) -> int:
        """How many commands came to its nodes, and wait for a rank."""
        return max(self.issued - self.executed, 0)

    @property
    def nodes(self) -> tuple[str, ...]:
        """Where its ranks run."""
        return tuple(sorted({rank.node for rank in self.ranks}))

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
            **asdict(self),
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
        sessions: Those that are not gone.
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


# As messages ------------------------------------------------------------------------------


def encode_overview(view: Overview) -> EncodedOverview:
    """Writes an overview as a message."""
    return EncodedOverview(
        version=view.version,
        taken_s=view.taken_s,
        nodes=map(_encode_node, view.nodes),
        sessions=map(_encode_session, view.sessions),
    )


def _encode_node(node: NodeView) -> controller_pb2.NodeOverview:
    info = controller_pb2.NodeInfo(
        name=node.name,
        slots=node.slots,
        free_slots=node.slots - node.used,
        devices=node.devices,
        version=node.version,
        state=node.state,
        age_s=node.age_s,
    )
    return controller_pb2.NodeOverview(info=info, latency_s=node.latency_s)


def _encode_session(session: SessionView) -> controller_pb2.SessionOverview:
    places = (
        controller_pb2.RankInfo(worker=r.worker, node=r.node, pid=r.pid, device=r.device)
        for r in session.ranks
    )
    info = controller_pb2.SessionInfo(
        session=session.session,
        name=session.name,
        owner=session.owner,
        num_workers=session.num_workers,
        state=session.state,
        ranks=places,
        age_s=session.age_s,
        attached=session.attached,
        lease_left_s=session.lease_left_s,
    )
    return controller_pb2.SessionOverview(
        info=info,
        yours=session.yours,
        issued=session.issued,
        executed=session.executed,
        ranks=(_encode_rank(rank) for rank in session.ranks if rank.state != "unknown"),
    )


def _encode_rank(rank: RankView) -> controller_pb2.RankOverview:
    report = RankReport(
        rank.worker,
        rank.node,
        rank.pid,
        RankState(rank.state),
        rank.current,
        CommandReport(rank.executed, 0, "", 0.0) if rank.executed else None,
        rank.collective,
        memory_bytes=rank.memory_bytes,
        collectives=rank.collectives,
        collective_bytes=rank.collective_bytes,
    )
    return controller_pb2.RankOverview(
        report=encode_report(report),
        commands_per_s=rank.commands_per_s,
        collective_bytes_per_s=rank.collective_bytes_per_s,
    )


def decode_overview(raw: EncodedOverview) -> Overview:
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
