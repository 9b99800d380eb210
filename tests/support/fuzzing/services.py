"""The controller's two kinds of streams, with whatever envelopes a peer sends."""

from __future__ import annotations

import asyncio
import itertools
import time

import grpc

from disco_client.pb import controller_pb2, node_pb2
from disco_client.wire.codec import PROTOCOL, EnvelopeKind, envelope, envelopes_in
from disco_server.controller.hub import Hub
from disco_server.controller.node_streams import NodeStreams
from disco_server.controller.session_streams import ClientStreams
from disco_server.ipc.carriers import CallCarrier

__all__ = ["SERVICE_ERRORS", "client_stream", "controller_seeds", "node_stream"]

LONGEST_S = 4.0


class Aborted(Exception):
    """The handler ended the call with a status, which is an answer."""


SERVICE_ERRORS = (Aborted,)


class Call:
    """gRPC's side of one call: takes what is written, and the status."""

    def __init__(self):
        self.written = []
        self.status = None

    def peer(self):
        return "ipv4:127.0.0.1:1"

    def invocation_metadata(self):
        return (("traceparent", "00-" + "1" * 32 + "-" + "2" * 16 + "-01"),)

    async def write(self, raw):
        self.written.extend(each for each, _ in envelopes_in(raw))

    async def abort(self, code, details=""):
        assert code is not grpc.StatusCode.INTERNAL, details
        assert len(details) <= 2000, "a status must fit into a header"
        self.status = code, details
        raise grpc.aio.AbortError


def split(data):
    """Bytes to messages: each has its length in the two bytes before it."""
    at = 0
    while at + 2 <= len(data):
        size = int.from_bytes(data[at : at + 2], "little")
        yield data[at + 2 : at + 2 + size]
        at += 2 + size


def join(messages):
    return b"".join(len(raw).to_bytes(2, "little") + raw for raw in messages)


async def stream_of(messages):
    for raw in messages:
        yield raw
        await asyncio.sleep(0)


def serve(data, make_handler):
    """Lets a new controller with a node serve one stream of messages."""

    async def scenario():
        hub = Hub(0.001, 0.001, 1000.0, node_return=0.001)
        hub.settled_at = time.monotonic()
        call = Call()
        async with asyncio.timeout(LONGEST_S):
            try:
                await make_handler(hub)(CallCarrier(stream_of(split(data)), call))
            except grpc.aio.AbortError:
                raise Aborted(str(call.status)) from None
            finally:
                hub.tick()
                hub.beat()
        return call.written

    return asyncio.run(scenario())


def client_stream(data):
    return serve(data, lambda hub: ClientStreams(hub).open)


def node_stream(data):
    return serve(data, lambda hub: NodeStreams(hub, private=True).register)


def controller_seeds():
    """What clients and nodes say first, and then."""
    create = controller_pb2.CreateSession(
        protocol=PROTOCOL, num_workers=1, num_groups=1, timeout_s=5, name="s", version="0"
    )
    attach = controller_pb2.AttachSession(protocol=PROTOCOL, name="s", version="0")
    register = node_pb2.RegisterNode(
        protocol=PROTOCOL, name="n", devices=["cpu", "cpu"], version="0", incarnation=1
    )
    run = register.sessions.add(session=9)
    run.start.num_workers, run.start.num_groups, run.start.session_name = 1, 1, "old"
    run.start.nodes.add(node="n", num_workers=1, devices=["cpu"], slots=[0])
    run.ranks.add(worker=0, node="n", pid=1, device="cpu")
    ready = node_pb2.RanksReady()
    ready.ranks.add(worker=0, node="n", pid=1, device="cpu")
    fence = node_pb2.FenceRequest(name="f", participants=1, items={"k": b"v"})
    put = node_pb2.PutRequest(items={"k": b"v"}, timeout_s=1)
    get = node_pb2.GetRequest(key="l", timeout_s=0.001)
    firsts = [
        envelope(EnvelopeKind.CREATE, create.SerializeToString()),
        envelope(EnvelopeKind.ATTACH, attach.SerializeToString()),
        envelope(EnvelopeKind.REGISTER, register.SerializeToString()),
    ]
    later = [
        envelope(EnvelopeKind.BATCH, b"x", session=9, first_seq=1, last_seq=1),
        envelope(EnvelopeKind.DETACH, controller_pb2.DetachSession(lease_s=1).SerializeToString()),
        envelope(EnvelopeKind.RANKS_READY, ready.SerializeToString(), session=9),
        envelope(
            EnvelopeKind.RANK_EXITED, node_pb2.RankExited(worker=0).SerializeToString(), session=9
        ),
        envelope(EnvelopeKind.INSPECTED, node_pb2.NodeInspected(request=1).SerializeToString()),
        envelope(EnvelopeKind.SESSION_GONE, session=9),
        envelope(EnvelopeKind.OPEN_CCL, session=9, worker=0),
        envelope(EnvelopeKind.FENCE, fence.SerializeToString(), session=9),
        envelope(EnvelopeKind.PUT_KEY, put.SerializeToString(), session=9, worker=0, first_seq=1),
        envelope(EnvelopeKind.GET_KEY, get.SerializeToString(), session=9, worker=0, first_seq=2),
        envelope(EnvelopeKind.DRAIN),
        envelope(EnvelopeKind.CORDON),
        envelope(EnvelopeKind.CLOSE),
    ]
    pairs = itertools.product(firsts, later)
    return [*(join([first, then]) for first, then in pairs), *(join([f, *later]) for f in firsts)]
