"""What all streams of the controller share: how long a silent peer may stay."""

from __future__ import annotations

import asyncio

import grpc
import pytest
from grpc._cython import cygrpc

from disco_server.controller import streams


def test_a_peer_that_says_nothing_is_sent_away(serve, monkeypatch):
    """On each stream that begins with a message; it holds no place for long."""
    monkeypatch.setattr(streams, "FIRST_MESSAGE_S", 0.05)

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

    @streams.guarded
    async def handler(_self, _request, _context):
        raise raised

    with pytest.raises(type(raised)):
        asyncio.run(handler(None, None, None))
    assert not caplog.records
