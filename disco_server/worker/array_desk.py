"""The desk behind a daemon's doors for host arrays, and who is let through to it.

Whoever knocks must know the secret of a session that runs here.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Generator
from functools import partial
from typing import Any, Protocol

from disco_client.pb import controller_pb2
from disco_client.transport.shared import SharedPool
from disco_server.channels.growing import FilledArray, GrowingArray

__all__ = ["ArrayDesk", "NotAdmitted", "admit", "incoming"]


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

    def memory(self, transfer: controller_pb2.Transfer) -> SharedPool:
        """Where memory for an array comes from.

        Raises:
            KeyError: There is no such session.
        """
        ...

    def hand_in(self, transfer: controller_pb2.Transfer, there: int, fd: int | None = None) -> None:
        """Tells a rank how much of an array is in its memory.

        Args:
            transfer: Which array.
            there: How many of its bytes.
            fd: The memory, when the rank is told for the first time; closed here.
        """
        ...

    def refuse(self, transfer: controller_pb2.Transfer, why: str) -> None:
        """Tells a rank that an array, or the rest of it, will not come."""
        ...

    def hand_out(self, transfer: controller_pb2.Transfer) -> GrowingArray:
        """Returns an array that a rank offers, and may still be filling.

        Raises:
            KeyError: There is none under this ticket.
        """
        ...

    def give_back(self, transfer: controller_pb2.Transfer, array: GrowingArray) -> None:
        """Returns the memory of an array that was handed out, which nobody uses any more."""
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


@contextlib.contextmanager
def incoming(desk: ArrayDesk, transfer: controller_pb2.Transfer) -> Generator[FilledArray]:
    """Makes room for an array, which the block fills; a rank that waits hears where it fails.

    The memory of one that was broken off is not used again, for its sender may have
    it still.

    Raises:
        OSError: There is no room, or what the block raised.
    """
    fd = -1
    try:
        fd = desk.memory(transfer).take(transfer.nbytes)
        yield FilledArray(fd, transfer.nbytes, partial(desk.hand_in, transfer))
    except BaseException as error:
        told = isinstance(error, OSError) and not isinstance(error, ConnectionError)
        desk.refuse(transfer, str(error) if told else "the upload was broken off")
        raise
    finally:
        if fd >= 0:
            os.close(fd)
