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
from typing import Any

import numpy as np

from disco_server.collectives.base import Array
from disco_server.collectives.preflight import ROW_BYTES

__all__ = ["RIDER", "MpiRows"]

RIDER = b"+"
"""Stands behind a row with which staged data rides."""

# Among more ranks the copies to everyone cost more than a collective of MPI.
_MOST_RANKS = 8
_DATA_BYTES = 4096
_TEXT_BYTES = 400
_TEXT_TAG = 16
_MOST_VIEWS = 256


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
        self.data_bytes = _DATA_BYTES if with_data and len(members) <= _MOST_RANKS else 0
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
        sends = self._prepare(mine[:ROW_BYTES])
        sends_with_data = self._prepare(mine) if self.data_bytes else []
        self._all = receives + sends + sends_with_data
        # Receives stand first, so that a message finds its place when it comes.
        self._short = receives + sends
        self._long = receives + sends_with_data
        self._active = self._short
        self._views: dict[tuple[np.dtype[Any], int], list[Array]] = {}
        self._start_all = mpi.Prequest.Startall
        self._wait_all = mpi.Request.Waitall
        self._test_all = mpi.Request.Testall

    def start(self, row: bytes) -> None:
        """Posts this rank's row; if `RIDER` follows it, with the data staged before."""
        self._head[:] = row[:ROW_BYTES]
        self._active = self._short if len(row) == ROW_BYTES else self._long
        self._start_all(self._active)

    def test(self) -> bool:
        """Whether all rows have come and this rank's has gone."""
        return bool(self._test_all(self._active))

    def wait(self) -> None:
        """Waits for the same."""
        self._wait_all(self._active)

    def rows(self) -> bytes:
        """The rows of all members in their order."""
        return self._heads.tobytes()

    def stage(self, array: Array) -> list[Array]:
        """Puts data of at most `data_bytes` where it rides along with the next row.

        A token that is posted or pending meanwhile is not disturbed: it is short.

        Returns:
            Where the data of all members will be after the round, as flat arrays.
        """
        key = (array.dtype, array.size)
        views = self._views.get(key)
        if views is None:
            if len(self._views) >= _MOST_VIEWS:
                self._views.clear()
            end = ROW_BYTES + array.nbytes
            views = [slot[ROW_BYTES:end].view(array.dtype) for slot in self._slots]
            self._views[key] = views
        views[self._index][:] = array.reshape(-1)
        return views

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
