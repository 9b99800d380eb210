"""The gRPC edge of the controller: decode, ask the hub, encode, map errors.

The streams carry envelopes as bytes, so that batches and replies are relayed as
they came; only the calls that are answered once use generated messages.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Collection
from functools import wraps
from typing import Any, TypeAlias, cast

import grpc
from google.protobuf.message import DecodeError

from disco_client.pb import controller_pb2, envelope_pb2, node_pb2
from disco_client.version import __version__
from disco_client.wire.codec import Kind, envelope
from disco_client.wire.protocol import PROTOCOL, mismatch
from disco_server.channels.outbox import Outbox
from disco_server.controller.hub import Hub, NodeLink, session_info
from disco_server.core.membership import Node, NodeRefused
from disco_server.core.session_state import End, EndReason, SessionTable

__all__ = ["NODE_SERVICES", "SERVICE_NAMES", "Edge"]

SERVICE_NAMES = (
    "disco.v1.SessionService",
    "disco.v1.NodeService",
    "disco.v1.RendezvousService",
    "disco.v1.ArrayService",
)
NODE_SERVICES = ("disco.v1.NodeService", "disco.v1.RendezvousService")
"""What worker daemons need of a controller; clients need the others."""

_logger = logging.getLogger("disco.controller")

MAX_WORKERS = 4096
MAX_NAME = 128
Context: TypeAlias = Any  # grpc.aio.ServicerContext, whose type parameters help nobody here
Stream: TypeAlias = AsyncIterator[bytes]


def _guarded(handler: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
    """Keeps the text of unforeseen exceptions from peers, who get an id of the log line."""

    @wraps(handler)
    async def guarded(self: Edge, request: Any, context: Context) -> Any:
        try:
            return await handler(self, request, context)
        except DecodeError:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, "expected a disco.v1 message")
        except ConnectionError as error:
            await context.abort(grpc.StatusCode.ABORTED, str(error)[:1000])
        except (asyncio.CancelledError, grpc.aio.AbortError):
            raise
        except Exception:
            error_id = secrets.token_hex(4)
            _logger.exception("handler failed, error id %s", error_id)
            await context.abort(
                grpc.StatusCode.INTERNAL, f"the controller failed; its log has error {error_id}"
            )

    return guarded


class Edge:
    """The handlers of one controller."""

    def __init__(self, hub: Hub) -> None:
        self._hub = hub

    def add_to(self, server: grpc.aio.Server, names: Collection[str] = SERVICE_NAMES) -> None:
        """Registers services, all of them or those that are named."""
        stream = grpc.stream_stream_rpc_method_handler
        pb, npb = controller_pb2, node_pb2

        def unary(handler: Any, request: Any, result: Any) -> Any:
            return grpc.unary_unary_rpc_method_handler(
                handler,
                request_deserializer=request.FromString,
                response_serializer=result.SerializeToString,
            )

        def collect(handler: Any) -> Any:
            return cast("Any", grpc).unary_stream_rpc_method_handler(
                handler, request_deserializer=pb.Transfer.FromString
            )

        def bring(handler: Any) -> Any:
            return cast("Any", grpc).stream_unary_rpc_method_handler(
                handler, response_serializer=pb.UploadResult.SerializeToString
            )

        methods: dict[str, dict[str, Any]] = {
            SERVICE_NAMES[0]: {
                "Open": stream(self.open),
                "List": unary(self.list, pb.ListRequest, pb.ListResult),
                "Close": unary(self.close, pb.CloseRequest, pb.CloseResult),
            },
            SERVICE_NAMES[1]: {
                "Register": stream(self.register),
                "Fetch": collect(self.fetch),
                "Push": bring(self.push),
            },
            SERVICE_NAMES[3]: {"Upload": bring(self.upload), "Download": collect(self.download)},
            SERVICE_NAMES[2]: {
                "Put": unary(self.put, npb.PutRequest, npb.PutResult),
                "Get": unary(self.get, npb.GetRequest, npb.GetResult),
                "Fence": unary(self.fence, npb.FenceRequest, npb.FenceResult),
            },
        }
        server.add_generic_rpc_handlers(
            tuple(
                grpc.method_handlers_generic_handler(name, handlers)
                for name, handlers in methods.items()
                if name in names
            )
        )

    # Clients -----------------------------------------------------------------------

    @_guarded
    async def open(self, stream: Stream, context: Context) -> None:
        """The life of one session, from CREATE to ENDED."""
        hub = self._hub
        first = await anext(aiter(stream), None)
        if first is None:
            return
        received = envelope_pb2.Envelope.FromString(first)
        create = controller_pb2.CreateSession.FromString(received.payload)
        theirs = f"client {create.version or 'of unknown version'}"
        problem = mismatch(f"controller {__version__}", PROTOCOL, theirs, create.protocol)
        if received.kind == Kind.CREATE and problem is not None:
            refused = node_pb2.Refused(message=problem).SerializeToString()
            await context.write(envelope(Kind.REFUSED, refused))
            return
        problem = _check_create(received.kind, create)
        if problem is not None:
            await context.write(_refused_session(problem))
            return
        session = hub.new_session(create)
        outbox = hub.clients[session.session] = Outbox()
        writing = asyncio.ensure_future(outbox.run(context.write))
        reading = asyncio.ensure_future(self._read_client(stream, session))
        try:
            hub.apply(hub.cluster.requested(session))
            await asyncio.wait((writing, reading), return_when=asyncio.FIRST_COMPLETED)
            if not writing.done():
                said_goodbye = reading.result()  # what went wrong there is raised here
                if said_goodbye and session.alive:
                    hub.apply(hub.cluster.end(session.session, End(EndReason.CLOSED, "closed")))
            if not session.alive:
                await writing
        finally:
            if hub.clients.get(session.session) is outbox:
                del hub.clients[session.session]
            hub.apply(hub.cluster.client_left(session.session, time.monotonic()))
            await _end(outbox, writing, reading)

    async def _read_client(self, stream: Stream, session: SessionTable) -> bool:
        """Reads until the client says goodbye (True), or its stream is over (False).

        gRPC shows a stream that was broken off as one that ended; only CLOSE is a wish.
        """
        routes = self._hub.routes
        async for raw in stream:
            received = envelope_pb2.Envelope.FromString(raw)
            kind = received.kind
            if kind == Kind.BATCH:
                if received.session != session.session:
                    msg = "expected commands of this stream's session"
                    raise ConnectionError(msg)
                for outbox in routes.get(session.session, ()):
                    outbox.post(raw)
            elif kind == Kind.CLOSE:
                return True
        return False

    @_guarded
    async def upload(self, stream: Stream, context: Context) -> controller_pb2.UploadResult:
        """Takes an array from a client and passes it on to a node."""
        head = await self._head(stream, context)
        session = await self._authorised(head, context)
        await self._ask_node(Kind.FETCH, session, head, context)
        key = (session.session, "up", head.worker, head.ticket)
        await self._hub.transfers.bring(key, stream)
        return controller_pb2.UploadResult(nbytes=head.nbytes)

    @_guarded
    async def download(self, head: controller_pb2.Transfer, context: Context) -> None:
        """Passes an array that a node pushes on to a client."""
        session = await self._authorised(head, context)
        await self._ask_node(Kind.PUSH, session, head, context)
        await self._pass_on((session.session, "down", head.worker, head.ticket), context)

    @_guarded
    async def list(
        self, _request: controller_pb2.ListRequest, _context: Context
    ) -> controller_pb2.ListResult:
        """Says which nodes and sessions there are."""
        cluster = self._hub.cluster
        nodes = [
            controller_pb2.NodeInfo(
                name=node.name,
                slots=len(node.devices),
                free_slots=len(node.free.slots),
                devices=node.devices,
                version=node.version,
            )
            for node in cluster.members.nodes.values()
        ]
        sessions = [session_info(session) for session in cluster.sessions.values()]
        return controller_pb2.ListResult(nodes=nodes, sessions=sessions, version=__version__)

    @_guarded
    async def close(
        self, request: controller_pb2.CloseRequest, context: Context
    ) -> controller_pb2.CloseResult:
        """Ends a session; whoever asks must know its key."""
        transfer = controller_pb2.Transfer(
            session=request.session, transfer_key=request.transfer_key
        )
        session = await self._authorised(transfer, context)
        end = End(EndReason.STOPPED, f"session {session.name!r} was closed on request")
        self._hub.apply(self._hub.cluster.end(session.session, end))
        return controller_pb2.CloseResult()

    # Nodes ---------------------------------------------------------------------------

    @_guarded
    async def register(self, stream: Stream, context: Context) -> None:
        """The life of one worker daemon's connection."""
        hub = self._hub
        first = await anext(aiter(stream), None)
        if first is None:
            return
        received = envelope_pb2.Envelope.FromString(first)
        info = node_pb2.RegisterNode.FromString(received.payload)
        outbox = Outbox()
        link = NodeLink(info.name, secrets.token_bytes(16), outbox)
        try:
            effects = self._join(received.kind, info, link)
        except NodeRefused as refused:
            message = node_pb2.Refused(message=str(refused)).SerializeToString()
            await context.write(envelope(Kind.REFUSED, message))
            return
        welcome = node_pb2.NodeRegistered(
            version=__version__, heartbeat_s=hub.heartbeat, node_key=link.key
        )
        outbox.post(envelope(Kind.REGISTERED, welcome.SerializeToString()))
        hub.apply(effects)
        _logger.info("node %s joined with %d slots", info.name, len(info.devices))
        writing = asyncio.ensure_future(outbox.run(context.write))
        reading = asyncio.ensure_future(self._read_node(stream, info.name))
        try:
            await asyncio.wait((writing, reading), return_when=asyncio.FIRST_COMPLETED)
            if not writing.done():
                reading.result()  # what went wrong there must not look like a goodbye
        finally:
            if hub.links.get(info.name) is link:
                del hub.links[info.name]
                hub.apply(hub.cluster.node_left(info.name, "its connection closed"))
                _logger.info("node %s left", info.name)
            await _end(outbox, writing, reading)

    def _join(self, kind: int, info: node_pb2.RegisterNode, link: NodeLink) -> Any:
        if kind != Kind.REGISTER or not info.name or len(info.name) > MAX_NAME:
            msg = "expected a registration with the node's name first"
            raise NodeRefused(msg)
        problem = mismatch(
            f"controller {__version__}", PROTOCOL, f"worker {info.version}", info.protocol
        )
        if problem is not None:
            raise NodeRefused(problem)
        if self._hub.cluster.draining:
            msg = "the controller is shutting down"
            raise NodeRefused(msg)
        node = Node(
            name=info.name,
            devices=tuple(info.devices),
            incarnation=info.incarnation,
            version=info.version,
            host=info.host,
            heard=time.monotonic(),
            array_address=info.array_address,
            host_id=info.host_id or info.name,
        )
        if info.name not in self._hub.links:
            self._hub.links[info.name] = link
        try:
            return self._hub.cluster.node_joined(node)
        except NodeRefused:
            if self._hub.links.get(info.name) is link:
                del self._hub.links[info.name]
            raise

    async def _read_node(self, stream: Stream, name: str) -> None:
        hub = self._hub
        cluster, clients = hub.cluster, hub.clients
        async for raw in stream:
            received = envelope_pb2.Envelope.FromString(raw)
            kind = received.kind
            cluster.node_heard(name, time.monotonic())
            if kind in (Kind.REPLY, Kind.LOG):
                outbox = clients.get(received.session)
                if outbox is not None and self._on_node(received.session, name):
                    outbox.post(raw, droppable=kind == Kind.LOG)
            elif kind == Kind.OPEN_CCL:
                if self._on_node(received.session, name):
                    for route in hub.routes.get(received.session, ()):
                        route.post(raw)
            elif kind == Kind.RANKS_READY:
                ready = node_pb2.RanksReady.FromString(received.payload)
                ranks = [(r.worker, name, r.pid, r.device) for r in ready.ranks]
                hub.apply(cluster.ready_on_node(received.session, name, ranks))
            elif kind == Kind.RANK_EXITED:
                self._rank_exited(received.session, name, received.payload)
            elif kind == Kind.SESSION_GONE:
                hub.apply(cluster.gone_on_node(received.session, name))
            elif kind == Kind.DRAIN:
                hub.apply(cluster.node_draining(name))

    def _on_node(self, session_id: int, name: str) -> bool:
        session = self._hub.cluster.sessions.get(session_id)
        return session is not None and any(share.node == name for share in session.shares)

    def _rank_exited(self, session_id: int, name: str, payload: bytes) -> None:
        if not self._on_node(session_id, name):
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
            )
        )

    @_guarded
    async def fetch(self, head: controller_pb2.Transfer, context: Context) -> None:
        """Passes an upload on to the node that asks for it."""
        session = await self._authorised(head, context)
        await self._pass_on((session.session, "up", head.worker, head.ticket), context)

    @_guarded
    async def push(self, stream: Stream, context: Context) -> controller_pb2.UploadResult:
        """Takes an array from a node and passes it on to the client."""
        head = await self._head(stream, context)
        session = await self._authorised(head, context)
        await self._hub.transfers.bring((session.session, "down", head.worker, head.ticket), stream)
        return controller_pb2.UploadResult(nbytes=head.nbytes)

    # The rendezvous ---------------------------------------------------------------------

    @_guarded
    async def put(self, request: node_pb2.PutRequest, context: Context) -> node_pb2.PutResult:
        """Writes keys of a session's exchange."""
        await self._check_node(request.session, request.node_key, context)
        self._hub.exchanges.put(request.session, request.items)
        return node_pb2.PutResult()

    @_guarded
    async def get(self, request: node_pb2.GetRequest, context: Context) -> node_pb2.GetResult:
        """Waits for a key of a session's exchange."""
        await self._check_node(request.session, request.node_key, context)
        value = await self._hub.exchanges.get(request.session, request.key, request.timeout_s)
        return node_pb2.GetResult(value=value)

    @_guarded
    async def fence(self, request: node_pb2.FenceRequest, context: Context) -> node_pb2.FenceResult:
        """Waits until every node of a session has come to a fence."""
        await self._check_node(request.session, request.node_key, context)
        items = await self._hub.exchanges.fence(request)
        return node_pb2.FenceResult(items=items)

    # Checks --------------------------------------------------------------------------------

    async def _head(self, stream: Stream, context: Context) -> controller_pb2.Transfer:
        first = await anext(aiter(stream), None)
        chunk = controller_pb2.ArrayChunk.FromString(first or b"")
        if not chunk.HasField("transfer"):
            await context.abort(
                grpc.StatusCode.INVALID_ARGUMENT, "expected a chunk that names its transfer first"
            )
        return chunk.transfer

    async def _authorised(self, head: controller_pb2.Transfer, context: Context) -> SessionTable:
        session = self._hub.session_of(head)
        if session is None:
            await context.abort(grpc.StatusCode.NOT_FOUND, "no running session of that id and key")
            raise AssertionError  # abort() raises; this tells the type checker
        return session

    async def _ask_node(
        self, kind: Kind, session: SessionTable, head: controller_pb2.Transfer, context: Context
    ) -> None:
        """Tells the node of a worker to do its part of a transfer."""
        node = self._hub.node_of_worker(session, head.worker)
        link = self._hub.links.get(node or "")
        if link is None:
            await context.abort(
                grpc.StatusCode.INVALID_ARGUMENT, f"the session has no worker {head.worker}"
            )
        else:
            link.outbox.post(envelope(kind, head.SerializeToString(), session=session.session))

    async def _check_node(self, session_id: int, key: bytes, context: Context) -> None:
        name = self._hub.node_of_key(key)
        if name is None or not self._on_node(session_id, name):
            await context.abort(
                grpc.StatusCode.PERMISSION_DENIED, "expected a node that runs this session"
            )

    async def _pass_on(self, key: tuple[int, str, int, int], context: Context) -> None:
        async for raw in self._hub.transfers.take(key):
            await context.write(raw)


_END_S = 1.0
"""How long a stream's tasks are waited for when it is over."""


async def _end(outbox: Outbox, writing: asyncio.Task[None], reading: asyncio.Task[Any]) -> None:
    """Lets the tasks of a stream end, as far as they do.

    What must happen when a stream is over comes before this: a peer that breaks off
    may cancel the handler once more while it waits here. A message on its way is not
    cut off, because gRPC could not send the stream's status after it; and gRPC keeps a
    cancellation to itself now and then, so that the wait has a limit.
    """
    reading.cancel()
    outbox.close()
    await asyncio.wait((reading, writing), timeout=_END_S)
    for task in (reading, writing):
        if not task.done():
            task.cancel()
        elif not task.cancelled():
            task.exception()  # seen


def _check_create(kind: int, create: controller_pb2.CreateSession) -> str | None:
    """Says what is wrong with a request for a session."""
    if kind != Kind.CREATE:
        return "expected a request to create a session first"
    if not 1 <= create.num_workers <= MAX_WORKERS:
        return f"expected num_workers from 1 to {MAX_WORKERS}, got {create.num_workers}"
    if create.num_groups < 1 or create.num_workers % create.num_groups:
        return (
            f"expected num_groups to divide {create.num_workers} workers evenly, "
            f"got {create.num_groups}"
        )
    if len(create.name) > MAX_NAME:
        return f"expected a session name of at most {MAX_NAME} characters, got {len(create.name)}"
    if not 0 < create.timeout_s < 1e6:  # noqa: PLR2004  (eleven days; not a limit to tune)
        return f"expected a timeout from 0 to 1000000 seconds, got {create.timeout_s}"
    return None


def _refused_session(problem: str) -> bytes:
    ended = controller_pb2.SessionEnded(reason=controller_pb2.END_REASON_REFUSED, message=problem)
    return envelope(Kind.ENDED, ended.SerializeToString())
