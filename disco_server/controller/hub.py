"""The controller's centre: carries out what the cluster decides.

Everything here runs in the event loop's thread; nothing blocks.
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import logging
import secrets
import time
from dataclasses import dataclass

from disco_client.pb import controller_pb2, node_pb2
from disco_client.version import __version__
from disco_client.wire.codec import Kind, envelope
from disco_server.channels.outbox import Outbox
from disco_server.controller.exchange import Exchanges
from disco_server.controller.inspections import Inspections
from disco_server.controller.logs import Logs
from disco_server.controller.overview import Overviews
from disco_server.controller.spans import OF_A_RANK, SessionSpans
from disco_server.controller.tally import Tally
from disco_server.controller.transfers import Transfers
from disco_server.core.access import EVERYBODY, Identity, Role
from disco_server.core.cluster import Cluster
from disco_server.core.effects import (
    DropNode,
    Effect,
    EndOnNode,
    Rejoined,
    SessionGone,
    StartOnNode,
    TellEnded,
    TellQueued,
    TellReady,
)
from disco_server.core.placement import Placer, place
from disco_server.core.session_limits import DEFAULT_LIMITS, SessionLimits
from disco_server.core.session_state import End, SessionTable
from disco_server.observe import audit
from disco_server.observe.logs import bind

__all__ = ["Hub", "NodeLink", "ended_message", "rank_infos", "session_info", "signed"]

_logger = logging.getLogger("disco.controller")


@dataclass(slots=True)
class NodeLink:
    """The live stream of one worker daemon."""

    name: str
    key: bytes
    outbox: Outbox


class Hub:
    """Sessions, nodes and their streams.

    Args:
        session_lease: Seconds that a session outlives its client's connection.
        node_lease: Seconds of silence after which a node counts as lost.
        heartbeat: Seconds between heartbeats.
        placer: Decides which ranks go where.
        min_slots: How many slots a node must offer to be let in.
        node_return: Seconds in which a node whose connection broke may come back.
        limits: How many sessions there may be.
        expect_nodes: How many nodes there will ever be; 0 if nobody knows.

    Attributes:
        settled_at: From then on nobody tells any more of sessions of an earlier controller.
        overviews: Says what the cluster does at a moment.
        logs: What ranks printed.
        tally: What is counted for its metrics.
    """

    def __init__(
        self,
        session_lease: float,
        node_lease: float,
        heartbeat: float,
        *,
        placer: Placer = place,
        min_slots: int = 1,
        node_return: float = 2.0,
        limits: SessionLimits = DEFAULT_LIMITS,
        expect_nodes: int = 0,
    ) -> None:
        self.cluster = Cluster(
            session_lease,
            node_lease,
            placer=placer,
            min_slots=min_slots,
            node_return=node_return,
            limits=limits,
            expect_nodes=expect_nodes,
        )
        self.settled_at = time.monotonic() + node_lease
        self.heartbeat = heartbeat
        self.tally = Tally()
        self.transfers = Transfers()
        self.exchanges = Exchanges()
        self.inspections = Inspections(self.cluster, self._post)
        self.overviews = Overviews(self.cluster, self.inspections)
        self.logs = Logs()
        self._spans = SessionSpans()
        self.links: dict[str, NodeLink] = {}
        self.clients: dict[int, Outbox] = {}
        self.routes: dict[int, tuple[Outbox, ...]] = {}
        self._beats = 0
        self._beat_at = 0.0
        self._empty = asyncio.Event()
        self._changed = asyncio.Event()

    # Effects ---------------------------------------------------------------------

    def apply(self, effects: list[Effect]) -> None:
        """Carries out effects in order."""
        for effect in effects:
            self._spans.see(effect)
            match effect:
                case StartOnNode(node, session):
                    self._start_on(node, session)
                case EndOnNode(node, session_id):
                    self._post(node, envelope(Kind.END_SESSION, session=session_id))
                case TellQueued(session, ahead):
                    self._tell(session.session, Kind.QUEUED, self.queued(ahead, session))
                case TellReady(session):
                    self.tell_ready(session)
                    self._log_ready(session)
                case TellEnded(session, end):
                    self._tell_ended(session, end)
                case DropNode(node, message):
                    self._drop(node, message)
                case Rejoined(session):
                    self._find_routes(session)
                case SessionGone(session_id):
                    self.routes.pop(session_id, None)
                    self.logs.end(session_id)
        if not self.cluster.sessions:
            self._empty.set()
        else:
            self._empty.clear()
        self._changed.set()

    async def wait_for_nodes(self, count: int) -> None:
        """Waits until this many nodes are here."""
        while len(self.cluster.members.nodes) < count:
            await self.change(None)

    async def change(self, seconds: float | None) -> None:
        """Waits until something has been decided, or for some seconds."""
        self._changed.clear()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._changed.wait(), seconds)

    def _post(self, node: str, raw: bytes) -> None:
        link = self.links.get(node)
        if link is not None:
            link.outbox.post(raw)

    def _tell(self, session: int, kind: Kind, message: controller_pb2.Queued) -> None:
        outbox = self.clients.get(session)
        if outbox is not None:
            outbox.post(envelope(kind, message.SerializeToString(), session=session))

    def _start_on(self, node: str, session: SessionTable) -> None:
        shares = session.shares
        start = node_pb2.StartRanks(
            session_name=session.name,
            num_workers=session.num_workers,
            num_groups=session.num_groups,
            ccl=session.ccl,
            transfer_key=session.transfer_key,
            owner=session.owner,
            principal=session.principal,
            lease_s=session.lease,
            nodes=[
                node_pb2.NodeRanks(
                    node=s.node,
                    workers=s.workers,
                    devices=s.devices,
                    slots=s.slots,
                    host_id=self.cluster.members.nodes[s.node].host_id,
                )
                for s in shares
            ],
            node_index=[share.node for share in shares].index(node),
            trace=session.trace,
        )
        if session.session not in self.routes:
            self._find_routes(session)
        self._post(
            node, envelope(Kind.START_RANKS, start.SerializeToString(), session=session.session)
        )

    def _find_routes(self, session: SessionTable) -> None:
        """Notes the streams of a session's nodes, of those that are here."""
        found = [self.links.get(share.node) for share in session.shares]
        self.routes[session.session] = tuple(link.outbox for link in found if link is not None)
        self.exchanges.open(session.session)

    def tell_ready(self, session: SessionTable) -> None:
        """Tells the client of a session where its ranks run."""
        ready = controller_pb2.SessionReady(
            session=session.session,
            name=session.name,
            ranks=[self._with_door(info) for info in rank_infos(session)],
            transfer_key=session.transfer_key,
            version=__version__,
            heartbeat_s=self.heartbeat,
            lease_s=session.lease,
            num_groups=session.num_groups,
            ccl=session.ccl,
        )
        outbox = self.clients.get(session.session)
        if outbox is not None:
            raw = envelope(Kind.READY, ready.SerializeToString(), session=session.session)
            outbox.post(raw)

    def _log_ready(self, session: SessionTable) -> None:
        nodes = ", ".join(sorted({rank[1] for rank in session.ranks.values()}))
        bind(_logger, session=session.name, **self._spans.ids(session)).info(
            "session runs: %d workers on %s for %s", session.num_workers, nodes, session.owner
        )

    def _with_door(self, info: controller_pb2.RankInfo) -> controller_pb2.RankInfo:
        """Adds where the rank's daemon takes arrays; for the owner of the session only."""
        node = self.cluster.members.nodes.get(info.node)
        info.array_address = node.array_address if node is not None else ""
        return info

    def _tell_ended(self, session: SessionTable, end: End) -> None:
        session_id = session.session
        self.exchanges.close(session_id, end.message)
        self.transfers.end_session(session_id)
        self.tally.ended[end.reason] += 1
        lost = {"rank": end.worker, "node": end.node} if end.reason in OF_A_RANK else {}
        bind(_logger, session=session.name, **lost, **self._spans.ids(session)).info(
            "session ends (%s): %s", end.reason.name.lower(), end.message
        )
        reason = end.reason.name.lower()
        audit.record("session ended", session=session.name, owner=session.owner, what=reason)
        outbox = self.clients.pop(session_id, None)
        if outbox is None:
            return
        ended = ended_message(end)
        ended.slots.CopyFrom(self.queued(0, session))
        outbox.post(envelope(Kind.ENDED, ended.SerializeToString(), session=session_id))
        outbox.close()

    def _drop(self, node: str, message: str) -> None:
        link = self.links.pop(node, None)
        if link is not None:
            _dismiss(link, message)
            self.transfers.break_off(node)
            bind(_logger, node=node).warning("node dropped: %s", message)

    # What the edge asks -------------------------------------------------------------

    def queued(self, ahead: int, session: SessionTable) -> controller_pb2.Queued:
        """The state of the slots, as the client of a session may know it."""
        members = self.cluster.members
        holders = [s for s in self.cluster.sessions.values() if s.shares]
        return controller_pb2.Queued(
            ahead=ahead,
            total_slots=members.total_slots,
            free_slots=members.free_slots,
            holders=[session_info(s, s.principal == session.principal) for s in holders],
        )

    def new_session(
        self, create: controller_pb2.CreateSession, who: Identity = EVERYBODY
    ) -> SessionTable:
        """Makes the record of a session that somebody asks for."""
        now = time.monotonic()
        session_id = 0
        while not session_id or session_id in self.cluster.sessions:
            session_id = secrets.randbits(63)
        return SessionTable(
            session=session_id,
            name=create.name or f"session-{session_id & 0xFFFFFF:06x}",
            owner=signed(create.owner, who),
            principal=who.principal,
            num_workers=create.num_workers,
            num_groups=create.num_groups,
            ccl=create.ccl,
            transfer_key=secrets.token_bytes(16),
            created=now,
            deadline=now + create.timeout_s,
        )

    def session_of(
        self, transfer: controller_pb2.Transfer, who: Identity = EVERYBODY
    ) -> SessionTable | None:
        """The running session that a transfer names, if its key is right and it is his who asks.

        An administrator needs no key.
        """
        session = self.cluster.sessions.get(transfer.session)
        if session is None or not session.alive:
            return None
        known = hmac.compare_digest(session.transfer_key, transfer.transfer_key)
        if who.role is Role.ADMIN or (known and who.may_carry(session.principal)):
            return session
        return None

    def node_of_worker(self, session: SessionTable, worker: int) -> str | None:
        """Where a worker of a session runs."""
        for share in session.shares:
            if worker in share.workers:
                return share.node
        return None

    def on_node(self, session_id: int, name: str) -> bool:
        """Whether a session has ranks on a node."""
        session = self.cluster.sessions.get(session_id)
        return session is not None and session.runs_on(name)

    def node_of_key(self, key: bytes) -> str | None:
        """The node that this registration's key belongs to."""
        for link in self.links.values():
            if hmac.compare_digest(link.key, key):
                return link.name
        return None

    def tick(self) -> None:
        """Lets time pass: waits and leases that are over end."""
        self.apply(self.cluster.tick(time.monotonic()))

    def beat(self) -> None:
        """Tells every peer that this loop turns, and who waits what for."""
        self.apply(self.cluster.tell_queue())
        self._beats += 1
        self._beat_at = time.monotonic()
        payload = controller_pb2.Heartbeat(count=self._beats).SerializeToString()
        raw = envelope(Kind.HEARTBEAT, payload)
        for outbox in (*self.clients.values(), *(link.outbox for link in self.links.values())):
            outbox.post(raw, droppable=True)

    def answered(self, payload: bytes) -> None:
        """Notes that a node has answered a heartbeat; answers to older ones are not timed."""
        if controller_pb2.Heartbeat.FromString(payload).count == self._beats:
            self.tally.node_round_trip.observe(time.monotonic() - self._beat_at)

    async def drain(self) -> None:
        """Ends every session and waits until nothing is left of them."""
        self.apply(self.cluster.drain())
        for link in self.links.values():
            link.outbox.post(envelope(Kind.DRAIN))
        await self._empty.wait()

    def dismiss(self, message: str) -> None:
        """Says goodbye to every node; they may come again, to whoever listens here then."""
        for link in self.links.values():
            _dismiss(link, message)


def _dismiss(link: NodeLink, message: str) -> None:
    refused = node_pb2.Refused(message=message)
    link.outbox.post(envelope(Kind.REFUSED, refused.SerializeToString()))
    link.outbox.close()


def ended_message(end: End) -> controller_pb2.SessionEnded:
    """What a client is told of the end of its session."""
    return controller_pb2.SessionEnded(
        reason=int(end.reason),  # type: ignore[arg-type]  (the numbers are the same)
        message=end.message,
        worker=end.worker,
        node=end.node,
        exit_status=end.exit_status,
        output=end.output,
    )


def rank_infos(session: SessionTable) -> list[controller_pb2.RankInfo]:
    """Where each rank of a session runs, in rank order."""
    return [
        controller_pb2.RankInfo(worker=worker, node=node, pid=pid, device=device)
        for worker, node, pid, device in sorted(session.ranks.values())
    ]


def signed(owner: str, who: Identity) -> str:
    """How lists name the client of a session: as he shows who he is, and as he says it."""
    return f"{who.name} ({owner[:200]})" if who.name else owner[:200]


def session_info(session: SessionTable, places: bool = True) -> controller_pb2.SessionInfo:
    """What lists say about a session; to some not where its ranks run."""
    now = time.monotonic()
    return controller_pb2.SessionInfo(
        session=session.session,
        name=session.name,
        owner=session.owner,
        num_workers=session.num_workers,
        state=session.state.value,
        ranks=rank_infos(session) if places else (),
        age_s=now - session.created,
        attached=session.attached,
        lease_left_s=session.lease_left(now),
    )
