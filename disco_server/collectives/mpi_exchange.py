"""Carries the headers of a channel by MPI messages from each rank to each other.

For channels that cross machines; where memory is shared, `SharedMemoryExchange` is faster.
Persistent requests make a round two calls. Against MPI's own collectives that has
three advantages: a rank that failed posts without waiting in just the way in which
one that has not posts and waits (MPI does not match blocking with non-blocking
collectives); messages that were not received can be drained at the end; and of the four ways
tried it is the fastest for 2 to 8 ranks. A channel of n ranks takes n(n - 1) messages,
which stay in eager buffers of MPI until they are wanted.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from disco_server.collectives.header_exchange import (
    ASK_EVERY,
    SPINS,
    HeaderExchange,
    Slot,
    cut_text,
    naps,
    patient,
    read_text,
)
from disco_server.collectives.preflight import HEADER_BYTES

if TYPE_CHECKING:
    from disco_server.collectives.types import Array

__all__ = ["MpiExchange"]


# Among more ranks the copies to every rank cost more than a collective of MPI.
_MOST_RANKS = 8
# How much data a header may carry. It is sent with the least of these that holds its data,
# as a persistent request has one length.
_LENGTHS = (256, 1024, 4096, 16384)

_TEXT_TAG = 16
# Which numbers of a header say its command, and which collective of that.
_COMMAND = slice(1, 3)


class _MpiSlot(Slot):
    """See `Slot`; this one holds its views.

    Attributes:
        parts: The data of all members after the round.
    """

    __slots__ = ("parts",)

    def __init__(self, dtype: np.dtype[Any], size: int, payload: bytes, parts: list[Array]) -> None:
        super().__init__(dtype, size, payload)
        self.parts = parts


class MpiExchange(HeaderExchange):
    """See `HeaderExchange`.

    Args:
        mpi: The module `mpi4py.MPI`.
        comm: Carries headers and texts only.
        me: This rank in it.
        members: The ranks of the channel, this one among them, in order.
        tag: Distinguishes channels of the same ranks.
        with_data: Headers may carry data.
    """

    def __init__(
        self,
        mpi: Any,
        comm: Any,
        me: int,
        members: Sequence[int],
        tag: int,
        *,
        with_data: bool,
    ) -> None:
        super().__init__()
        lengths = _LENGTHS if with_data and len(members) <= _MOST_RANKS else ()
        self.data_bytes = self.most_bytes = self.most_gathered = max(lengths, default=0)
        self._mpi, self._comm, self._tag = mpi, comm, tag
        self._peers = [member for member in members if member != me]
        lines = np.zeros((len(members), HEADER_BYTES + self.data_bytes), np.uint8)
        self._index = list(members).index(me)
        mine = lines[self._index]
        self._lines = lines
        self._head = memoryview(mine[:HEADER_BYTES])
        self._heads = lines[:, :HEADER_BYTES]
        receives: list[Any] = [
            comm.Recv_init([lines[index], mpi.BYTE], member, tag)
            for index, member in enumerate(members)
            if member != me
        ]
        sends = [self._prepare(mine[: HEADER_BYTES + length]) for length in (0, *lengths)]
        self._all = receives + [request for each in sends for request in each]
        # Receives stand first, so that a message finds its buffer when it arrives.
        self._rounds = [receives + each for each in sends]
        self._active = self._rounds[0]
        self._lengths = lengths
        self._start_all = mpi.Prequest.Startall
        self._wait_all = mpi.Request.Waitall
        self._test_all = mpi.Request.Testall

    def start(self, header: bytes) -> None:
        """See `HeaderExchange.start`; a byte behind the header for each step of length."""
        self._head[:] = header[:HEADER_BYTES]
        self._active = self._rounds[len(header) - HEADER_BYTES]
        self._start_all(self._active)

    def test(self) -> bool:
        """Whether all headers have arrived and this rank's was sent."""
        return bool(self._test_all(self._active))

    def meet(self, header: bytes, gives_way: Callable[[], bool] = patient) -> bytes:
        """Does all of a round at once; waiting here yields to other ranks."""
        # What `start` and `headers` do, spelled out: after large operations the
        # interpreter finds its caches cold, and each call costs three times as much.
        self._head[:] = header[:HEADER_BYTES]
        active = self._rounds[len(header) - HEADER_BYTES]
        self._start_all(active)
        if self._wait(active, gives_way):
            return self._heads.tobytes()
        self._active = active
        return b""

    def _wait(self, active: list[Any], gives_way: Callable[[], bool]) -> bool:
        """Waits until a round is complete; False where it gives way before."""
        # MPI's own wait never sleeps, and a peer may be busy with something else for long.
        test, give_way = self._test_all, os.sched_yield
        for spin in range(SPINS):
            if test(active):
                return True
            if not spin % ASK_EVERY and gives_way():
                return False
            give_way()
        for seconds in naps():
            if test(active):
                return True
            if gives_way():
                return False
            time.sleep(seconds)
        return True

    def headers(self) -> bytes:
        """See `HeaderExchange.headers`."""
        return self._heads.tobytes()

    def absent(self) -> list[int]:
        """See `HeaderExchange.absent`; a header of this round names this rank's command."""
        headers = self._heads.view(np.int64)
        mine = headers[self._index]
        return [
            place
            for place, header in enumerate(headers)
            if bool(header[0]) != bool(mine[0]) or (header[_COMMAND] != mine[_COMMAND]).any()
        ]

    def _make_slot(self, dtype: np.dtype[Any], size: int) -> _MpiSlot:
        nbytes = dtype.itemsize * size
        parts = [line[HEADER_BYTES : HEADER_BYTES + nbytes].view(dtype) for line in self._lines]
        tier = 1 + sum(nbytes > length for length in self._lengths)
        return _MpiSlot(dtype, size, b"+" * tier, parts)

    def put(self, slot: _MpiSlot, data: Array) -> None:
        """See `HeaderExchange.put`."""
        slot.parts[self._index][:] = data

    def parts(self, slot: _MpiSlot) -> list[Array]:
        """See `HeaderExchange.parts`."""
        return slot.parts

    def tell(self, text: str) -> list[str]:
        """See `HeaderExchange.tell`."""
        mpi, comm, tag = self._mpi, self._comm, self._tag + _TEXT_TAG
        mine = cut_text(text)
        theirs = [bytearray(len(mine)) for _ in self._peers]
        pairs = list(zip(theirs, self._peers, strict=True))
        requests = [comm.Irecv([part, mpi.BYTE], peer, tag) for part, peer in pairs]
        requests += [comm.Isend([mine, mpi.BYTE], peer, tag) for peer in self._peers]
        self._wait_all(requests)
        return [read_text(part) for part in theirs]

    def free(self) -> None:
        """Frees the requests; no round may be under way."""
        for request in self._all:
            request.Free()

    def _prepare(self, part: Array) -> list[Any]:
        mpi, comm = self._mpi, self._comm
        return [comm.Send_init([part, mpi.BYTE], peer, self._tag) for peer in self._peers]
