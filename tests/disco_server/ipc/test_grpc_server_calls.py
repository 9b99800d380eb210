"""Requests that are no messages: INVALID_ARGUMENT, over a real connection."""

from __future__ import annotations

import asyncio

import grpc
import pytest

from disco_client.pb import controller_pb2
from disco_server.ipc.grpc_server import parsed


def test_what_is_no_message_ends_the_call_with_a_status():
    """The handler is not called for it; a message reaches it."""
    seen = []

    async def handler(request, _context):
        seen.append(request.name)
        return b"done"

    async def scenario():
        method = grpc.unary_unary_rpc_method_handler(parsed(handler, controller_pb2.InspectRequest))
        server = grpc.aio.server()
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("s", {"M": method}),))
        port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            call = channel.unary_unary("/s/M")
            good = controller_pb2.InspectRequest(name="x").SerializeToString()
            assert await call(good) == b"done"
            with pytest.raises(grpc.aio.AioRpcError) as raised:
                await call(b"\xff\xff\xff")
            assert raised.value.code() is grpc.StatusCode.INVALID_ARGUMENT
            assert raised.value.details() == "expected a disco.v1 message"
        await server.stop(None)

    asyncio.run(scenario())
    assert seen == ["x"]
