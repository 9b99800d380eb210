"""The desk behind a daemon's doors for host arrays, and who is let through to it.

Whoever knocks must know the secret of a session that runs here.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator
from typing import Any, Protocol

import grpc

from disco_client.pb import controller_pb2
from disco_server.channels.growing import FilledArray, GrowingArray
from disco_server.worker.lent_arrays import LentArrays
from disco_server.worker.uploads import Uploads

__all__ = ["ArrayDesk", "NotAdmitted", "admit", "incoming", "outgoing"]


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
        told = isinstance(error, OSError)
        uploads.fail(transfer, str(error) if told else "the upload was broken off")
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
