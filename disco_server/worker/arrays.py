"""Host arrays between the controller's streams and the memory shared with a rank."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from typing import Any

import grpc

from disco_client.pb import controller_pb2
from disco_client.wire.arrays import CHUNK_BYTES, chunk_data, encode_chunk
from disco_server.channels.shared import allocate, map_shared

__all__ = ["ArrayCarrier"]

_SERVICE = "/disco.v1.NodeService/"


class ArrayCarrier:
    """Moves arrays over one connection to the controller."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self._fetch: Any = channel.unary_stream(
            _SERVICE + "Fetch",
            request_serializer=controller_pb2.Transfer.SerializeToString,
        )
        self._push: Any = channel.stream_unary(
            _SERVICE + "Push",
            response_deserializer=controller_pb2.UploadResult.FromString,
        )

    async def fetch(self, transfer: controller_pb2.Transfer) -> int:
        """Collects an upload into shared memory and returns its descriptor.

        Raises:
            OSError: There is no room, or the upload is not of the size it named.
            grpc.RpcError: The session or the client went away.
        """
        fd = allocate(transfer.nbytes)
        try:
            with map_shared(fd, transfer.nbytes) as shared:
                at = 0
                async for raw in self._fetch(transfer):
                    data = chunk_data(raw)
                    shared[at : at + len(data)] = data
                    at += len(data)
            _check_size(transfer.nbytes, at)
        except BaseException:
            os.close(fd)
            raise
        return fd

    async def push(self, transfer: controller_pb2.Transfer, fd: int) -> None:
        """Sends the array that a rank offers to the client; closes the descriptor.

        Raises:
            grpc.RpcError: The session or the client went away.
        """
        try:
            shared = map_shared(fd, transfer.nbytes)
        finally:
            os.close(fd)

        async def chunks() -> AsyncIterator[bytes]:
            yield controller_pb2.ArrayChunk(transfer=transfer).SerializeToString()
            with memoryview(shared) as view:
                for start in range(0, len(view), CHUNK_BYTES):
                    with view[start : start + CHUNK_BYTES] as piece:
                        yield encode_chunk(piece)

        try:
            await self._push(chunks())
        finally:
            shared.close()


def _check_size(expected: int, got: int) -> None:
    if expected != got:
        msg = f"expected an upload of {expected} bytes, got {got}"
        raise OSError(msg)
