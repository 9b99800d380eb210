"""What all streams of the controller share: how long a silent peer may stay."""

from __future__ import annotations

import asyncio
import gc

import grpc
import pytest
from grpc._cython import cygrpc

from disco_client.pb import controller_pb2
from disco_server.controller import edge
from disco_server.controller.relay import TransferRelay
from disco_server.ipc.outbox import Outbox


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


def test_a_call_that_outlasts_its_server_is_no_failure(caplog):
    """What gRPC raises then is for gRPC."""

    @edge.guarded
    async def handler(_self, _request, _context):
        raise cygrpc._ServerStoppedError

    with pytest.raises(cygrpc._ServerStoppedError):
        asyncio.run(handler(None, None, None))
    assert not caplog.records


def test_a_write_to_a_client_that_has_left_ends_the_call_without_a_traceback(
    serve, caplog, monkeypatch
):
    """Of a download, where gRPC has not yet cancelled the call; the transfer ends with it."""
    caplog.set_level("INFO")
    begun = []

    async def carry(meeting, _write):
        begun.append(meeting)
        raise cygrpc.ExecuteBatchError("send", (), None)

    monkeypatch.setattr(TransferRelay, "carry", carry)

    async def scenario(rig):
        node = await rig.node("one")
        _, session, ready = await rig.session(node)
        wanted = controller_pb2.Transfer(session=session, transfer_key=ready.transfer_key)
        download = rig.collect("ArrayService/Download", wanted)
        await rig.until(lambda: begun)
        download.cancel()
        assert not rig.hub.transfers._relays

    serve(scenario)
    assert not [record for record in caplog.records if "Download" in record.getMessage()]


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
