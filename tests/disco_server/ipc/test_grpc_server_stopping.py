"""Servers that stop leave nothing behind in their event loop."""

from __future__ import annotations

import asyncio

import grpc
import pytest

from disco_server.ipc.grpc_server import stop_server


@pytest.mark.parametrize("grace", [None, 0.01])
def test_the_tasks_of_open_calls_have_ended(tmp_path, grace):
    """After it only the caller's own task runs, although calls were open."""

    async def serve():
        begun = asyncio.Semaphore(0)

        async def wait_for_ever(_request, _context):
            begun.release()
            try:
                await asyncio.Event().wait()
            finally:
                await asyncio.sleep(0.05)  # as handlers do that tidy up

        server = grpc.aio.server()
        handler = grpc.unary_stream_rpc_method_handler(wait_for_ever)
        service = grpc.method_handlers_generic_handler("test", {"Wait": handler})
        server.add_generic_rpc_handlers((service,))
        server.add_insecure_port(f"unix:{tmp_path}/door")
        await server.start()
        async with grpc.aio.insecure_channel(f"unix:{tmp_path}/door") as channel:
            calls = [channel.unary_stream("/test/Wait")(b"") for _ in range(3)]
            reading = [asyncio.ensure_future(call.read()) for call in calls]
            for _ in calls:
                await begun.acquire()
            await stop_server(server, grace)
            left = asyncio.all_tasks() - {asyncio.current_task(), *reading}
            await asyncio.gather(*reading, return_exceptions=True)
        return left

    assert asyncio.run(serve()) == set()
