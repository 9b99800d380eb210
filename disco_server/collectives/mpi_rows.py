"""Carries the rows of a lane by MPI messages from each rank to each other.

Persistent requests make a round two calls. Against MPI's own collectives that has
three advantages: a rank that failed posts without waiting in just the way in which
one that has not posts and waits (MPI does not match blocking with non-blocking
collectives); what nobody came for can be drained at the end; and of the four ways
tried it is the fastest for 2 to 8 ranks. A lane of n ranks takes n(n - 1) messages,
which stay in eager buffers of MPI until they are wanted.

Small data may ride along behind a row, which saves a small collective its own
messages: its ranks have all the data as soon as they know that they agree.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from disco_server.collectives.base import Array
from disco_server.collectives.preflight import ROW_BYTES

__all__ = ["NO_DATA", "MpiRows", "Staged"]

NO_DATA = b""
"""Stands behind a row with which no data rides; see `MpiRows.find_place`."""

# Among more ranks the copies to everyone cost more than a collective of MPI.
_MOST_RANKS = 8
# How much data may ride. A row is sent with the least of these that holds its data,
# as a persistent request has one length.
_LENGTHS = (256, 1024, 4096, 16384)
_TEXT_BYTES = 400
_TEXT_TAG = 16
_MOST_VIEWS = 256


class Staged(NamedTuple):
    """Where data of one dtype and size rides.

    Attributes:
        mine: This rank's, flat.
        parts: That of all members after the round, flat.
        rider: Stands behind the row with which it rides.
    """

    mine: Array
    parts: list[Array]
    rider: bytes


class MpiRows:
    """One rank's end of a lane; satisfies `preflight.Exchange`.

    Args:
        mpi: The module `mpi4py.MPI`.
        comm: Carries rows and texts only.
        me: This rank in it.
        members: The ranks of the lane, this one among them, in order.
        tag: Tells lanes of the same ranks apart.
        with_data: Data may ride along.

    Attributes:
        data_bytes: How much of it.
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
        lengths = _LENGTHS if with_data and len(members) <= _MOST_RANKS else ()
        self.data_bytes = max(lengths, default=0)
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
        self._views: dict[tuple[np.dtype[Any], int], Staged] = {}
        self._start_all = mpi.Prequest.Startall
        self._wait_all = mpi.Request.Waitall
        self._test_all = mpi.Request.Testall

    def start(self, row: bytes) -> None:
        """Posts this rank's row, with as much data as the bytes behind it say."""
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
        """The rows of all members in their order."""
        return self._heads.tobytes()

    def find_place(self, dtype: np.dtype[Any], size: int) -> Staged:
        """Finds where data rides along with rows, at most `data_bytes` of it.

        A token that is posted meanwhile, or pending, is not disturbed: none rides
        along with it.

        Args:
            dtype: Of the data.
            size: How many elements each rank has.
        """
        staged = self._views.get((dtype, size))
        if staged is None:
            if len(self._views) >= _MOST_VIEWS:
                self._views.clear()
            nbytes = dtype.itemsize * size
            parts = [slot[ROW_BYTES : ROW_BYTES + nbytes].view(dtype) for slot in self._slots]
            tier = 1 + sum(nbytes > length for length in self._lengths)
            staged = Staged(parts[self._index], parts, b"+" * tier)
            self._views[dtype, size] = staged
        return staged

    def tell(self, text: str) -> list[str]:
        """Exchanges short texts with the other members, in their order.

        All must call it after the same round. A long text is cut.
        """
        mpi, comm, tag = self._mpi, self._comm, self._tag + _TEXT_TAG
        mine = text.encode()[:_TEXT_BYTES].ljust(_TEXT_BYTES, b"\0")
        theirs = [bytearray(_TEXT_BYTES) for _ in self._peers]
        pairs = list(zip(theirs, self._peers, strict=True))
        requests = [comm.Irecv([part, mpi.BYTE], peer, tag) for part, peer in pairs]
        requests += [comm.Isend([mine, mpi.BYTE], peer, tag) for peer in self._peers]
        self._wait_all(requests)
        return [bytes(part).rstrip(b"\0").decode(errors="ignore") for part in theirs]

    def free(self) -> None:
        """Gives the requests back; no round may be under way."""
        for request in self._all:
            request.Free()

    def _prepare(self, part: Array) -> list[Any]:
        mpi, comm = self._mpi, self._comm
        return [comm.Send_init([part, mpi.BYTE], peer, self._tag) for peer in self._peers]
