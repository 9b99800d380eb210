"""The desk behind a daemon's doors for host arrays, and who is let through to it.

Whoever knocks must know the secret of a session that runs here.
"""

from __future__ import annotations

import asyncio
from typing import Any, Protocol

from disco_client.pb import controller_pb2
from disco_client.transport.shared import SharedPool

__all__ = ["ArrayDesk", "NotAdmitted", "admit"]


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

    def give_back(self, transfer: controller_pb2.Transfer, fd: int) -> None:
        """Returns the memory of an array that was handed out; closes the descriptor."""
        ...

    def hand_in(self, transfer: controller_pb2.Transfer, fd: int) -> None:
        """Gives an array to its rank; the descriptor is closed there."""
        ...

    def refuse(self, transfer: controller_pb2.Transfer, why: str) -> None:
        """Tells a rank that an array will not come."""
        ...

    def hand_out(self, transfer: controller_pb2.Transfer) -> tuple[int, int]:
        """Returns the descriptor and the size of an array that a rank offers.

        Raises:
            KeyError: There is none under this ticket.
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
