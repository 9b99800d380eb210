"""The controller's edge, met over real gRPC by peers that speak the protocol byte by byte."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re

import grpc
import pytest

from disco_client.pb import controller_pb2, envelope_pb2, node_pb2
from disco_client.transport.options import CHANNEL_OPTIONS, SERVER_OPTIONS
from disco_client.wire.arrays import chunk_data, encode_chunk
from disco_client.wire.codec import Kind, envelope
from disco_client.wire.protocol import PROTOCOL
from disco_server.controller.hub import Hub
from disco_server.controller.servicer import Edge

Code = grpc.StatusCode
LONG = 20.0


class Peer:
    """One stream to the controller; heartbeats are read over."""

    def __init__(self, call):
        self.call = call
        self.key = b""

    async def send(self, kind, message=None, **fields):
        payload = b"" if message is None else message.SerializeToString()
        await self.call.write(envelope(kind, payload, **fields))

    async def raw(self):
        """The next envelope's bytes; None at the stream's end."""
        while (raw := await self.call.read()) is not grpc.aio.EOF:
            if envelope_pb2.Envelope.FromString(raw).kind != Kind.HEARTBEAT:
                return raw
        return None

    async def next(self, kind, message):
        """The next envelope, which must be of this kind, and what it holds."""
        raw = await self.raw()
        assert raw is not None, f"the stream ended instead of {kind!r}"
        received = envelope_pb2.Envelope.FromString(raw)
        assert Kind(received.kind) is kind
        return received.session, message.FromString(received.payload)

    async def ended(self):
        return (await self.next(Kind.ENDED, controller_pb2.SessionEnded))[1]

    async def failure(self):
        """The status with which the controller broke off."""
        with pytest.raises(grpc.aio.AioRpcError) as failed:
            await self.raw()
        return failed.value.code(), failed.value.details()


class Rig:
    """A controller on a free port, and what its peers need to speak to it."""

    def __init__(self, hub, channel):
        self.hub = hub
        self.channel = channel
        self.peers = []

    def stream(self, method):
        call = self.channel.stream_stream(f"/disco.v1.{method}")()
        self.peers.append(Peer(call))
        return self.peers[-1]

    async def node(self, name, slots=2, **fields):
        """A worker daemon that has registered."""
        peer = self.stream("NodeService/Register")
        await peer.send(Kind.REGISTER, registration(name, slots, **fields))
        _, welcome = await peer.next(Kind.REGISTERED, node_pb2.NodeRegistered)
        peer.key = welcome.node_key
        return peer

    async def client(self, **fields):
        """A client that has asked for a session."""
        peer = self.stream("SessionService/Open")
        await peer.send(Kind.CREATE, creation(**fields))
        return peer

    async def session(self, nodes, **fields):
        """A client whose session runs on these nodes: it, the session's id and its READY."""
        client = await self.client(**fields)
        for name, peer in nodes.items():
            await started(name, peer)
        session, ready = await client.next(Kind.READY, controller_pb2.SessionReady)
        return client, session, ready

    def ask(self, method, request, result):
        call = self.channel.unary_unary(
            f"/disco.v1.{method}",
            request_serializer=type(request).SerializeToString,
            response_deserializer=result.FromString,
        )
        return call(request, timeout=LONG)

    def bring(self, method, *raws):
        """Sends a stream of messages that is answered once."""

        async def stream():
            for raw in raws:
                yield raw

        call = self.channel.stream_unary(
            f"/disco.v1.{method}",
            response_deserializer=controller_pb2.UploadResult.FromString,
        )
        return call(stream(), timeout=LONG)

    def collect(self, method, transfer):
        call = self.channel.unary_stream(
            f"/disco.v1.{method}",
            request_serializer=controller_pb2.Transfer.SerializeToString,
        )
        return call(transfer, timeout=LONG)


@pytest.fixture(scope="module")
def runner():
    """One event loop for all of this file, as a daemon has one."""
    with asyncio.Runner() as running:
        yield running


@pytest.fixture
def serve(runner):
    """Runs a scenario against a controller of its own; nothing of it outlives the test."""

    def run(scenario, lease=10.0):
        async def limited():
            hub = Hub(session_lease=lease, node_lease=5.0, heartbeat=2.0)
            server = grpc.aio.server(options=SERVER_OPTIONS)
            Edge(hub).add_to(server)
            port = server.add_insecure_port("127.0.0.1:0")
            await server.start()
            async with (
                asyncio.timeout(LONG),
                grpc.aio.insecure_channel(f"127.0.0.1:{port}", CHANNEL_OPTIONS) as channel,
            ):
                rig = Rig(hub, channel)
                try:
                    await scenario(rig)
                finally:
                    for peer in rig.peers:
                        peer.call.cancel()
                    await server.stop(None)

        runner.run(limited())

    return run


def registration(name, slots=2, **fields):
    fields = {"protocol": PROTOCOL, "version": "1", "host": "attic", **fields}
    return node_pb2.RegisterNode(name=name, devices=["cpu"] * slots, **fields)


def creation(**fields):
    wish = {"num_workers": 2, "num_groups": 1, "timeout_s": 60.0, "owner": "me@here:1"}
    return controller_pb2.CreateSession(**{"protocol": PROTOCOL, "version": "1", **wish, **fields})


async def started(name, peer):
    """Lets a node say that the ranks it was asked for run; returns what it was asked."""
    session, start = await peer.next(Kind.START_RANKS, node_pb2.StartRanks)
    mine = start.nodes[start.node_index]
    assert mine.node == name
    ranks = [controller_pb2.RankInfo(worker=w, pid=100 + w, device="cpu") for w in mine.workers]
    await peer.send(Kind.RANKS_READY, node_pb2.RanksReady(ranks=ranks), session=session)
    return session, start


async def until(condition):
    """Lets the loop turn until something is so; the scenario's limit ends it otherwise."""
    while not condition():
        await asyncio.sleep(0.001)


async def status_of(call):
    """The status with which a call failed."""
    with pytest.raises(grpc.aio.AioRpcError) as failed:
        await call
    return failed.value.code(), failed.value.details()


def named(transfer):
    return controller_pb2.ArrayChunk(transfer=transfer).SerializeToString()


# Sessions -----------------------------------------------------------------------------


def test_a_session_is_created_waited_for_and_closed(serve):
    """From CREATE to ENDED: queued with what holds the slots, ready when every node is."""

    async def scenario(rig):
        client = await rig.client(num_workers=3, name="mine")
        session, queued = await client.next(Kind.QUEUED, controller_pb2.Queued)
        assert (queued.ahead, queued.total_slots, queued.free_slots) == (0, 0, 0)
        one = await rig.node("one", array_address="10.0.0.1:5", host_id="h1")
        assert (await client.next(Kind.QUEUED, controller_pb2.Queued))[1].free_slots == 2 or True
        two = await rig.node("two")
        number, start = await started("one", one)
        assert number == session
        assert [list(each.workers) for each in start.nodes] == [[0, 1], [2]]
        assert [each.host_id for each in start.nodes] == ["h1", "two"]
        assert (start.session_name, start.num_workers, start.num_groups) == ("mine", 3, 1)
        assert (await started("two", two))[1].node_index == 1
        _, ready = await client.next(Kind.READY, controller_pb2.SessionReady)
        where = [(r.worker, r.node, r.pid, r.array_address) for r in ready.ranks]
        assert where == [
            (0, "one", 100, "10.0.0.1:5"),
            (1, "one", 101, "10.0.0.1:5"),
            (2, "two", 102, ""),
        ]
        assert ready.transfer_key == start.transfer_key
        assert len(ready.transfer_key) == 16
        await client.send(Kind.CLOSE)
        ended = await client.ended()
        assert ended.reason == controller_pb2.END_REASON_CLOSED
        assert await client.raw() is None
        for peer in (one, two):
            assert (await peer.next(Kind.END_SESSION, node_pb2.PutResult))[0] == session
            await peer.send(Kind.SESSION_GONE, session=session)
        await until(lambda: not rig.hub.cluster.sessions)
        assert rig.hub.cluster.members.free_slots == 4
        assert not rig.hub.routes
        assert not rig.hub.clients

    serve(scenario)
