"""The data operations of an MPI communicator whose parts differ, or whose root is any rank.

What is only moved goes in messages from each rank to each: that is what MPI's own calls
for uneven parts come down to, and measured beside them with 2 and 4 ranks it takes 0.75
to 1.1 of their time. Messages can be cut, so arrays may have more elements than the 32
bits in which MPI before version 4 counts and places parts.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import Any

import numpy as np

from disco_server.collectives.base import Array, ReduceOp
from disco_server.collectives.checks import Family
from disco_server.collectives.mpi_moves import Moves, Pieces, cut
from disco_server.collectives.numeric import divide, narrow

__all__ = ["PartMoves"]

_MOST_AT_ONCE = 1 << 30
# Elements of the buffer through which reductions go in pieces: 1 MiB of float32.
_PIECE = 1 << 18


class PartMoves(Moves):
    """Moves and combines arrays among the ranks of one MPI communicator.

    Args:
        mpi: The module `mpi4py.MPI`.
        comm: The communicator, used for nothing else.
        pieces: How large allreduces are cut.
        most: How many elements one call may have.
    """

    def __init__(self, mpi: Any, comm: Any, pieces: Pieces, most: int = _MOST_AT_ONCE) -> None:
        super().__init__(mpi, comm, pieces)
        self._most = most

    def allgather_parts(self, src: Array, dst: Array, counts: Sequence[int]) -> None:
        """Brings every source, of so many elements, to every rank."""
        parts = _split(dst, counts)
        mine = _apart(src, dst, fits=_same(src, parts[self._rank]))
        self._exchange([mine] * self._size, parts)

    def all_to_all_parts(self, src: Array, dst: Array, table: Sequence[Sequence[int]]) -> None:
        """Sends `table[i][j]` elements from each rank i to each rank j."""
        if np.may_share_memory(src, dst):
            src = src.copy()
        received = [row[self._rank] for row in table]
        self._exchange(_split(src, table[self._rank]), _split(dst, received))

    def broadcast_from(self, src: Array, dst: Array, root: int) -> None:
        """Copies the root's source to all."""
        if self._rank == root and src is not dst:
            self._comm.Bcast(self._buffer(src), root)
            dst.reshape(-1)[:] = src.reshape(-1)
        else:
            self._comm.Bcast(self._buffer(dst), root)

    def scatter_parts(
        self, src: Array | None, dst: Array, counts: Sequence[int], root: int
    ) -> None:
        """Gives each rank its part of the root's source."""
        outgoing = self._nothing(dst)
        if src is not None and self._rank == root:
            own = _split(src, counts)[root]
            outgoing = _split(_apart(src, dst, fits=_same(own, dst)), counts)
        self._exchange(outgoing, self._only(dst, root))

    def gather_parts(self, src: Array, dst: Array | None, counts: Sequence[int], root: int) -> None:
        """Collects every source at the root."""
        incoming = self._nothing(src)
        if dst is not None and self._rank == root:
            incoming = _split(dst, counts)
            src = _apart(src, dst, fits=_same(src, incoming[root]))
        self._exchange(self._only(src, root), incoming)

    def reduce_scatter_parts(
        self, src: Array, dst: Array, op: ReduceOp, family: Family, counts: Sequence[int]
    ) -> None:
        """Combines and leaves each rank its part, of so many elements."""
        if np.may_share_memory(src, dst):
            src = src.copy()
        elif not dst.size:
            dst = np.empty(0, dst.dtype)  # MPICH refuses one that lies at the source's place
        if family is Family.HALF or src.size > self._most:
            self._reduce_scatter_pieces(src, dst, op, family, counts)
            return
        kind = self._types[src.dtype]
        call = self._call_of(op, family)
        self._comm.Reduce_scatter([src, kind], [dst, kind], list(counts), call)
        if op is ReduceOp.AVG:
            divide(dst, self._size)

    def _reduce_scatter_pieces(
        self, src: Array, dst: Array, op: ReduceOp, family: Family, counts: Sequence[int]
    ) -> None:
        """Does it for some elements of each part after the others, halves in float32."""
        parts, target = _split(src, counts), dst.reshape(-1)
        half = family is Family.HALF
        dtype = np.dtype(np.float32) if half else src.dtype
        kind, call = self._types[dtype], self._call_of(op, family)
        divisor = self._size if op is ReduceOp.AVG else 1
        for start, stop in cut(max(counts), max(1, _PIECE // self._size)):
            pieces = [part[start:stop] for part in parts]
            sizes = [piece.size for piece in pieces]
            wide = np.concatenate(pieces, dtype=dtype)
            # In place the result lies at the front of the buffer.
            self._comm.Reduce_scatter(self._in_place, [wide, kind], sizes, call)
            mine, out = wide[: sizes[self._rank]], target[start:stop]
            if half:
                narrow(mine, out, divisor)
                continue
            if divisor > 1:
                divide(mine, divisor)
            out[:] = mine

    def _call_of(self, op: ReduceOp, family: Family) -> Any:
        return (self._bool_ops if family is Family.BOOL else self._ops)[op]

    def _exchange(self, outgoing: Sequence[Array], incoming: Sequence[Array]) -> None:
        """Sends a part to each rank and receives one from each; parts may be empty."""
        comm, me, requests = self._comm, self._rank, list[Any]()
        others = [rank for rank in range(self._size) if rank != me]
        for rank in others:
            for start, stop in cut(incoming[rank].size, self._most):
                requests.append(comm.Irecv(self._buffer(incoming[rank][start:stop]), rank))
        for rank in others:
            for start, stop in cut(outgoing[rank].size, self._most):
                requests.append(comm.Isend(self._buffer(outgoing[rank][start:stop]), rank))
        if not _same(incoming[me], outgoing[me]):
            incoming[me][:] = outgoing[me]
        self._mpi.Request.Waitall(requests)

    def _nothing(self, like: Array) -> list[Array]:
        return [like.reshape(-1)[:0]] * self._size

    def _only(self, array: Array, rank: int) -> list[Array]:
        """Parts that are empty but for the one of a rank."""
        parts = self._nothing(array)
        parts[rank] = array.reshape(-1)
        return parts


def _split(whole: Array, counts: Sequence[int]) -> list[Array]:
    """The parts of an array, flat."""
    flat = whole.reshape(-1)
    stops = accumulate(counts)
    return [flat[stop - count : stop] for count, stop in zip(counts, stops, strict=True)]


def _apart(read: Array, written: Array, *, fits: bool) -> Array:
    """What can be read while something else is written; flat.

    Args:
        read: What is to be read.
        written: The other one.
        fits: What they share, if anything, is this rank's part of the longer one.
    """
    flat = read.reshape(-1)
    return flat if fits or not np.may_share_memory(read, written) else flat.copy()


def _same(one: Array, other: Array) -> bool:
    return one.ctypes.data == other.ctypes.data and one.nbytes == other.nbytes
