"""A controller's edge on a free port, and peers that speak its protocol byte by byte."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable
from typing import Any

import grpc
import pytest

from disco_client.pb import controller_pb2, envelope_pb2, node_pb2
from disco_client.transport.channel import target
from disco_client.transport.grpc_options import CHANNEL_OPTIONS, SERVER_OPTIONS
from disco_client.wire.codec import PROTOCOL, EnvelopeKind, envelope, envelopes_in
from disco_server.controller.hub import Hub
from disco_server.controller.service import Edge
from disco_server.ipc.grpc_server import stop_server
from disco_server.ipc.shares import workers_of

LIMIT_S = 20.0


class Peer:
    """One stream to the controller; heartbeats are read over.

    Attributes:
        call: The stream.
        name: Of a node: what it is called.
    """

    def __init__(self, call: Any) -> None:
        self.call = call
        self._came: deque[bytes] = deque()
        self.name = ""

    async def send(self, kind: EnvelopeKind, message: Any = None, **fields: Any) -> None:
        payload = b"" if message is None else message.SerializeToString()
        await self.call.write(envelope(kind, payload, **fields))

    async def raw(self) -> bytes | None:
        """The next envelope as it came; None at the stream's end."""
        while not self._came and (message := await self.call.read()) is not grpc.aio.EOF:
            self._came.extend(
                raw
                for raw, received in envelopes_in(message)
                if received.kind != EnvelopeKind.HEARTBEAT
            )
        return self._came.popleft() if self._came else None

    async def next(
        self, kind: EnvelopeKind, message: Any = controller_pb2.ListRequest
    ) -> tuple[int, Any]:
        """The session and the content of the next envelope, which must be of this kind."""
        raw = await self.raw()
        assert raw is not None, f"the stream ended instead of {kind!r}"
        received = envelope_pb2.Envelope.FromString(raw)
        assert EnvelopeKind(received.kind) is kind
        return received.session, message.FromString(received.payload)

    async def ended(self) -> controller_pb2.SessionEnded:
        """Why the session is over; the stream must end with it."""
        _, ended = await self.next(EnvelopeKind.ENDED, controller_pb2.SessionEnded)
        assert await self.raw() is None
        return ended

    async def refused(self) -> str:
        """Why the controller will have nothing to do with this peer."""
        _, refused = await self.next(EnvelopeKind.REFUSED, node_pb2.Refused)
        assert await self.raw() is None
        return refused.message

    async def start_ranks(self) -> tuple[int, node_pb2.StartRanks]:
        """As a node: says that the ranks it is asked for run; returns what it was asked."""
        session, start = await self.next(EnvelopeKind.START_RANKS, node_pb2.StartRanks)
        mine = start.nodes[start.node_index]
        assert mine.node == self.name
        ranks = [
            controller_pb2.RankInfo(worker=w, pid=100 + w, device="cpu") for w in workers_of(mine)
        ]
        await self.send(EnvelopeKind.RANKS_READY, node_pb2.RanksReady(ranks=ranks), session=session)
        return session, start

    async def end_session(self, session: int) -> None:
        """As a node: is told to end a session, and says that nothing of it is left."""
        assert (await self.next(EnvelopeKind.END_SESSION))[0] == session
        await self.send(EnvelopeKind.SESSION_GONE, session=session)


class Rig:
    """One controller, and what its peers need to speak to it.

    Attributes:
        hub: Its centre; to look into, and to let time pass. None in another process.
    """

    def __init__(self, hub: Any, channel: grpc.aio.Channel) -> None:
        self.hub = hub
        self.channel: Any = channel
        self.peers: list[Peer] = []

    def stream(self, method: str) -> Peer:
        self.peers.append(Peer(self.channel.stream_stream(f"/disco.v1.{method}")()))
        return self.peers[-1]

    async def node(self, name: str, slots: int = 2, **fields: Any) -> Peer:
        """A worker daemon that has registered."""
        peer = await self.newcomer(name=name, devices=["cpu"] * slots, **fields)
        await peer.next(EnvelopeKind.REGISTERED, node_pb2.NodeRegistered)
        peer.name = name
        return peer

    async def newcomer(self, **fields: Any) -> Peer:
        """A worker daemon that has asked to register."""
        peer = self.stream("NodeService/Register")
        usual = {"protocol": PROTOCOL, "version": "1", "host": "attic", "devices": ["cpu"]}
        await peer.send(EnvelopeKind.REGISTER, node_pb2.RegisterNode(**{**usual, **fields}))
        return peer

    async def client(self, **fields: Any) -> Peer:
        """A client that has asked for a session."""
        peer = self.stream("SessionService/Open")
        usual = {
            "protocol": PROTOCOL,
            "version": "1",
            "num_workers": 2,
            "num_groups": 1,
            "timeout_s": 60.0,
            "owner": "me@here:1",
        }
        await peer.send(EnvelopeKind.CREATE, controller_pb2.CreateSession(**{**usual, **fields}))
        return peer

    async def attacher(self, **fields: Any) -> Peer:
        """A client that has asked to go on with a session."""
        peer = self.stream("SessionService/Open")
        usual = {"protocol": PROTOCOL, "version": "1", "owner": "you@there:2"}
        await peer.send(EnvelopeKind.ATTACH, controller_pb2.AttachSession(**{**usual, **fields}))
        return peer

    async def session(
        self, *nodes: Peer, **fields: Any
    ) -> tuple[Peer, int, controller_pb2.SessionReady]:
        """A client whose session runs on these nodes, its id, and what READY said."""
        client = await self.client(**fields)
        for node in nodes:
            await node.start_ranks()
        session, ready = await client.next(EnvelopeKind.READY, controller_pb2.SessionReady)
        return client, session, ready

    def ask(self, method: str, request: Any, result: Any) -> Any:
        """Calls what is answered once."""
        call = self.channel.unary_unary(
            f"/disco.v1.{method}",
            request_serializer=type(request).SerializeToString,
            response_deserializer=result.FromString,
        )
        return call(request, timeout=LIMIT_S)

    def bring(self, method: str, raws: AsyncIterator[bytes]) -> Any:
        """Sends a stream of chunks that is answered once."""
        call = self.channel.stream_unary(
            f"/disco.v1.{method}", response_deserializer=controller_pb2.UploadResult.FromString
        )
        return call(raws, timeout=LIMIT_S)

    def collect(self, method: str, transfer: controller_pb2.Transfer) -> Any:
        """Asks for a stream of chunks."""
        call = self.channel.unary_stream(
            f"/disco.v1.{method}",
            request_serializer=controller_pb2.Transfer.SerializeToString,
        )
        return call(transfer, timeout=LIMIT_S)

    def envelope(self, raw: bytes) -> envelope_pb2.Envelope:
        return envelope_pb2.Envelope.FromString(raw)

    async def status(self, call: Any) -> tuple[grpc.StatusCode, str]:
        """How a call, or the reading of a stream, failed."""
        with pytest.raises(grpc.aio.AioRpcError) as failed:
            await call
        return failed.value.code(), failed.value.details()

    async def until(self, condition: Callable[[], object]) -> None:
        """Lets the loop turn until something is so; the scenario's limit ends it otherwise."""
        while not condition():  # noqa: ASYNC110  (a daemon sets no events for tests)
            await asyncio.sleep(0.001)


@pytest.fixture(scope="module")
def runner():
    """One event loop for all scenarios of a file, as a daemon has one."""
    with asyncio.Runner() as running:
        yield running


async def play(scenario, address, hub=None):
    """Runs a scenario with a connection to a controller; its streams end with it."""
    async with (
        asyncio.timeout(LIMIT_S),
        grpc.aio.insecure_channel(target(address), CHANNEL_OPTIONS) as channel,
    ):
        rig = Rig(hub, channel)
        try:
            await scenario(rig)
        finally:
            for peer in rig.peers:
                peer.call.cancel()


@pytest.fixture
def dial(runner):
    """Runs a scenario against a controller that listens somewhere."""

    def run(address, scenario):
        runner.run(play(scenario, address))

    return run


@pytest.fixture
def serve(runner):
    """Runs a scenario against a controller of its own; nothing of it outlives the test."""

    def run(scenario, lease=10.0):
        async def served():
            hub = Hub(session_lease=lease, node_lease=5.0, heartbeat=2.0)
            server = grpc.aio.server(options=SERVER_OPTIONS)
            Edge(hub).add_to(server)
            port = server.add_insecure_port("127.0.0.1:0")
            await server.start()
            try:
                await play(scenario, f"127.0.0.1:{port}", hub)
            finally:
                await stop_server(server, None)

        runner.run(served())

    return run
