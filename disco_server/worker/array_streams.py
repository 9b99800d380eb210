"""Host arrays between gRPC streams and the memory that is shared with a rank.

Both sides of a copy work at the same time: a rank fills what leaves already, and
reads what is still coming.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Callable
from typing import TYPE_CHECKING, Any, Protocol

import grpc
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
from disco_server.worker.array_store import BrokenOff, LentArrays, Uploads

if TYPE_CHECKING:
    from disco_client.transport.channel import Line
    from disco_server.ipc.growing import FilledArray, GrowingArray

__all__ = [
    "ArrayCarrier",
    "ArrayDesk",
    "NotAdmitted",
    "admit",
    "incoming",
    "outgoing",
    "receive_array",
    "send_array",
    "wait_for",
]


_SERVICE = "/disco.v1.NodeService/"
_NO_CONTROLLER = "the node has no connection to its controller"


async def receive_array(
    chunks: AsyncIterable[bytes], nbytes: int, fd: int, grown: Callable[[int], None]
) -> None:
    """Collects an array in shared memory.

    Args:
        chunks: Encoded data chunks.
        nbytes: The array's size.
        fd: The memory.
        grown: Told how much is there, after each chunk; that it is all of it only
            when the stream has ended there.

    Raises:
        BrokenOff: Less came. gRPC shows a stream that was cut as one that ended.
        OSError: More came, or the sender says why no more will.
        grpc.RpcError: The sender went away.
    """
    at = 0
    async for raw in chunks:
        data = chunk_data(raw)
        if at + len(data) > nbytes:
            msg = f"expected an array of {nbytes} bytes, got {at + len(data)} or more"
            raise OSError(msg)
        write_shared(fd, data, at)
        at += len(data)
        if at < nbytes:
            grown(at)
    if at < nbytes:
        msg = f"expected an array of {nbytes} bytes, got {at}"
        raise BrokenOff(msg)
    grown(at)


async def send_array(array: GrowingArray) -> AsyncIterator[bytes]:
    """Yields an array in encoded data chunks, as it grows.

    Where it breaks off, because no more comes or the memory is smaller, the last
    chunk says why.
    """
    # Read again and again into the same place: mapping the memory takes as long
    # as reading it, and so does clearing fresh pages for each piece.
    nbytes = array.nbytes
    try:
        piece = byte_view(empty_array((min(nbytes, CHUNK_BYTES),), np.dtype(np.uint8)))
        for start in range(0, nbytes, CHUNK_BYTES):
            part = piece[: nbytes - start]
            await wait_for(array, start + len(part))
            read_shared(array.fd, part, start)
            yield encode_chunk(part)
    except (OSError, MemoryError) as error:
        yield encode_end(str(error) or "no memory")


async def wait_for(array: GrowingArray, end: int) -> None:
    """Waits until an array is there up to one of its bytes.

    Raises:
        OSError: No more of it will come.
    """
    while not array.reaches(end):
        changed = asyncio.Event()
        array.on_change = changed.set
        await changed.wait()


class ArrayCarrier:
    """Moves arrays over the daemon's connection to the controller, while there is one."""

    def __init__(self) -> None:
        self._fetch: Any = None
        self._push: Any = None

    def connect(self, line: Line) -> None:
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
        """Returns the chunks of an upload; they raise grpc.RpcError where it is broken off.

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


# The desk behind a daemon's doors for host arrays, and who is let through to it.
#
# Whoever knocks must know the secret of a session that runs here.


class NotAdmitted(Exception):
    """A transfer that names no worker of a session here, or not its secret."""


class ArrayDesk(Protocol):
    """Where arrays of the sessions on this node are handed in and out."""

    def knows(self, transfer: controller_pb2.Transfer) -> bool:
        """Whether the transfer names a worker of a session here, and its secret."""
        ...

    def attend(self, transfer: controller_pb2.Transfer, task: asyncio.Task[Any]) -> None:
        """Cancels a task when the transfer's session ends, and waits for it."""
        ...

    def uploads(self, transfer: controller_pb2.Transfer) -> Uploads:
        """The arrays on their way to the ranks of the transfer's session.

        Raises:
            KeyError: There is no such session.
        """
        ...

    def check_size(self, transfer: controller_pb2.Transfer) -> None:
        """Refuses an array that is larger than may come here.

        Raises:
            OSError: It is.
        """
        ...

    def lent(self, transfer: controller_pb2.Transfer) -> LentArrays:
        """The arrays that the ranks of the transfer's session offer.

        Raises:
            KeyError: There is no such session.
        """
        ...


def admit(desk: ArrayDesk | None, transfer: controller_pb2.Transfer) -> ArrayDesk:
    """Returns the desk for a transfer that may go there.

    Args:
        desk: The desk of this moment; None while there is no controller.
        transfer: What the client sent.

    Raises:
        NotAdmitted: It may not.
    """
    if desk is None or not desk.knows(transfer):
        msg = "no such worker, session or key on this node"
        raise NotAdmitted(msg)
    return desk


@contextlib.asynccontextmanager
async def incoming(
    desk: ArrayDesk, transfer: controller_pb2.Transfer, *, again: bool = True
) -> AsyncGenerator[FilledArray | None]:
    """Makes room for an array, which the block fills; a rank that waits hears where it fails.

    The block gets None where the array was here already, and drops what comes.

    Args:
        desk: The desk.
        transfer: Which array.
        again: Whether one that breaks off may be sent again. Its memory is then used
            on; otherwise never, for its sender may have it still.

    Raises:
        OSError: There is no room, or what the block raised.
    """
    uploads = desk.uploads(transfer)
    try:
        desk.check_size(transfer)
        array = await uploads.begin(transfer)
        yield array
    except (asyncio.CancelledError, ConnectionError, grpc.RpcError):
        if again:
            uploads.break_off(transfer)
        else:
            uploads.fail(transfer, "the upload was broken off")
        raise
    except BaseException as error:
        told = isinstance(error, (OSError, MemoryError))
        uploads.fail(transfer, str(error) or "no memory" if told else "the upload was broken off")
        raise
    if array is not None:
        uploads.complete(transfer)


@contextlib.asynccontextmanager
async def outgoing(
    desk: ArrayDesk, transfer: controller_pb2.Transfer, *, again: bool = True
) -> AsyncGenerator[GrowingArray]:
    """Gives an array that a rank offers to the block, for a client.

    Args:
        desk: The desk.
        transfer: Which array.
        again: Whether the client says when it has the array, and may ask again until then.

    Raises:
        KeyError: The rank offers none under this ticket.
    """
    lent = desk.lent(transfer)
    array = await lent.lend(transfer.worker, transfer.ticket)
    try:
        yield array
    finally:
        if not again:
            lent.confirm(transfer.worker, transfer.ticket)
        lent.release(transfer.worker, transfer.ticket)
