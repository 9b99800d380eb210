"""Host arrays between gRPC streams and the memory that is shared with a rank."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from typing import Any, cast

import grpc
import numpy as np

from disco_client.pb import controller_pb2
from disco_client.transport.shared import SharedPool, allocate, read_shared, write_shared
from disco_client.wire.arrays import CHUNK_BYTES, byte_view, chunk_data, empty_array, encode_chunk

__all__ = ["ArrayCarrier", "Offers", "receive_array", "send_array"]

_SERVICE = "/disco.v1.NodeService/"


async def receive_array(
    chunks: AsyncIterator[bytes], nbytes: int, memory: SharedPool | None = None
) -> int:
    """Collects an array into shared memory and returns its descriptor.

    Args:
        chunks: Encoded data chunks.
        nbytes: The array's size.
        memory: Where the memory comes from; None makes new one.

    Raises:
        OSError: There is no room, or what came is of another size.
        grpc.RpcError: The sender went away.
    """
    fd = allocate(nbytes) if memory is None else memory.take(nbytes)
    try:
        at = 0
        async for raw in chunks:
            data = chunk_data(raw)
            _check_size(nbytes, at + len(data), at_most=True)
            write_shared(fd, data, at)
            at += len(data)
        _check_size(nbytes, at)
    except BaseException:
        os.close(fd)
        raise
    return fd


async def send_array(fd: int, nbytes: int) -> AsyncIterator[bytes]:
    """Yields an array in encoded data chunks; closes the descriptor.

    Raises:
        OSError: The memory is smaller.
    """
    # Read again and again into the same place: mapping the memory takes as long
    # as reading it, and so does clearing fresh pages for each piece.
    piece = byte_view(empty_array((min(nbytes, CHUNK_BYTES),), np.dtype(np.uint8)))
    try:
        for start in range(0, nbytes, CHUNK_BYTES):
            part = piece[: nbytes - start]
            read_shared(fd, part, start)
            yield encode_chunk(part)
    finally:
        os.close(fd)


def _check_size(expected: int, got: int, *, at_most: bool = False) -> None:
    if got > expected or (got < expected and not at_most):
        msg = f"expected an array of {expected} bytes, got {got}{' or more' * at_most}"
        raise OSError(msg)


class Offers:
    """The arrays that one session's ranks offer, until somebody asks for them."""

    def __init__(self) -> None:
        self._offers: dict[tuple[int, int], tuple[int, int]] = {}

    def add(self, worker: int, ticket: int, fd: int, nbytes: int) -> None:
        """Keeps an array; the descriptor belongs to this object from now on."""
        self._offers[worker, ticket] = (fd, nbytes)

    def take(self, worker: int, ticket: int) -> tuple[int, int]:
        """Returns an array's descriptor and size; each array is taken once.

        Raises:
            KeyError: The worker has offered no array under this ticket.
        """
        return self._offers.pop((worker, ticket))

    def close(self) -> None:
        """Lets go of what nobody asked for."""
        while self._offers:
            _, (fd, _) = self._offers.popitem()
            os.close(fd)


class ArrayCarrier:
    """Moves arrays over the daemon's connection to the controller."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        # Bytes cross it as they are, which the types of its methods do not foresee.
        untyped = cast("Any", channel)
        self._fetch: Any = untyped.unary_stream(
            _SERVICE + "Fetch",
            request_serializer=controller_pb2.Transfer.SerializeToString,
        )
        self._push: Any = untyped.stream_unary(
            _SERVICE + "Push",
            response_deserializer=controller_pb2.UploadResult.FromString,
        )

    async def fetch(
        self, transfer: controller_pb2.Transfer, memory: SharedPool | None = None
    ) -> int:
        """Collects an upload into shared memory and returns its descriptor.

        Raises:
            OSError: There is no room, or the upload is not of the size it named.
            grpc.RpcError: The session or the client went away.
        """
        return await receive_array(self._fetch(transfer), transfer.nbytes, memory)

    async def push(self, transfer: controller_pb2.Transfer, fd: int, nbytes: int) -> None:
        """Sends the array that a rank offers to the client; closes the descriptor.

        Raises:
            grpc.RpcError: The session or the client went away.
        """

        async def chunks() -> AsyncIterator[bytes]:
            yield controller_pb2.ArrayChunk(transfer=transfer).SerializeToString()
            async for chunk in send_array(fd, nbytes):
                yield chunk

        await self._push(chunks())
