"""The gRPC edge of the controller: decode, ask the hub, encode, map errors.

The streams carry envelopes as bytes, so that batches and replies are relayed as
they came; only the calls that are answered once use generated messages.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, Any, cast

import grpc

from disco_client.pb import controller_pb2
from disco_client.text import hidden_in, natural
from disco_client.version import __version__
from disco_client.wire.codec import EnvelopeKind, envelope
from disco_client.wire.limits import MAX_NAME
from disco_server.controller.asked_interrupts import MAX_GRACE_S, CannotInterrupt
from disco_server.controller.auth import caller, peer_of
from disco_server.controller.edge import (
    Context,
    NotYours,
    Stream,
    find_session,
    first_message,
    guarded,
    not_yours,
    refuse_call,
)
from disco_server.controller.inspect import fill_waits_for, node_info, session_info
from disco_server.controller.node_streams import NodeStreams
from disco_server.controller.relay import NodeRefusedTransfer
from disco_server.controller.session_streams import ClientStreams
from disco_server.core.session_state import SessionState, SessionTable
from disco_server.ipc.carriers import CallCarrier
from disco_server.ipc.grpc_server import parsed
from disco_server.observe import logs

if TYPE_CHECKING:
    from disco_server.controller.frames import FrameListener
    from disco_server.controller.hub import Hub, NodeLink

__all__ = ["NODE_SERVICES", "SERVICE_NAMES", "Edge", "Watching", "named"]


# The calls for monitoring a cluster: what it does, and what its ranks print.


class Watching:
    """The handlers of these calls.

    Args:
        hub: The hub.
    """

    def __init__(self, hub: Hub) -> None:
        self._hub = hub

    @guarded
    async def overview(
        self, request: controller_pb2.OverviewRequest, _context: Context
    ) -> controller_pb2.OverviewResult:
        """Returns what the cluster does at this moment."""
        return await self._hub.overviews.snapshot(caller(), ended=request.ended)

    @guarded
    async def logs(self, request: controller_pb2.LogsRequest, context: Context) -> None:
        """Sends what ranks printed, as fast as it is read."""
        session = await named(self._hub, request.name, context, "logs refused", ended=True)
        worker = request.worker_plus_one - 1
        if worker >= session.num_workers:
            await context.abort(
                grpc.StatusCode.INVALID_ARGUMENT,
                f"expected a rank from 0 to {session.num_workers - 1}, got {worker}",
            )
        _audit_other("logs read", session, context)
        log = self._hub.logs.of(session.session, over=session.state is SessionState.GONE)
        parts = log.read(
            worker=worker if worker >= 0 else None,
            last=request.lines if request.HasField("lines") else None,
            follow=request.follow,
        )
        async for part in parts:
            await context.write(part.SerializeToString())


async def named(
    hub: Hub, name: str, context: Context, event: str, *, ended: bool = False
) -> SessionTable:
    """The session of that name or id, which the caller must be allowed to use.

    Args:
        hub: Has the sessions.
        name: The name or the id.
        context: Of the call, which is aborted if there is no such session or it is
            another owner's.
        event: The event in the audit log if it is another owner's.
        ended: Whether a session that is over may be returned.

    Raises:
        grpc.aio.AbortError: There is none, or it is another owner's.
    """
    try:
        return find_session(hub.cluster, name, caller(), ended=ended)
    except NotYours as error:
        await refuse_call(context, event, name, str(error))
    except LookupError as error:
        await context.abort(grpc.StatusCode.NOT_FOUND, str(error.args[0]))
    raise AssertionError  # abort() raises; this tells the type checker


def _audit(event: str, session: SessionTable, context: Context) -> None:
    logs.record(
        event,
        who=str(caller()),
        peer=peer_of(context),
        session=session.name,
        owner=session.owner,
    )


def _audit_other(event: str, session: SessionTable | None, context: Context) -> None:
    """Writes down what an administrator looks at, where it is another owner's."""
    if session is not None and caller().principal not in ("", session.principal):
        _audit(event, session, context)


SERVICE_NAMES = (
    "disco.v1.SessionService",
    "disco.v1.NodeService",
    "disco.v1.ArrayService",
)
NODE_SERVICES = ("disco.v1.NodeService",)
"""What worker daemons need of a controller; clients need the others."""


class Edge:
    """The handlers of one controller.

    Args:
        hub: The hub.
        frames: The port for frames, if there is one.
        private: Whether nobody else can read what is sent to its callers.
    """

    def __init__(
        self, hub: Hub, frames: FrameListener | None = None, *, private: bool = True
    ) -> None:
        self._hub = hub
        self._frames = frames
        self._clients = ClientStreams(hub)
        self._nodes = NodeStreams(hub, private=private)
        self._watching = Watching(hub)

    def add_to(self, server: grpc.aio.Server, names: Collection[str] = SERVICE_NAMES) -> None:
        """Registers services, all of them or those that are named."""
        untyped = cast("Any", grpc)
        pb = controller_pb2
        watching = self._watching

        def unary(handler: Any, request: Any, result: Any) -> Any:
            return untyped.unary_unary_rpc_method_handler(
                parsed(handler, request), response_serializer=result.SerializeToString
            )

        def stream(handler: Any) -> Any:
            async def by_call(messages: Stream, context: Context) -> None:
                await handler(CallCarrier(messages, context))

            return untyped.stream_stream_rpc_method_handler(by_call)

        def admit(handler: Any) -> Any:
            async def by_frames(
                request: controller_pb2.PermitRequest, context: Context
            ) -> controller_pb2.Permit:
                return self._admit(handler, request, context)

            return unary(by_frames, pb.PermitRequest, pb.Permit)

        def collect(handler: Any, request: Any = pb.Transfer) -> Any:
            return untyped.unary_stream_rpc_method_handler(parsed(handler, request))

        def bring(handler: Any) -> Any:
            return untyped.stream_unary_rpc_method_handler(
                handler, response_serializer=pb.UploadResult.SerializeToString
            )

        methods: dict[str, dict[str, Any]] = {
            SERVICE_NAMES[0]: {
                "Open": stream(self._clients.open),
                "Admit": admit(self._clients.open),
                "List": unary(self.list, pb.ListRequest, pb.ListResult),
                "Close": unary(self.close, pb.CloseRequest, pb.CloseResult),
                "Interrupt": unary(self.interrupt, pb.InterruptRequest, pb.InterruptResult),
                "Drain": unary(self.drain, pb.DrainRequest, pb.DrainResult),
                "Inspect": unary(self.inspect, pb.InspectRequest, pb.InspectResult),
                "Overview": unary(watching.overview, pb.OverviewRequest, pb.OverviewResult),
                "Logs": collect(watching.logs, pb.LogsRequest),
            },
            SERVICE_NAMES[1]: {
                "Register": stream(self._nodes.register),
                "Admit": admit(self._nodes.register),
                "Fetch": collect(self.fetch),
                "Push": bring(self.push),
            },
            SERVICE_NAMES[2]: {"Upload": bring(self.upload), "Download": collect(self.download)},
        }
        server.add_generic_rpc_handlers(
            tuple(
                grpc.method_handlers_generic_handler(name, handlers)
                for name, handlers in methods.items()
                if name in names
            )
        )

    def _admit(
        self, handler: Any, request: controller_pb2.PermitRequest, context: Context
    ) -> controller_pb2.Permit:
        """Admits the caller to a connection of frames, if this controller takes them."""
        if self._frames is None:
            return controller_pb2.Permit()
        metadata = tuple(context.invocation_metadata() or ())
        return self._frames.admit(handler, request, caller(), metadata)

    # Arrays -------------------------------------------------------------------------

    @guarded
    async def upload(self, stream: Stream, context: Context) -> controller_pb2.UploadResult:
        """Takes an array from a client and passes it on to a node, until that has it."""
        head = await self._head(stream, context)
        session = await self._of_client(head, context)
        link = await self._link(session, head, context)
        key = (session.session, "up", head.worker, head.ticket)
        with self._hub.transfers.opened(key, link.name, head.nbytes) as relay:
            relay.source.set_result(aiter(stream))
            _ask(link, EnvelopeKind.FETCH, session, head)
            try:
                await relay.done
            except NodeRefusedTransfer as error:
                await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, str(error)[:1000])
        return controller_pb2.UploadResult(nbytes=head.nbytes)

    @guarded
    async def download(self, head: controller_pb2.Transfer, context: Context) -> None:
        """Passes an array that a node pushes on to a client."""
        session = await self._of_client(head, context)
        link = await self._link(session, head, context)
        if head.there:
            _ask(link, EnvelopeKind.PUSH, session, head)
            return
        key = (session.session, "down", head.worker, head.ticket)
        with self._hub.transfers.opened(key, link.name) as relay:
            _ask(link, EnvelopeKind.PUSH, session, head)
            await relay.carry(context.write)
            relay.done.set_result(None)

    @guarded
    async def list(
        self, request: controller_pb2.ListRequest, _context: Context
    ) -> controller_pb2.ListResult:
        """Lists nodes and sessions."""
        if request.activity:
            await self._hub.overviews.refresh()
        cluster, who, now = self._hub.cluster, caller(), self._hub.clock()
        nodes = [
            node_info(node, len(node.free.slots))
            for node in sorted(cluster.members.nodes.values(), key=lambda node: natural(node.name))
        ]
        queued, room = cluster.queue.places(), cluster.waiting(now)
        sessions: list[controller_pb2.SessionInfo] = []
        for session in cluster.sessions.values():
            yours, place = who.owns(session.principal), queued.get(session.session)
            info = session_info(session, now, who.sees_places or yours, place, yours)
            fill_waits_for(info, room)
            if request.activity:
                info.state = self._hub.overviews.state_of(session)
            sessions.append(info)
        return controller_pb2.ListResult(
            nodes=nodes, sessions=sessions, version=__version__, dashboard=self._hub.dashboard
        )

    @guarded
    async def close(
        self, request: controller_pb2.CloseRequest, context: Context
    ) -> controller_pb2.CloseResult:
        """Ends a session; the caller must own it or know its key."""
        if request.name:
            session = await named(self._hub, request.name, context, "close refused")
        else:
            transfer = controller_pb2.Transfer(
                session=request.session, transfer_key=request.transfer_key
            )
            session = await self._authorised(transfer, context)
        own = not request.name
        self._hub.stop_session(session, caller(), peer_of(context), by_owner=own)
        return controller_pb2.CloseResult(session=session.session, name=session.name)

    @guarded
    async def interrupt(
        self, request: controller_pb2.InterruptRequest, context: Context
    ) -> controller_pb2.InterruptResult:
        """Has the program of a session interrupt it."""
        session = await named(self._hub, request.name, context, "interrupt refused")
        if not 0 <= request.grace_s <= MAX_GRACE_S:
            problem = f"expected a grace from 0 to {MAX_GRACE_S:g} s, got {request.grace_s:g}"
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, problem)
        try:
            late = await self._hub.interrupts.ask(
                session, caller(), peer_of(context), grace=request.grace_s, force=request.force
            )
        except CannotInterrupt as error:
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, str(error))
            raise AssertionError from None  # abort() raises; this tells the type checker
        return controller_pb2.InterruptResult(session=session.session, name=session.name, late=late)

    @guarded
    async def drain(
        self, request: controller_pb2.DrainRequest, context: Context
    ) -> controller_pb2.DrainResult:
        """Lets a node take no new sessions, or take them again."""
        cluster, who = self._hub.cluster, caller()
        problem = hidden_in(request.reason, "a reason")
        if problem is not None or len(request.reason) > MAX_NAME:
            problem = problem or f"expected a reason of at most {MAX_NAME} characters"
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, problem)
        try:
            name = cluster.members.find(request.node)
        except LookupError as error:
            await context.abort(grpc.StatusCode.NOT_FOUND, str(error.args[0]))
            raise AssertionError from None  # abort() raises; this tells the type checker
        self._hub.drain_node(name, who, peer_of(context), undo=request.undo, reason=request.reason)
        node, now = cluster.members.nodes.get(name), self._hub.clock()
        if node is not None:
            info = node_info(node, len(node.free.slots))
        else:
            drained = cluster.members.drained[name]
            info = controller_pb2.NodeInfo(name=name, state="away", drained=drained)
        there = [each for each in cluster.sessions.values() if each.runs_on(name)]
        return controller_pb2.DrainResult(
            node=info, sessions=[session_info(each, now) for each in there]
        )

    @guarded
    async def inspect(
        self, request: controller_pb2.InspectRequest, context: Context
    ) -> controller_pb2.InspectResult:
        """Returns what the ranks of a session do."""
        try:
            found = await self._hub.inspections.inspect(request, caller())
        except NotYours as error:
            await refuse_call(context, "inspection refused", request.name, str(error))
            raise AssertionError from None
        except LookupError as error:
            await context.abort(grpc.StatusCode.NOT_FOUND, str(error.args[0]))
            raise AssertionError from None  # abort() raises; this tells the type checker
        if not request.follow:
            cluster, number = self._hub.cluster, found.session
            known = cluster.sessions.get(number) or cluster.over.get(number)
            _audit_other("session inspected", known, context)
        return found

    @guarded
    async def fetch(self, head: controller_pb2.Transfer, context: Context) -> None:
        """Passes an upload on to the node that asks for it."""
        session = await self._authorised(head, context)
        relay = self._hub.transfers.join((session.session, "up", head.worker, head.ticket))
        try:
            await relay.carry(context.write)
        except BaseException:
            relay.fail("the node went away")
            raise

    @guarded
    async def push(self, stream: Stream, context: Context) -> controller_pb2.UploadResult:
        """Takes an array from a node and passes it on to the client."""
        head = await self._head(stream, context)
        session = await self._authorised(head, context)
        key = (session.session, "down", head.worker, head.ticket)
        await self._hub.transfers.bring(key, aiter(stream), head.nbytes)
        return controller_pb2.UploadResult(nbytes=head.nbytes)

    # Checks --------------------------------------------------------------------------------

    async def _head(self, stream: Stream, context: Context) -> controller_pb2.Transfer:
        first = await first_message(CallCarrier(stream, context))
        chunk = controller_pb2.ArrayChunk.FromString(first or b"")
        if not chunk.HasField("transfer"):
            await context.abort(
                grpc.StatusCode.INVALID_ARGUMENT, "expected a chunk that names its transfer first"
            )
        return chunk.transfer

    async def _authorised(self, head: controller_pb2.Transfer, context: Context) -> SessionTable:
        who = caller()
        session = self._hub.session_of(head, who)
        known = self._hub.cluster.sessions.get(head.session)
        if session is None and known is not None and not who.may_carry(known.principal):
            await refuse_call(context, "call refused", known.name, not_yours(known.name))
        if session is None:
            await context.abort(grpc.StatusCode.NOT_FOUND, "no running session of that id and key")
            raise AssertionError  # abort() raises; this tells the type checker
        return session

    async def _of_client(self, head: controller_pb2.Transfer, context: Context) -> SessionTable:
        """The session of a client; waits for it while nodes may still report it."""
        hub = self._hub
        while head.session not in hub.cluster.sessions and hub.clock() < hub.settled_at:
            await hub.change(hub.settled_at - hub.clock())
        return await self._authorised(head, context)

    async def _link(
        self, session: SessionTable, head: controller_pb2.Transfer, context: Context
    ) -> NodeLink:
        """The stream of a worker's node; waits while the node is disconnected."""
        name = self._hub.node_of_worker(session, head.worker)
        if name is None:
            await context.abort(
                grpc.StatusCode.INVALID_ARGUMENT, f"the session has no worker {head.worker}"
            )
            raise AssertionError  # abort() raises; this tells the type checker
        while session.alive:
            link = self._hub.links.get(name)
            if link is not None:
                return link
            await self._hub.change(None)
        # Another daemon may have the node's name by now, and would never answer.
        msg = "the session ended"
        raise ConnectionError(msg)


def _ask(
    link: NodeLink, kind: EnvelopeKind, session: SessionTable, head: controller_pb2.Transfer
) -> None:
    """Tells the node of a worker to do its part of a transfer."""
    raw = envelope(kind, head.SerializeToString(), session=session.session)
    link.outbox.post(raw, session=session.session)
