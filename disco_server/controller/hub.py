"""The controller's centre: carries out what the cluster decides.

Everything here runs in the event loop's thread; nothing blocks.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import hmac
import secrets
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from disco_client.clock import monotonic
from disco_client.output import logger_of
from disco_client.pb import controller_pb2, node_pb2
from disco_client.text import many, natural, some
from disco_client.transport.progress import Progress
from disco_client.version import __version__
from disco_client.wire.codec import EnvelopeKind, envelope
from disco_server.controller.asked_interrupts import AskedInterrupts
from disco_server.controller.client_outbox import ClientOutbox
from disco_server.controller.counters import ControllerCounters
from disco_server.controller.inspect import (
    Inspections,
    Overviews,
    add_rank_info,
    decode_load,
    fill_queued,
)
from disco_server.controller.logs import Logs
from disco_server.controller.relay import Exchanges, Transfers
from disco_server.controller.session_spans import OF_A_RANK, SessionSpans
from disco_server.controller.slices import in_slices
from disco_server.core.access import EVERYBODY, Identity, Role
from disco_server.core.cluster import (
    AskIfQuiet,
    Cluster,
    CordonNode,
    DropNode,
    Effect,
    EndOnNode,
    Rejoined,
    SessionGone,
    StartSession,
    TellDraining,
    TellEnded,
    TellExpiring,
    TellQueued,
    TellReady,
)
from disco_server.core.nodes import Placer, place
from disco_server.core.quotas import DEFAULT_LIMITS, SessionLimits
from disco_server.core.session_state import (
    End,
    EndReason,
    PassedOn,
    Priority,
    SessionState,
    SessionTable,
)
from disco_server.core.window import CommandWindow
from disco_server.ipc.shares import encode_share
from disco_server.observe import logs
from disco_server.observe.logs import bind

if TYPE_CHECKING:
    from disco_server.ipc.outbox import Outbox

__all__ = ["Hub", "NodeLink", "ended_message", "signed"]


_logger = logger_of("disco.controller")


@dataclass(slots=True)
class NodeLink:
    """The live stream of one worker daemon.

    Attributes:
        name: The node.
        outbox: What waits to be sent there.
        private: Whether nobody else can read that on its way.
    """

    name: str
    outbox: Outbox
    private: bool = True


class Hub:
    """Sessions, nodes and their streams.

    Args:
        session_lease: Seconds that a session outlives its client's connection.
        node_lease: Seconds of silence after which a node counts as lost.
        heartbeat: Seconds between heartbeats.
        placer: Decides which ranks go where.
        min_slots: How many slots a node must offer to be let in.
        node_return: Seconds in which a node whose connection broke may come back.
        limits: How many sessions there may be, and how large.
        expect_nodes: How many nodes there will ever be; 0 if unknown.
        clock: The time by which waits and silences are judged.

    Attributes:
        clock: The same.
        settled_at: When nodes no longer report sessions of an earlier controller.
        overviews: Says what the cluster does at a moment.
        logs: What ranks printed.
        counters: What is counted for its metrics.
        dashboard: The URL at which the dashboard is served; empty for none.
    """

    def __init__(  # noqa: PLR0913  (each of them by name)
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
        clock: Callable[[], float] = monotonic,
    ) -> None:
        self.clock = clock
        self.cluster = Cluster(
            session_lease,
            node_lease,
            placer=placer,
            min_slots=min_slots,
            node_return=node_return,
            limits=limits,
            expect_nodes=expect_nodes,
        )
        self.settled_at = clock() + node_lease
        self.heartbeat = heartbeat
        self.counters = ControllerCounters()
        self.dashboard = ""
        self.transfers = Transfers()
        self.exchanges = Exchanges(self._post)
        self.inspections = Inspections(self.cluster, self._post, clock)
        self.overviews = Overviews(self.cluster, self.inspections, clock)
        self.logs = Logs()
        self._unsaid: dict[tuple[int, int], tuple[str, int]] = {}
        self._spans = SessionSpans()
        self.links: dict[str, NodeLink] = {}
        self.clients: dict[int, ClientOutbox] = {}
        self.interrupts = AskedInterrupts(self.clients)
        self.routes: dict[int, dict[str, Outbox]] = {}
        self._openings: dict[int, Progress] = {}
        self._windows: dict[int, CommandWindow] = {}
        self._asking: set[asyncio.Task[None]] = set()
        # The number of the newest heartbeat, and when it was sent.
        self._beat = 0, 0.0
        self._empty = asyncio.Event()
        self._changed = asyncio.Event()

    # Effects ---------------------------------------------------------------------

    def apply(self, effects: list[Effect]) -> None:
        """Carries out effects in order."""
        slots = functools.cache(self._count_slots)  # once for all that wait or give up
        lost = functools.cache(lambda: self.cluster.held_by_lost(self.clock()))
        for effect in effects:
            self._spans.see(effect)
            match effect:
                case StartSession(session):
                    self._start(session)
                case EndOnNode(node, session_id):
                    self._post(
                        node,
                        envelope(EnvelopeKind.END_SESSION, session=session_id),
                        session=session_id,
                    )
                case TellQueued(session, place):
                    total, free = slots()
                    message = controller_pb2.Queued(
                        total_slots=total, free_slots=free, held_by_lost=lost()
                    )
                    fill_queued(message, session, place)
                    self._tell(session.session, EnvelopeKind.QUEUED, message)
                case TellEnded(session, end):
                    self._tell_ended(session, end, slots)
                case DropNode(node, message):
                    self._drop(node, message)
                case SessionGone(session_id):
                    self.routes.pop(session_id, None)
                    self._openings.pop(session_id, None)
                    self._windows.pop(session_id, None)
                    self.logs.end(session_id)
                case _:
                    self._apply_to_running(effect)
        if not self.cluster.sessions:
            self._empty.set()
        else:
            self._empty.clear()
        self._changed.set()

    def _apply_to_running(self, effect: Effect) -> None:
        """Carries out an effect on a session that goes on."""
        match effect:
            case TellReady(session):
                self.tell_ready(session)
                self._log_ready(session)
            case TellDraining() | CordonNode():
                self._tell_cordon(effect)
            case AskIfQuiet(session):
                self._ask_if_quiet(session)
            case TellExpiring():
                self._tell_expiring(effect)
            case Rejoined(session, node):
                self._find_route(session.session, node)
                self.exchanges.open(session.session)
                self._repeat_opening(session.session, node)
                if (client := self.clients.get(session.session)) is not None:
                    client.returned(node)
            case _:
                pass

    def _count_slots(self) -> tuple[int, int]:
        members = self.cluster.members
        return members.total_slots, members.free_slots

    async def wait_for_nodes(self, count: int) -> None:
        """Waits until this many nodes have registered."""
        while len(self.cluster.members.nodes) < count:
            await self.change(None)

    async def change(self, seconds: float | None) -> None:
        """Waits until something has been decided, or for some seconds."""
        self._changed.clear()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._changed.wait(), seconds)

    def _post(self, node: str, raw: bytes, *, session: int = 0) -> None:
        link = self.links.get(node)
        if link is not None:
            link.outbox.post(raw, session=session)

    def _tell(
        self,
        session: int,
        kind: EnvelopeKind,
        message: controller_pb2.Queued | controller_pb2.SessionExpiring,
    ) -> None:
        outbox = self.clients.get(session)
        if outbox is not None:
            outbox.post(envelope(kind, message.SerializeToString(), session=session))

    def _start(self, session: SessionTable) -> None:
        """Sends its nodes what they start, which is encoded once; only their places differ."""
        nodes = [share.node for share in session.shares]
        known = self.cluster.members.nodes
        session.window = min(self.cluster.limits.window, *(known[node].window for node in nodes))
        if session.passed_on.secrets and (end := self._cannot_bring_secrets(nodes)) is not None:
            self.apply(self.cluster.end(session.session, end))
            return
        start = self._start_message(session).SerializeToString()
        session.passed_on.secrets = {}  # its nodes have them, and no others ever start ranks of it
        for node in nodes:
            self._find_route(session.session, node)
        self.exchanges.open(session.session)
        messages = (
            (node, b"".join((start, node_pb2.StartRanks(node_index=at).SerializeToString())))
            for at, node in enumerate(nodes)
        )

        def send(message: tuple[str, bytes]) -> None:
            node, payload = message
            if session.state is SessionState.STARTING:  # it may have ended between two slices
                raw = envelope(EnvelopeKind.START_RANKS, payload, session=session.session)
                self._post(node, raw, session=session.session)

        in_slices(messages, send, len(start))

    def _cannot_bring_secrets(self, nodes: Iterable[str]) -> End | None:
        """Why a session cannot start on some nodes with secrets; None where it can."""
        for node in nodes:
            if (link := self.links.get(node)) is not None and not link.private:
                why = (
                    f"secrets are sent over TLS or on one machine only, and the connection of node"
                    f" {node!r} is neither; start the controller with --tls-cert and --tls-key"
                )
                return End(EndReason.REFUSED, why)
        return None

    def _start_message(self, session: SessionTable) -> node_pb2.StartRanks:
        return node_pb2.StartRanks(
            session_name=session.name,
            num_workers=session.num_workers,
            num_groups=session.num_groups,
            ccl=session.ccl,
            transfer_key=session.transfer_key,
            owner=session.owner,
            principal=session.principal,
            lease_s=session.lease,
            nodes=[
                encode_share(share, self.cluster.members.nodes[share.node].host_id)
                for share in session.shares
            ],
            trace=session.passed_on.trace,
            window=session.window,
            command_limit_s=self.cluster.limits.of(session).command_limit_s,
            secrets=session.passed_on.secrets,
        )

    def _find_route(self, session: int, node: str) -> None:
        """Notes the stream of one of a session's nodes, if it is connected."""
        link = self.links.get(node)
        if link is not None:
            self.routes.setdefault(session, {})[node] = link.outbox

    def relay(self, session: SessionTable, raw: bytes, worker: int | None = None) -> None:
        """Passes an envelope on to the nodes of a session.

        Args:
            session: The session.
            raw: The envelope.
            worker: The rank whose node alone gets it; None for all nodes.
        """
        routes = self.routes.get(session.session, {})
        if worker is None:
            for outbox in routes.values():
                outbox.post(raw, session=session.session)
        elif (outbox := routes.get(self.node_of_worker(session, worker) or "")) is not None:
            outbox.post(raw, session=session.session)

    def outbox_of(self, session: SessionTable) -> ClientOutbox:
        """Makes what waits for the client of a session, over one connection."""
        return ClientOutbox(
            session, lambda node, raw: self._post(node, raw, session=session.session)
        )

    def window_of(self, session: SessionTable) -> CommandWindow:
        """What a session has under way."""
        window = self._windows.get(session.session)
        if window is None:
            window = self._windows[session.session] = CommandWindow(
                session.num_workers, session.window
            )
        return window

    def tell_ready(self, session: SessionTable) -> None:
        """Tells the client of a session where its ranks run."""
        ready = controller_pb2.SessionReady(
            session=session.session,
            name=session.name,
            transfer_key=session.transfer_key,
            version=__version__,
            heartbeat_s=self.heartbeat,
            lease_s=session.lease,
            num_groups=session.num_groups,
            ccl=session.ccl,
            window=session.window,
        )
        for rank in sorted(session.ranks.values()):
            node = self.cluster.members.nodes.get(rank[1])
            # The rank's array address; for the session's own client only.
            add_rank_info(ready.ranks, rank).array_address = node.array_address if node else ""
        outbox = self.clients.get(session.session)
        if outbox is not None:
            raw = envelope(EnvelopeKind.READY, ready.SerializeToString(), session=session.session)
            outbox.post(raw)
        self._tell_draining(session)

    def _tell_cordon(self, effect: TellDraining | CordonNode) -> None:
        if isinstance(effect, TellDraining):
            self._tell_draining(effect.session, effect.again)
            return
        told = controller_pb2.Cordon(lifted=not effect.drained, reason=effect.drained)
        self._post(effect.node, envelope(EnvelopeKind.CORDON, told.SerializeToString()))

    def _tell_draining(self, session: SessionTable, again: str = "") -> None:
        outbox, number = self.clients.get(session.session), session.session
        if outbox is None:
            return
        if again:
            lifted = controller_pb2.Cordon(lifted=True).SerializeToString()
            # None where it starts: then its client is told of those that drain once it is ready.
            for worker in [rank for rank, node, *_ in session.ranks.values() if node == again][:1]:
                outbox.post(envelope(EnvelopeKind.CORDON, lifted, session=number, worker=worker))
            return
        for worker in self.cluster.draining_ranks(session):
            outbox.post(envelope(EnvelopeKind.CORDON, session=number, worker=worker))

    def _log_ready(self, session: SessionTable) -> None:
        nodes = some(sorted(session.nodes, key=natural))
        bind(_logger, session=session.name, **self._spans.ids(session)).info(
            "session runs: %s on %s for %s",
            many(session.num_workers, "worker"),
            nodes,
            session.owner,
        )

    def _tell_ended(
        self, session: SessionTable, end: End, slots: Callable[[], tuple[int, int]]
    ) -> None:
        session_id = session.session
        session.ended = monotonic()
        session.passed_on.secrets = {}
        self.exchanges.close(session_id, end.message)
        self.transfers.end_session(session_id)
        self.counters.ended[end.reason] += 1
        lost = {"rank": end.worker, "node": end.node} if end.reason in OF_A_RANK else {}
        bind(_logger, session=session.name, **lost, **self._spans.ids(session)).info(
            "session ends (%s): %s", end.reason.name.lower(), end.message
        )
        reason = end.reason.name.lower()
        refused = {"outcome": end.message} if end.quota is not None else {}
        logs.record(
            "session ended", session=session.name, owner=session.owner, what=reason, **refused
        )
        outbox = self.clients.pop(session_id, None)
        if outbox is None:
            return
        ended = ended_message(end)
        if end.reason in (EndReason.NO_SLOTS, EndReason.QUOTA):
            ended.slots.total_slots, ended.slots.free_slots = slots()
        outbox.post(envelope(EnvelopeKind.ENDED, ended.SerializeToString(), session=session_id))
        outbox.close()

    def _tell_expiring(self, told: TellExpiring) -> None:
        """Warns a client, or takes the warning back; both are in the audit log."""
        session, reason = told.session, told.reason
        message = ""
        if reason is not None:
            why = (
                f"a session may hold its slots for {told.limit_s:g} s"
                if reason is EndReason.EXPIRED
                else f"a client may do nothing for {told.limit_s:g} s; any command prevents it"
            )
            message = f"session {session.name!r} ends in {told.seconds:.0f} s: {why}"
        expiring = controller_pb2.SessionExpiring(
            reason=int(reason or 0),  # type: ignore[arg-type]  (the numbers are the same)
            seconds=told.seconds,
            limit_s=told.limit_s,
            message=message,
        )
        self._tell(session.session, EnvelopeKind.EXPIRING, expiring)
        logs.record(
            "session warned" if reason else "warning withdrawn",
            session=session.name,
            owner=session.owner,
            what=reason.name.lower() if reason else "",
        )

    def _ask_if_quiet(self, session: SessionTable) -> None:
        async def ask() -> None:
            seconds: float | None = None
            try:
                seconds = await self.inspections.quiet_for(session)
            finally:
                self.cluster.nodes_said(session.session, self.clock(), seconds)

        asking = asyncio.ensure_future(ask())
        self._asking.add(asking)
        asking.add_done_callback(self._asking.discard)

    def _drop(self, node: str, message: str) -> None:
        link = self.links.get(node)
        if link is not None:
            self.disconnect(link)
            _dismiss(link, message)
            self.transfers.break_off(node)
            bind(_logger, node=node).warning("node dropped: %s", message)

    # What the edge asks -------------------------------------------------------------

    def new_session(
        self, create: controller_pb2.CreateSession, who: Identity = EVERYBODY
    ) -> SessionTable:
        """Makes the record of a session that a client requests."""
        session_id = 0
        while not session_id or session_id in self.cluster.sessions:
            session_id = secrets.randbits(63)
        priority = self.cluster.limits.usual_priority(who.principal)
        if create.priority:
            priority = Priority[create.priority.upper()]
        return SessionTable(
            session=session_id,
            name=create.name or f"session-{session_id & 0xFFFFFF:06x}",
            owner=signed(create.owner, who),
            principal=who.principal,
            num_workers=create.num_workers,
            most_workers=create.most_workers,
            num_groups=create.num_groups,
            ccl=create.ccl,
            transfer_key=secrets.token_bytes(16),
            created=monotonic(),
            deadline=self.clock() + create.timeout_s,
            priority=priority,
            passed_on=PassedOn(secrets=dict(create.secrets)),
        )

    def session_of(
        self, transfer: controller_pb2.Transfer, who: Identity = EVERYBODY
    ) -> SessionTable | None:
        """The running session that a transfer names, if its key is right and the caller may use it.

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

    def open_communicator(self, session: SessionTable, worker: int, times: int, raw: bytes) -> None:
        """Passes on that a rank opens its communicator.

        The first that does is told to all nodes, and that all do; so it costs each rank one
        message and each node two, however many there are.

        Args:
            session: The session.
            worker: The rank.
            times: How many times it has.
            raw: The envelope that says so.
        """
        opening = self._openings.get(session.session)
        if opening is None:
            opening = self._openings[session.session] = Progress(session.num_workers, 0)
        if not 0 <= worker < session.num_workers:
            return
        if times > opening.fastest:
            self.relay(session, raw)
        if opening.note(worker, times):
            self.relay(session, _all_open(session.session, opening.slowest))

    def _repeat_opening(self, session: int, node: str) -> None:
        """Tells a node that was not connected how far the ranks are with that."""
        opening = self._openings.get(session)
        if opening is None or not opening.fastest:
            return
        kind, first = EnvelopeKind.OPEN_CCL, opening.each.index(opening.fastest)
        raw = envelope(kind, session=session, worker=first, first_seq=opening.fastest)
        self._post(node, raw, session=session)
        self._post(node, _all_open(session, opening.slowest), session=session)

    def connect(self, link: NodeLink) -> NodeLink | None:
        """Notes a node's stream; returns the one that it had before."""
        former = self.links.get(link.name)
        if former is not None:
            self.disconnect(former)
        self.links[link.name] = link
        return former

    def disconnect(self, link: NodeLink) -> None:
        """Forgets a node's present stream."""
        del self.links[link.name]

    def tick(self) -> None:
        """Lets time pass: waits and leases that are over end."""
        self.apply(self.cluster.tick(self.clock()))

    def beat(self) -> None:
        """Sends every peer a heartbeat, and every waiting session its place in the queue.

        A change in the queue is told with the next of them, so that what is told is linear in
        how many wait, however many changes there are.
        """
        self.apply(self.cluster.tell_queue())
        self._say_dropped()
        count = self._beat[0] + 1
        self._beat = count, self.clock()
        payload = controller_pb2.Heartbeat(count=count).SerializeToString()
        raw = envelope(EnvelopeKind.HEARTBEAT, payload)
        for outbox in (*self.clients.values(), *(link.outbox for link in self.links.values())):
            outbox.post(raw, droppable=True)

    def printed(
        self, session: int, node: str, said: controller_pb2.LogLines, raw: bytes | None = None
    ) -> None:
        """Keeps what a rank has printed, and passes it on to the client if that keeps up.

        Args:
            session: The rank's session.
            node: The rank's node.
            said: What it printed.
            raw: The same as the envelope received.
        """
        client = self.clients.get(session)
        whole = self.logs.add(session, said.worker, node, said.stderr, said.lines, first=said.first)
        if whole and client is not None:
            raw = raw or envelope(EnvelopeKind.LOG, said.SerializeToString(), session=session)
            self.counters.to_clients += len(raw)
            whole = client.post(raw, droppable=True)
        if whole:
            self._unsaid.pop((session, said.worker), None)
        else:
            self._unsaid[session, said.worker] = node, said.first + len(said.lines)

    def _say_dropped(self) -> None:
        """Reports how many lines were dropped here, unless later lines have reported it."""
        unsaid, self._unsaid = self._unsaid, {}
        for (session, worker), (node, count) in unsaid.items():
            if session in self.clients:
                said = controller_pb2.LogLines(worker=worker, node=node, first=count)
                self.printed(session, node, said)

    def answered(self, node: str, payload: bytes) -> None:
        """Notes a node's answer to a heartbeat, or what its machine does.

        Answers to older heartbeats are not timed.
        """
        beat = controller_pb2.Heartbeat.FromString(payload)
        if beat.HasField("sample"):
            self.cluster.members.sampled(node, self.clock(), decode_load(beat.sample))
        elif beat.count == self._beat[0]:
            took = self.clock() - self._beat[1]
            self.counters.node_round_trip.observe(took)
            self.cluster.node_answered(node, took)

    def stop_session(
        self,
        session: SessionTable,
        who: Identity,
        peer: str,
        *,
        by_owner: bool = False,
        what: str = "",
    ) -> None:
        """Ends a session because somebody wants it.

        Args:
            session: The session.
            who: Who wants it.
            peer: Their address.
            by_owner: Whether by the session's own program, which knows its key.
            what: What they asked by, where that is not the gRPC port.
        """
        by = f" of {who}" * bool(who.name and not by_owner)
        end = End(EndReason.STOPPED, f"session {session.name!r} was closed on request{by}")
        self.apply(self.cluster.end(session.session, end))
        logs.record(
            "session closed",
            who=str(who),
            peer=peer,
            session=session.name,
            owner=session.owner,
            what=what,
        )

    def drain_node(
        self,
        name: str,
        who: Identity,
        peer: str,
        *,
        undo: bool = False,
        reason: str = "",
        by: str = "",
    ) -> None:
        """Lets a node take no new sessions because an administrator wants it, or take them again.

        Args:
            name: The node.
            who: Who wants it.
            peer: Their address.
            undo: Whether it is to take sessions again.
            reason: Why, for those who read it.
            by: What they asked by, where that is not the gRPC port.
        """
        why = ": ".join(filter(None, (who.name, reason))) or "on request"
        cluster = self.cluster
        self.apply(cluster.node_undrained(name) if undo else cluster.node_drained(name, why))
        event = "node taken back" if undo else "node drained"
        more = {"by": by} if by else {}
        logs.record(event, who=str(who), peer=peer, what=name, why=reason, **more)

    async def drain(self) -> None:
        """Ends every session and waits until nothing is left of them."""
        self.apply(self.cluster.drain())
        for link in self.links.values():
            link.outbox.post(envelope(EnvelopeKind.DRAIN))
        await self._empty.wait()

    def dismiss(self, message: str) -> None:
        """Dismisses every node; each may register with the next controller at this address."""
        for link in self.links.values():
            _dismiss(link, message)


def _all_open(session: int, times: int) -> bytes:
    """The envelope that says that every rank has opened its communicator so many times."""
    return envelope(EnvelopeKind.OPEN_CCL, session=session, first_seq=times)


def _dismiss(link: NodeLink, message: str) -> None:
    refused = node_pb2.Refused(message=message)
    link.outbox.close(envelope(EnvelopeKind.REFUSED, refused.SerializeToString()))


def ended_message(end: End) -> controller_pb2.SessionEnded:
    """The message to a client about the end of its session."""
    quota = end.quota
    return controller_pb2.SessionEnded(
        reason=int(end.reason),  # type: ignore[arg-type]  (the numbers are the same)
        message=end.message,
        worker=end.worker,
        node=end.node,
        exit_status=end.exit_status,
        output=end.output,
        limit_s=end.limit_s,
        quota=quota
        and controller_pb2.QuotaUse(
            name=quota.name, limit=quota.limit, used=quota.used, sessions=quota.sessions
        ),
    )


def signed(owner: str, who: Identity) -> str:
    """How lists name a session's client: its authenticated name, and the owner that it states."""
    return f"{who.name} ({owner[:200]})" if who.name else owner[:200]
