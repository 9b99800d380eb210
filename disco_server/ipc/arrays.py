"""Arrays in shared memory, read while another process fills them.

The process that fills one reports its progress to the other after each piece. Each array
has one reader, which waits in its own way: a rank reads its socket, a daemon awaits a
future, a program waits for a lock. So this only keeps what was reported, and calls back.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Self

from disco_client.descriptors import Descriptor, opened
from disco_client.wire.arrays import PIECE_BYTES
from disco_client.wire.codec import EnvelopeKind

__all__ = ["FROM_RANKS", "IncomingArray", "Offers", "OutgoingArray"]


FROM_RANKS = (EnvelopeKind.ARRAY_OUT, EnvelopeKind.ARRAY_MORE, EnvelopeKind.ARRAY_BACK)
"""The kinds of messages that ranks send about arrays."""


def _nobody() -> None:
    """The callback while no reader waits."""


class IncomingArray:
    """An array that another process fills, and this one reads from its beginning on.

    Progress may be noted in another thread than the one that waits: the waiting thread sets
    ``on_change`` and then looks again, the other changes the state and then calls it.

    Args:
        fd: The memory, which belongs to the owner of this object; None where there is none.
        nbytes: How large it will be.
        there: How many of its bytes are there.
        error: Why the others will not come; empty while they may.

    Attributes:
        on_change: Called once, when more is there or none will come.
    """

    def __init__(self, fd: Descriptor | None, nbytes: int, there: int = 0, error: str = "") -> None:
        self.fd = fd
        self.nbytes = nbytes
        self.there = there
        self.error = error
        self.on_change: Callable[[], None] = _nobody

    @classmethod
    def received(
        cls, take: Callable[[], Descriptor | None], nbytes: int, there: int, error: str
    ) -> Self:
        """The array that a peer announces, in the memory whose descriptor came along.

        Args:
            take: Returns that descriptor, or None if it was lost on its way.
            nbytes: How large it will be.
            there: How many of its bytes are there.
            error: Why the others will not come; with one the peer sent no descriptor.
        """
        fd = None if error else take()
        lost = "no descriptor was free for its memory" if fd is None else ""
        return cls(fd, nbytes, there, error or lost)

    def fileno(self) -> int:
        """The number of its memory's descriptor.

        Raises:
            OSError: It has none.
        """
        if self.fd is None:
            raise OSError(self.error)
        return self.fd.fileno()

    @property
    def settled(self) -> bool:
        """Whether nothing more will be reported of it."""
        return bool(self.error) or self.there >= self.nbytes

    def grow(self, there: int, error: str = "") -> None:
        """Notes how many bytes are there by now, or why no more will come."""
        self.there = max(self.there, there)
        self.error = self.error or error
        call, self.on_change = self.on_change, _nobody
        call()

    def reaches(self, end: int) -> bool:
        """Whether its bytes are there up to one of them.

        Raises:
            OSError: No more will come.
        """
        if self.error:
            raise OSError(self.error)
        return self.there >= end


class OutgoingArray:
    """An array that this process fills; its reader is notified of whole pieces and of the end.

    Args:
        fd: The memory, which stays the caller's.
        nbytes: How large it will be.
        tell: Sends how much is there; the first time also a descriptor, which it closes.
    """

    def __init__(
        self, fd: Descriptor, nbytes: int, tell: Callable[[int, Descriptor | None], None]
    ) -> None:
        self.fd = fd
        self.nbytes = nbytes
        self._tell = tell
        self._told = 0
        self._known = False

    def grow(self, there: int) -> None:
        """Notes how many bytes are there by now."""
        if there - self._told >= PIECE_BYTES or there == self.nbytes:
            self._tell(there, None if self._known else opened(os.dup, self.fd.fileno()))
            self._told, self._known = there, True


class Offers:
    """The arrays that one session's ranks offer, until they are taken.

    One thread may add them and note how they grow, while others take them.
    """

    def __init__(self) -> None:
        self._untaken: dict[tuple[int, int], IncomingArray] = {}
        self._incoming: dict[tuple[int, int], IncomingArray] = {}

    def add(self, worker: int, ticket: int, array: IncomingArray) -> None:
        """Keeps an array; its descriptor belongs to this object from now on."""
        self._untaken[worker, ticket] = array
        if not array.settled:
            self._incoming[worker, ticket] = array

    def grow(self, worker: int, ticket: int, there: int, error: str) -> None:
        """Notes how much of an array is there, or why no more will come."""
        array = self._incoming.get((worker, ticket))
        if array is not None:
            array.grow(there, error)
            if array.settled:
                self._incoming.pop((worker, ticket), None)

    @property
    def untaken(self) -> list[tuple[int, int]]:
        """The workers and tickets of the arrays that have not been taken yet."""
        return list(self._untaken)

    def take(self, worker: int, ticket: int) -> IncomingArray:
        """Returns an array, whose descriptor is the caller's; each is taken once.

        Raises:
            KeyError: The worker has offered no array under this ticket.
        """
        return self._untaken.pop((worker, ticket))

    def break_off(self, why: str, worker: int | None = None) -> None:
        """Ends the waits for what one rank, or every rank, has not copied yet."""
        for rank, ticket in list(self._incoming):
            if worker in (None, rank):
                self.grow(rank, ticket, 0, why)

    def close(self) -> None:
        """Releases the arrays that were not taken."""
        self.break_off("the session ended")
        while self._untaken:
            _, array = self._untaken.popitem()
            if array.fd is not None:
                array.fd.close()
