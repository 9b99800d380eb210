"""The data operations of one MPI communicator, once its ranks agreed to begin.

Arrays here are C-contiguous, have the right sizes and at least one element. What
mpi4py accepts as a buffer is wrapped in `[array, datatype]` pairs, without copies.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from disco_server.collectives.base import Array, ReduceOp
from disco_server.collectives.checks import Family
from disco_server.collectives.numeric import divide, narrow

__all__ = ["Moves", "Pieces", "cut"]

# float32 elements of the buffer through which halves are reduced: 1 MiB stays in a cache.
_HALF_PIECE = 1 << 18
# Looking up a member of an enum is a call, which counts where calls take microseconds.
_BOOL, _HALF, _AVG = Family.BOOL, Family.HALF, ReduceOp.AVG
_DATATYPES = {
    "b1": "UINT8_T",
    "i1": "INT8_T",
    "i2": "INT16_T",
    "i4": "INT32_T",
    "i8": "INT64_T",
    "u1": "UINT8_T",
    "u2": "UINT16_T",
    "u4": "UINT32_T",
    "u8": "UINT64_T",
    "f4": "FLOAT",
    "f8": "DOUBLE",
    "c8": "C_FLOAT_COMPLEX",
    "c16": "C_DOUBLE_COMPLEX",
}


class Pieces(NamedTuple):
    """How large allreduces are cut.

    Attributes:
        above: Bytes up to which one goes whole.
        piece: Bytes of a piece of a larger one.
    """

    above: int
    piece: int


class Moves:
    """Moves and combines arrays among the ranks of one MPI communicator.

    Args:
        mpi: The module `mpi4py.MPI`.
        comm: The communicator, used for nothing else.
        pieces: How large allreduces are cut.
    """

    def __init__(self, mpi: Any, comm: Any, pieces: Pieces) -> None:
        self._mpi = mpi
        self._comm = comm
        self._rank = int(comm.Get_rank())
        self._size = int(comm.Get_size())
        self._whole, self._piece = pieces
        self._in_place = mpi.IN_PLACE
        self._types: dict[np.dtype[Any], Any] = {
            np.dtype(kind): getattr(mpi, name) for kind, name in _DATATYPES.items()
        }
        # Over bytes that are 0 or 1, "or" is the maximum and "and" the minimum.
        self._bool_ops = (mpi.MAX, mpi.MIN, mpi.MIN, mpi.MAX)
        self._ops = (mpi.SUM, mpi.PROD, mpi.MIN, mpi.MAX, mpi.SUM)
        self._scratch: Array | None = None

    def allreduce(self, src: Array, dst: Array, op: ReduceOp, family: Family) -> None:
        """Combines into every rank's destination, which may be the source."""
        if family is _HALF:
            self._allreduce_half(src, dst, op)
            return
        # Arrays that own their memory share it with no other; asking numpy costs more.
        if src is not dst and not (src.flags.owndata and dst.flags.owndata):
            src = self._detach(src, dst)
        call = (self._bool_ops if family is _BOOL else self._ops)[op]
        if src.nbytes <= self._whole:
            kind = self._types[src.dtype]
            self._comm.Allreduce(self._in_place if src is dst else [src, kind], [dst, kind], call)
            if op is _AVG:
                divide(dst, self._size)
            return
        for source, target in self._cut(src, dst):
            self._allreduce(source, target, call)
            if op is _AVG:
                divide(target, self._size)

    def reduce_scatter(self, src: Array, dst: Array, op: ReduceOp, family: Family) -> None:
        """Combines and leaves each rank its part."""
        if np.may_share_memory(src, dst):
            src = src.copy()
        if family is Family.HALF:
            self._reduce_scatter_half(src, dst, op)
            return
        ops = self._bool_ops if family is Family.BOOL else self._ops
        kind = self._types[src.dtype]
        self._comm.Reduce_scatter_block([src, kind], [dst, kind], ops[op])
        if op is ReduceOp.AVG:
            divide(dst, self._size)

    def allgather(self, src: Array, dst: Array) -> None:
        """Brings every source to every rank."""
        mine = self._own_part(src, dst, self._rank)
        self._comm.Allgather(mine, self._buffer(dst))

    def broadcast(self, src: Array, dst: Array) -> None:
        """Copies rank 0's source to all."""
        if self._rank == 0 and src is not dst:
            self._comm.Bcast(self._buffer(src), 0)
            dst.reshape(-1)[:] = src.reshape(-1)
        else:
            self._comm.Bcast(self._buffer(dst), 0)

    def scatter(self, src: Array | None, dst: Array) -> None:
        """Gives each rank its part of rank 0's source."""
        if src is None or self._rank:
            self._comm.Scatter(None, self._buffer(dst), 0)
        else:
            mine = self._own_part(dst, src, 0)
            if isinstance(mine, list) and np.may_share_memory(src, dst):
                src = src.copy()
            self._comm.Scatter(self._buffer(src), mine, 0)

    def gather(self, src: Array, dst: Array | None) -> None:
        """Collects every source at rank 0."""
        if dst is None or self._rank:
            self._comm.Gather(self._buffer(src), None, 0)
        else:
            self._comm.Gather(self._own_part(src, dst, 0), self._buffer(dst), 0)

    def all_to_all(self, src: Array, dst: Array) -> None:
        """Transposes the matrix of parts; source and destination may be one array."""
        src = self._detach(src, dst)
        same = src.ctypes.data == dst.ctypes.data
        self._comm.Alltoall(self._in_place if same else self._buffer(src), self._buffer(dst))

    def send(self, buf: Array, rank: int) -> None:
        """Sends to one rank."""
        self._comm.Send(self._buffer(buf), rank)

    def recv(self, buf: Array, rank: int) -> None:
        """Receives from one rank."""
        self._comm.Recv(self._buffer(buf), rank)

    def _cut(self, src: Array, dst: Array) -> Iterator[tuple[Array, Array]]:
        source, target = src.reshape(-1), dst.reshape(-1)
        for start, stop in cut(source.size, self._piece // source.itemsize):
            part = target[start:stop]
            yield (part if src is dst else source[start:stop]), part

    def _allreduce(self, src: Array, dst: Array, op: Any) -> None:
        kind = self._types[src.dtype]
        self._comm.Allreduce(self._in_place if src is dst else [src, kind], [dst, kind], op)

    def _allreduce_half(self, src: Array, dst: Array, op: ReduceOp) -> None:
        src = self._detach(src, dst).reshape(-1)
        dst = dst.reshape(-1)
        for start, stop in cut(src.size, _HALF_PIECE):
            wide = self._wide(stop - start)
            wide[:] = src[start:stop]
            self._allreduce(wide, wide, self._ops[op])
            narrow(wide, dst[start:stop], self._size if op is ReduceOp.AVG else 1)

    def _reduce_scatter_half(self, src: Array, dst: Array, op: ReduceOp) -> None:
        rows = src.reshape(self._size, -1)
        dst = dst.reshape(-1)
        kind = self._mpi.FLOAT
        for start, stop in cut(dst.size, max(1, _HALF_PIECE // self._size)):
            width = stop - start
            wide = self._wide(width * self._size)
            wide.reshape(self._size, width)[:] = rows[:, start:stop]
            # In place the result lies at the front of the buffer.
            self._comm.Reduce_scatter_block(self._in_place, [wide, kind], self._ops[op])
            divisor = self._size if op is ReduceOp.AVG else 1
            narrow(wide[:width], dst[start:stop], divisor)

    def _wide(self, count: int) -> Array:
        if self._scratch is None or self._scratch.size < count:
            self._scratch = np.empty(max(count, _HALF_PIECE), np.float32)
        return self._scratch[:count]

    def _buffer(self, array: Array) -> list[Any]:
        kind = self._types.get(array.dtype)
        if kind is None:
            return [array.reshape(-1).view(np.uint8), self._mpi.BYTE]
        return [array, kind]

    def _own_part(self, part: Array, whole: Array, rank: int) -> Any:
        """What stands for this rank's part of an array of all parts in MPI's calls."""
        if not np.may_share_memory(part, whole):
            return self._buffer(part)
        if part.ctypes.data == whole.ctypes.data + rank * part.nbytes:
            return self._in_place
        return self._buffer(part.copy())

    def _detach(self, src: Array, dst: Array) -> Array:
        """Copies a source that overlaps its destination without being it."""
        if src is dst or not np.may_share_memory(src, dst):
            return src
        return dst if src.ctypes.data == dst.ctypes.data else src.copy()


def cut(size: int, piece: int) -> Iterator[tuple[int, int]]:
    """The bounds of pieces of at most so many elements."""
    for start in range(0, size, piece):
        yield start, min(start + piece, size)
