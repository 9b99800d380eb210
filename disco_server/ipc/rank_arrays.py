"""The host arrays that the ranks of one session on one machine take and offer.

They lie in shared memory, whose descriptors go through the ranks' sockets. Memory that a rank
has copied from comes back, and is used again.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TypeAlias

from disco_client.arrays.shared_memory import SharedPool
from disco_client.descriptors import Descriptor
from disco_client.pb import controller_pb2
from disco_client.wire.codec import EnvelopeKind
from disco_server.ipc.arrays import IncomingArray, Offers, OutgoingArray

__all__ = ["RankArrays", "SendArray"]

SendArray: TypeAlias = Callable[[EnvelopeKind, controller_pb2.Transfer, Descriptor | None], None]
"""Tells the worker of a transfer about an array; a descriptor is closed once it is sent."""


class RankArrays:
    """What is told to ranks of arrays, and what they tell; the base of what carries them on.

    Args:
        send: Tells a rank about an array.
    """

    def __init__(self, send: SendArray) -> None:
        self._send = send
        self._memory = SharedPool()
        self._offers = Offers()

    def _note_offer(
        self,
        worker: int,
        kind: int,
        told: controller_pb2.Transfer,
        take: Callable[[], Descriptor | None],
    ) -> None:
        """Notes what a rank tells of an array that it offers.

        Args:
            worker: The rank.
            kind: Whether it begins to offer the array.
            told: Which array, and how much of it is there.
            take: Returns the descriptor that came along, or None if it was lost on its way.
        """
        if kind == EnvelopeKind.ARRAY_OUT:
            array = IncomingArray.received(take, told.nbytes, told.there, told.error)
            self._offers.add(worker, told.ticket, array)
        else:
            self._offers.grow(worker, told.ticket, told.there, told.error)

    def _outgoing(self, transfer: controller_pb2.Transfer) -> OutgoingArray:
        """An array for a rank, in memory that is the caller's.

        Raises:
            OSError: There is no room.
        """
        fd = self._memory.take(transfer.nbytes)
        return OutgoingArray(fd, transfer.nbytes, partial(self._tell, transfer))

    def _tell(
        self,
        transfer: controller_pb2.Transfer,
        there: int = 0,
        fd: Descriptor | None = None,
        *,
        error: str = "",
    ) -> None:
        """Tells a rank how much of an array is there, or why the rest will not come."""
        told = controller_pb2.Transfer(
            ticket=transfer.ticket,
            worker=transfer.worker,
            nbytes=transfer.nbytes,
            there=there,
            error=error,
            and_before=transfer.and_before,
        )  # without the session's secret, which ranks must not know
        self._send(EnvelopeKind.ARRAY_MORE if fd is None else EnvelopeKind.ARRAY_IN, told, fd)

    def _give_back(self, worker: int, array: IncomingArray) -> None:
        """Returns the memory of an array to the rank that offered it."""
        if array.fd is not None:
            self._send(EnvelopeKind.ARRAY_BACK, controller_pb2.Transfer(worker=worker), array.fd)
