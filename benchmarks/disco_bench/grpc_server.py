"""The raw gRPC server of the yardsticks, as bare as grpcio allows; a process of its own.

It is asynchronous as the controller is, and does nothing with what it gets.
"""

from __future__ import annotations

import asyncio
import os
import sys
import threading
from collections.abc import AsyncIterator
from typing import Any

import grpc

from disco_bench.grpc_yardstick import CHUNK_BYTES, SERVICE

__all__ = ["main"]


async def _ping(requests: AsyncIterator[bytes], context: Any) -> None:
    async for message in requests:
        await context.write(message)


async def _upload(requests: AsyncIterator[bytes], _context: Any) -> bytes:
    total = 0
    async for message in requests:
        total += len(message)
    return str(total).encode()


async def _download(request: bytes, context: Any) -> None:
    chunk = bytes(CHUNK_BYTES)
    for _ in range(int(request)):
        await context.write(chunk)


async def _serve() -> None:
    server = grpc.aio.server()
    handlers: dict[str, Any] = {
        "Ping": grpc.stream_stream_rpc_method_handler(_ping),
        "Upload": grpc.stream_unary_rpc_method_handler(_upload),
        "Download": grpc.unary_stream_rpc_method_handler(_download),
    }
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, handlers),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    print(port, flush=True)
    await server.wait_for_termination()


def _leave_with_parent() -> None:
    sys.stdin.buffer.read()
    os._exit(0)


def main() -> None:
    """Serves until standard input ends."""
    threading.Thread(target=_leave_with_parent, daemon=True).start()
    asyncio.run(_serve())


if __name__ == "__main__":
    main()
