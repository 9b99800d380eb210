"""What all streams of the controller share: how long a silent peer may stay."""

from __future__ import annotations

import asyncio
import gc

import grpc
import pytest
from grpc._cython import cygrpc

from disco_server.controller import edge
from disco_server.ipc.grpc_server import Outbox


def test_a_peer_that_says_nothing_is_sent_away(serve, monkeypatch):
    """On each stream that begins with a message; it holds no place for long."""
    monkeypatch.setattr(edge, "FIRST_MESSAGE_S", 0.05)

    async def scenario(rig):
        for method in ("SessionService/Open", "NodeService/Register"):
            call = rig.channel.stream_stream(f"/disco.v1.{method}")()
            with pytest.raises(grpc.aio.AioRpcError, match="expected a first message"):
                await call.read()
        call = rig.channel.stream_unary("/disco.v1.ArrayService/Upload")()
        with pytest.raises(grpc.aio.AioRpcError, match="expected a first message"):
            await call

    serve(scenario)


@pytest.mark.parametrize(
    "raised", [cygrpc._ServerStoppedError(), cygrpc.ExecuteBatchError("send", (), None)], ids=type
)
def test_a_call_that_is_cut_off_is_no_failure(caplog, raised):
    """What gRPC raises when the server stops or the client has gone is for gRPC."""

    @edge.guarded
    async def handler(_self, _request, _context):
        raise raised

    with pytest.raises(type(raised)):
        asyncio.run(handler(None, None, None))
    assert not caplog.records


def test_a_write_that_fails_when_nobody_waits_any_more_says_nothing(caplog):
    """A peer that breaks off cancels the handler once more while its stream ends."""

    async def scenario():
        cut = asyncio.Event()

        async def write(_raw):
            await cut.wait()
            raise cygrpc.ExecuteBatchError("send", (), None)

        outbox = Outbox()
        outbox.post(b"a message")
        writing = asyncio.ensure_future(outbox.run(write))
        reading = asyncio.ensure_future(asyncio.Event().wait())
        ending = asyncio.ensure_future(edge.end_stream(outbox, writing, reading))
        await asyncio.sleep(0)
        ending.cancel()
        with pytest.raises(asyncio.CancelledError):
            await ending
        cut.set()
        await asyncio.wait((writing,))

    asyncio.run(scenario())
    gc.collect()
    assert not caplog.records
