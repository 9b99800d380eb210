"""Carries the rows of a lane by MPI messages from each rank to each other.

For lanes that cross machines; where memory is shared, `shared_rows` is faster.
Persistent requests make a round two calls. Against MPI's own collectives that has
three advantages: a rank that failed posts without waiting in just the way in which
one that has not posts and waits (MPI does not match blocking with non-blocking
collectives); what nobody came for can be drained at the end; and of the four ways
tried it is the fastest for 2 to 8 ranks. A lane of n ranks takes n(n - 1) messages,
which stay in eager buffers of MPI until they are wanted.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from disco_server.collectives.base import Array
from disco_server.collectives.preflight import ROW_BYTES
from disco_server.collectives.rows import Place, RowExchange, cut_text, read_text

__all__ = ["MpiRows"]

# Among more ranks the copies to everyone cost more than a collective of MPI.
_MOST_RANKS = 8
# How much data may ride. A row is sent with the least of these that holds its data,
# as a persistent request has one length.
_LENGTHS = (256, 1024, 4096, 16384)
_TEXT_TAG = 16
# The first numbers of a row: whether it is a call, of which command, and the how manieth.
_CALL = 3


class _Place(Place):
    """See `Place`; here it has its views.

    Attributes:
        parts: The data of all members after the round.
    """

    __slots__ = ("parts",)

    def __init__(self, dtype: np.dtype[Any], size: int, rider: bytes, parts: list[Array]) -> None:
        super().__init__(dtype, size, rider)
        self.parts = parts


class MpiRows(RowExchange):
    """See `RowExchange`.

    Args:
        mpi: The module `mpi4py.MPI`.
        comm: Carries rows and texts only.
        me: This rank in it.
        members: The ranks of the lane, this one among them, in order.
        tag: Tells lanes of the same ranks apart.
        with_data: Data may ride along.
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
        slots = np.zeros((len(members), ROW_BYTES + self.data_bytes), np.uint8)
        self._index = list(members).index(me)
        mine = slots[self._index]
        self._slots = slots
        self._head = memoryview(mine[:ROW_BYTES])
        self._heads = slots[:, :ROW_BYTES]
        receives: list[Any] = [
            comm.Recv_init([slots[index], mpi.BYTE], member, tag)
            for index, member in enumerate(members)
            if member != me
        ]
        sends = [self._prepare(mine[: ROW_BYTES + length]) for length in (0, *lengths)]
        self._all = receives + [request for each in sends for request in each]
        # Receives stand first, so that a message finds its place when it comes.
        self._rounds = [receives + each for each in sends]
        self._active = self._rounds[0]
        self._lengths = lengths
        self._start_all = mpi.Prequest.Startall
        self._wait_all = mpi.Request.Waitall
        self._test_all = mpi.Request.Testall

    def start(self, row: bytes) -> None:
        """See `RowExchange.start`; a byte behind the row for each step of length."""
        self._head[:] = row[:ROW_BYTES]
        self._active = self._rounds[len(row) - ROW_BYTES]
        self._start_all(self._active)

    def test(self) -> bool:
        """Whether all rows have come and this rank's has gone."""
        return bool(self._test_all(self._active))

    def meet(self, row: bytes) -> bytes:
        """Does all of a round at once; waiting here gives way to other ranks."""
        # What `start` and `rows` do, spelled out: after large operations the
        # interpreter finds its caches cold, and each call counts threefold.
        self._head[:] = row[:ROW_BYTES]
        active = self._rounds[len(row) - ROW_BYTES]
        self._start_all(active)
        self._wait_all(active)
        return self._heads.tobytes()

    def rows(self) -> bytes:
        """See `RowExchange.rows`."""
        return self._heads.tobytes()

    def absent(self) -> list[int]:
        """See `RowExchange.absent`; a row of this round says the same command as ours."""
        rows = self._heads.view(np.int64)
        mine = rows[self._index, :_CALL]
        return [place for place, row in enumerate(rows) if (row[:_CALL] != mine).any()]

    def _make_place(self, dtype: np.dtype[Any], size: int) -> _Place:
        nbytes = dtype.itemsize * size
        parts = [slot[ROW_BYTES : ROW_BYTES + nbytes].view(dtype) for slot in self._slots]
        tier = 1 + sum(nbytes > length for length in self._lengths)
        return _Place(dtype, size, b"+" * tier, parts)

    def put(self, place: _Place, data: Array) -> None:
        """See `RowExchange.put`."""
        place.parts[self._index][:] = data.reshape(-1)

    def parts(self, place: _Place) -> list[Array]:
        """See `RowExchange.parts`."""
        return place.parts

    def tell(self, text: str) -> list[str]:
        """See `RowExchange.tell`."""
        mpi, comm, tag = self._mpi, self._comm, self._tag + _TEXT_TAG
        mine = cut_text(text)
        theirs = [bytearray(len(mine)) for _ in self._peers]
        pairs = list(zip(theirs, self._peers, strict=True))
        requests = [comm.Irecv([part, mpi.BYTE], peer, tag) for part, peer in pairs]
        requests += [comm.Isend([mine, mpi.BYTE], peer, tag) for peer in self._peers]
        self._wait_all(requests)
        return [read_text(part) for part in theirs]

    def free(self) -> None:
        """Gives the requests back; no round may be under way."""
        for request in self._all:
            request.Free()

    def _prepare(self, part: Array) -> list[Any]:
        mpi, comm = self._mpi, self._comm
        return [comm.Send_init([part, mpi.BYTE], peer, self._tag) for peer in self._peers]
