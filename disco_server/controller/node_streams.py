"""The streams of worker daemons: what they offer, run and relay."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

from google.protobuf.message import DecodeError

from disco_client.clock import monotonic
from disco_client.output import logger_of
from disco_client.pb import controller_pb2, envelope_pb2, node_pb2
from disco_client.telemetry.spans import trace_headers
from disco_client.text import hidden_in, many
from disco_client.version import __version__
from disco_client.wire.codec import PROTOCOL, EnvelopeKind, envelope, envelopes_in, mismatch
from disco_client.wire.limits import MAX_NAME, WINDOW_COMMANDS
from disco_server.controller.auth import caller, peer_of
from disco_server.controller.edge import end_stream, first_message, guarded, refuse
from disco_server.controller.hub import Hub, NodeLink
from disco_server.core.nodes import Node, NodeRefused
from disco_server.core.session_state import Activity, PassedOn, SessionState, SessionTable
from disco_server.ipc.carriers import ServedCarrier
from disco_server.ipc.outbox import Outbox
from disco_server.ipc.shares import decode_shares
from disco_server.observe import logs
from disco_server.observe.logs import bind

__all__ = ["NodeStreams"]

_logger = logger_of("disco.controller")
_MAX_CAUSE = 1000
_MAX_SLOTS = 4096
_MAX_TEXT = 1024
_QUESTIONS = (EnvelopeKind.FENCE, EnvelopeKind.PUT_KEY, EnvelopeKind.GET_KEY)


class NodeStreams:
    """The handler of the streams of worker daemons.

    Args:
        hub: The hub.
        private: Whether nobody else can read what is sent to them.
    """

    def __init__(self, hub: Hub, *, private: bool) -> None:
        self._hub = hub
        self._private = private

    @guarded
    async def register(self, carrier: ServedCarrier) -> None:
        """The life of one worker daemon's connection."""
        hub = self._hub
        first = await first_message(carrier)
        if first is None:
            return
        received = envelope_pb2.Envelope.FromString(first)
        info = node_pb2.RegisterNode.FromString(received.payload)
        outbox = Outbox()
        link = NodeLink(info.name, outbox, self._private)
        try:
            effects = self._join(received.kind, info, link, carrier.carrier)
        except NodeRefused as refused:
            logs.refusals.record(
                "node refused",
                who=str(caller()),
                peer=peer_of(carrier),
                what=info.name[:MAX_NAME],
                outcome=str(refused),
            )
            await refuse(carrier, str(refused))
            return
        welcome = node_pb2.NodeRegistered(version=__version__, heartbeat_s=hub.heartbeat)
        outbox.post(envelope(EnvelopeKind.REGISTERED, welcome.SerializeToString()))
        hub.counters.joined += 1
        hub.apply(effects)
        log = bind(_logger, node=info.name)
        log.info("node %s joined with %s", info.name, many(len(info.devices), "slot"))
        logs.record("node joined", who=str(caller()), peer=peer_of(carrier), what=info.name)
        writing = asyncio.ensure_future(carrier.send_from(outbox))
        reading = asyncio.ensure_future(carrier.receive(lambda message: self._take(message, link)))
        try:
            await asyncio.wait((writing, reading), return_when=asyncio.FIRST_COMPLETED)
            if reading.done():
                reading.result()  # an error there must not look like a regular end
        finally:
            if hub.links.get(info.name) is link:
                hub.disconnect(link)
                hub.transfers.break_off(info.name)
                hub.apply(hub.cluster.node_away(info.name, hub.clock()))
                log.info("node %s left", info.name)
            await end_stream(outbox, writing, reading)

    def _join(self, kind: int, info: node_pb2.RegisterNode, link: NodeLink, carrier: str) -> Any:
        if kind != EnvelopeKind.REGISTER or not info.name:
            msg = "expected a registration with the node's name first"
            raise NodeRefused(msg)
        if len(info.name) > MAX_NAME:
            msg = f"expected a node's name of at most {MAX_NAME} characters, got {len(info.name)}"
            raise NodeRefused(msg)
        if (why := caller().refuses_node(info.name)) is not None:
            raise NodeRefused(why)
        if len(info.devices) > _MAX_SLOTS or max(map(len, _texts(info))) > _MAX_TEXT:
            msg = (
                f"expected at most {_MAX_SLOTS} slots, and texts of at most {_MAX_TEXT} characters"
            )
            raise NodeRefused(msg)
        for text in (info.name, *_texts(info)):
            if (hidden := hidden_in(text, "what a node says of itself")) is not None:
                raise NodeRefused(hidden)
        problem = mismatch(
            f"controller {__version__}", PROTOCOL, f"worker {info.version}", info.protocol
        )
        if problem is not None:
            raise NodeRefused(problem)
        if self._hub.cluster.draining:
            msg = "the controller is shutting down"
            raise NodeRefused(msg)
        now = self._hub.clock()
        node = Node(
            name=info.name,
            devices=tuple(info.devices),
            incarnation=info.incarnation,
            version=info.version,
            host=info.host,
            heard=now,
            joined=monotonic(),
            array_address=info.array_address,
            host_id=info.host_id or info.name,
            cordoned=info.cordoned,
            drained=info.drained,
            carrier=carrier,
            window=info.window or WINDOW_COMMANDS,
        )
        runs = [_known_by_node(run, info.name) for run in info.sessions]
        effects = self._hub.cluster.node_joined(node, runs, now)
        former = self._hub.connect(link)
        if former is not None:  # of the same daemon, which noticed first that it broke
            former.outbox.close()
            self._hub.transfers.break_off(info.name)
        return effects

    def _take(self, message: bytes, link: NodeLink) -> bool | None:
        """Handles one message of a node; something where the connection is not its own any more."""
        hub, name = self._hub, link.name
        if hub.links.get(name) is not link:
            return True
        hub.cluster.node_heard(name, hub.clock())
        for raw, received in envelopes_in(message):
            self._receive(raw, received, name)
        return None

    def _receive(self, raw: bytes, received: envelope_pb2.Envelope, name: str) -> None:
        """Handles one envelope of a node."""
        hub, kind = self._hub, received.kind
        if kind in (EnvelopeKind.REPLY, EnvelopeKind.HAVE):
            if hub.on_node(received.session, name):
                self._reply(raw, received, name)
        elif kind == EnvelopeKind.LOG:
            self._printed(raw, received, name)
        elif kind == EnvelopeKind.OPEN_CCL and hub.on_node(received.session, name):
            session = hub.cluster.sessions[received.session]
            worker = received.worker_plus_one - 1
            hub.open_communicator(session, worker, received.first_seq, raw)
        elif kind in _QUESTIONS:
            if hub.on_node(received.session, name):
                hub.exchanges.ask(name, received)
            else:
                hub.exchanges.refuse(name, received, "expected a node that runs this session")
        elif kind == EnvelopeKind.RANKS_READY:
            ready = node_pb2.RanksReady.FromString(received.payload)
            ranks = [(r.worker, name, r.pid, r.device) for r in ready.ranks]
            hub.apply(hub.cluster.ready_on_node(received.session, name, ranks))
        else:
            self._notice(kind, received, name)

    def _reply(self, raw: bytes, received: envelope_pb2.Envelope, name: str) -> None:
        """Passes on to the client what a rank answers, or what the node has."""
        hub, outbox = self._hub, self._hub.clients.get(received.session)
        if received.kind == EnvelopeKind.REPLY:
            worker = received.worker_plus_one - 1
            session = hub.cluster.sessions[received.session]
            hub.window_of(session).acknowledge(worker, received.last_seq)
            if outbox is not None and outbox.reply(name, worker, received.first_seq, raw):
                hub.counters.to_clients += len(raw)
        elif outbox is not None:
            outbox.have(name, raw, received.payload)

    def _notice(self, kind: int, received: envelope_pb2.Envelope, name: str) -> None:
        """Handles messages that are rarer than replies and output."""
        hub = self._hub
        if kind == EnvelopeKind.RANK_EXITED:
            self._rank_exited(received.session, name, received.payload)
        elif kind == EnvelopeKind.SESSION_GONE:
            hub.apply(hub.cluster.gone_on_node(received.session, name))
        elif kind == EnvelopeKind.DRAIN:
            hub.apply(hub.cluster.node_leaving(name))
        elif kind == EnvelopeKind.CORDON:
            hub.apply(hub.cluster.node_cordoned(name))
            _logger.info("node %s takes no new sessions", name)
        else:
            self._answered(kind, received, name)

    def _answered(self, kind: int, received: envelope_pb2.Envelope, name: str) -> None:
        """Handles a node's answer to a question of this controller."""
        hub = self._hub
        if kind == EnvelopeKind.INSPECTED:
            hub.inspections.receive(name, received.payload)
        elif kind == EnvelopeKind.HEARTBEAT and received.payload:
            hub.answered(name, received.payload)
        elif kind == EnvelopeKind.FETCH and hub.on_node(received.session, name):
            told = controller_pb2.Transfer.FromString(received.payload)
            key = (received.session, "up", told.worker, told.ticket)
            hub.transfers.answer(key, told.error)

    def _printed(self, raw: bytes, received: envelope_pb2.Envelope, name: str) -> None:
        """Keeps what a rank has printed, and passes it on."""
        if not self._hub.on_node(received.session, name):
            return
        with contextlib.suppress(DecodeError):
            said = controller_pb2.LogLines.FromString(received.payload)
            self._hub.printed(received.session, name, said, raw)

    def _rank_exited(self, session_id: int, name: str, payload: bytes) -> None:
        if not self._hub.on_node(session_id, name):
            return
        left = node_pb2.RankExited.FromString(payload)
        self._hub.apply(
            self._hub.cluster.rank_exited(
                session_id,
                name,
                left.worker,
                left.exit_status,
                tuple(left.output),
                at_start=left.at_start,
                cause=left.cause[:_MAX_CAUSE],
            )
        )


def _texts(info: node_pb2.RegisterNode) -> list[str]:
    own = (info.version, info.host, info.array_address, info.host_id, info.drained)
    return [*own, *info.devices]


def _known_by_node(run: node_pb2.RunningSession, name: str) -> SessionTable:
    """The record of a session as a node reports it.

    Raises:
        NodeRefused: It is none that this node could run.
    """
    start = run.start
    try:
        shares = decode_shares(start)
    except ConnectionError as error:
        msg = f"expected a session that node {name!r} runs: {error}"
        raise NodeRefused(msg) from None
    ranks = {rank.worker: (rank.worker, name, rank.pid, rank.device) for rank in run.ranks}
    own = next((share for share in shares if share.node == name), None)
    for text in (start.session_name, start.owner, start.principal, start.ccl):
        if (hidden := hidden_in(text, "what a node says of a session")) is not None:
            raise NodeRefused(hidden)
    if not run.session or own is None or set(own.workers) != set(ranks):
        msg = f"expected a session that node {name!r} runs, got one without its workers"
        raise NodeRefused(msg)
    return SessionTable(
        session=run.session,
        name=start.session_name,
        owner=start.owner,
        num_workers=start.num_workers,
        num_groups=start.num_groups,
        ccl=start.ccl,
        transfer_key=start.transfer_key,
        principal=start.principal,
        created=monotonic(),
        deadline=0.0,  # set when the cluster takes the session over
        lease=start.lease_s,
        state=SessionState.RETURNING,
        passed_on=PassedOn(trace_headers(start.trace.items())),
        shares=shares,
        ranks=ranks,
        activity=Activity(before_s=max(0.0, run.age_s)),
        window=start.window or WINDOW_COMMANDS,
    )
