"""Host arrays between gRPC streams and the memory that is shared with a rank.

Both sides of a copy work at the same time: an array is sent while the rank still fills
it, and read by the rank while it is still received.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterable, AsyncIterator
from typing import TYPE_CHECKING, Any

import numpy as np

from disco_client.arrays.shared_memory import read_shared, write_shared
from disco_client.pb import controller_pb2
from disco_client.wire.arrays import (
    CHUNK_BYTES,
    byte_view,
    chunk_data,
    empty_array,
    encode_chunk,
    encode_end,
)

if TYPE_CHECKING:
    from disco_client.transport.channel import ReloadingChannel
    from disco_server.ipc.arrays import IncomingArray, OutgoingArray

__all__ = ["ArrayRelay", "BrokenOff", "receive_array", "send_array", "wait_for"]


_SERVICE = "/disco.v1.NodeService/"
_NO_CONTROLLER = "the node has no connection to its controller"


class BrokenOff(ConnectionError):
    """The client went away before all of an array was here; it may send it again."""


async def receive_array(chunks: AsyncIterable[bytes], array: OutgoingArray) -> None:
    """Collects an array in shared memory.

    Args:
        chunks: Encoded data chunks.
        array: The memory; notified after each chunk of how much is there, and that it is
            all of it only when the stream has ended.

    Raises:
        BrokenOff: Too few bytes came. gRPC shows a stream that was cut as one that ended.
        OSError: Too many bytes came, or the sender reports why no more will.
        grpc.RpcError: The sender went away.
    """
    at, nbytes = 0, array.nbytes
    async for raw in chunks:
        data = chunk_data(raw)
        if at + len(data) > nbytes:
            msg = f"expected an array of {nbytes} bytes, got {at + len(data)} or more"
            raise OSError(msg)
        write_shared(array.fd.fileno(), data, at)
        at += len(data)
        if at < nbytes:
            array.grow(at)
    if at < nbytes:
        msg = f"expected an array of {nbytes} bytes, got {at}"
        raise BrokenOff(msg)
    array.grow(at)


async def send_array(array: IncomingArray) -> AsyncIterator[bytes]:
    """Yields an array in encoded data chunks, as it grows.

    If it breaks off, because no more comes or the memory is smaller, the last chunk
    says why.
    """
    # Read again and again into the same buffer: mapping the memory takes as long
    # as reading it, and so does clearing fresh pages for each piece.
    nbytes = array.nbytes
    try:
        piece = byte_view(empty_array((min(nbytes, CHUNK_BYTES),), np.dtype(np.uint8)))
        for start in range(0, nbytes, CHUNK_BYTES):
            part = piece[: nbytes - start]
            await wait_for(array, start + len(part))
            read_shared(array.fileno(), part, start)
            yield encode_chunk(part)
    except (OSError, MemoryError) as error:
        yield encode_end(str(error) or "no memory")


async def wait_for(array: IncomingArray, end: int) -> None:
    """Waits until an array is there up to one of its bytes.

    Raises:
        OSError: No more of it will come.
    """
    while not array.reaches(end):
        changed = asyncio.Event()
        array.on_change = changed.set
        await changed.wait()


class ArrayRelay:
    """Moves arrays over the daemon's connection to the controller, while there is one."""

    def __init__(self) -> None:
        self._fetch: Any = None
        self._push: Any = None

    def connect(self, line: ReloadingChannel) -> None:
        """Uses a connection from now on."""
        self._fetch = line.unary_stream(
            _SERVICE + "Fetch",
            request_serializer=controller_pb2.Transfer.SerializeToString,
        )
        self._push = line.stream_unary(
            _SERVICE + "Push",
            response_deserializer=controller_pb2.UploadResult.FromString,
        )

    def disconnect(self) -> None:
        """Notes that there is no connection."""
        self._fetch = self._push = None

    def fetch(self, transfer: controller_pb2.Transfer) -> AsyncIterable[bytes]:
        """Returns the chunks of an upload; they raise grpc.RpcError if it breaks off.

        Raises:
            ConnectionError: There is no connection.
        """
        if self._fetch is None:
            raise ConnectionError(_NO_CONTROLLER)
        chunks: AsyncIterable[bytes] = self._fetch(transfer)
        return chunks

    async def push(self, transfer: controller_pb2.Transfer, data: AsyncIterator[bytes]) -> None:
        """Sends an array in encoded chunks towards the client.

        Args:
            transfer: Which one, and its size.
            data: The chunks.

        Raises:
            ConnectionError: There is no connection.
            grpc.RpcError: The session or the client went away.
        """
        if self._push is None:
            raise ConnectionError(_NO_CONTROLLER)

        async def chunks() -> AsyncIterator[bytes]:
            yield controller_pb2.ArrayChunk(transfer=transfer).SerializeToString()
            async for chunk in data:
                yield chunk

        await self._push(chunks())
