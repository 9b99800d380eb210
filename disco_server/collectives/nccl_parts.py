"""The data operations of an NCCL communicator whose parts differ, or whose root is any rank.

NCCL has none for uneven parts, but runs sends and receives of a group at once, and so
it does reductions that each leave their result on one rank.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import accumulate
from typing import NamedTuple

from disco_server.collectives.base import Array, ReduceOp
from disco_server.collectives.checks import Family
from disco_server.collectives.nccl_moves import NcclMoves
from disco_server.devices.base import address

__all__ = ["NcclPartMoves"]


class _Part(NamedTuple):
    """Where a part lies in the GPU's memory, and how long it is in bytes."""

    at: int
    nbytes: int


_NOTHING = _Part(0, 0)


class NcclPartMoves(NcclMoves):
    """Moves and combines arrays on GPUs; see `DataMoves`."""

    def allgather_parts(self, src: Array, dst: Array, counts: Sequence[int]) -> None:
        """Brings every source, of so many elements, to every rank."""
        own = _start(dst, counts, self._rank)
        with self._enqueue("allgather", src, dst, own) as (source, stream):
            self._exchange([_whole(source)] * self._size, _split(dst, counts), stream)

    def all_to_all_parts(self, src: Array, dst: Array, table: Sequence[Sequence[int]]) -> None:
        """Sends `table[i][j]` elements from each rank i to each rank j."""
        sent, received = table[self._rank], [row[self._rank] for row in table]
        with self._enqueue("all_to_all", src, dst, None) as (source, stream):
            self._exchange(_split(source, sent), _split(dst, received), stream)

    def broadcast_from(self, src: Array, dst: Array, root: int) -> None:
        """Copies the root's source to all."""
        src, byte = src if self._rank == root else dst, self._library.byte
        with self._enqueue("broadcast", src, dst) as (source, stream):
            self._comm.broadcast(address(source), address(dst), dst.nbytes, byte, root, stream)

    def scatter_parts(
        self, src: Array | None, dst: Array, counts: Sequence[int], root: int
    ) -> None:
        """Gives each rank its part of the root's source."""
        incoming = self._only(_whole(dst), root)
        if src is None or self._rank != root:
            with self._enqueue("scatter", dst, dst) as (_, stream):
                self._exchange(self._only(_NOTHING, root), incoming, stream)
            return
        own = -_start(src, counts, root)
        with self._enqueue("scatter", src, dst, own) as (source, stream):
            self._exchange(_split(source, counts), incoming, stream)

    def gather_parts(self, src: Array, dst: Array | None, counts: Sequence[int], root: int) -> None:
        """Collects every source at the root."""
        if dst is None or self._rank != root:
            with self._enqueue("gather", src, src) as (_, stream):
                outgoing = self._only(_whole(src), root)
                self._exchange(outgoing, self._only(_NOTHING, root), stream)
            return
        own = _start(dst, counts, root)
        with self._enqueue("gather", src, dst, own) as (source, stream):
            outgoing = self._only(_whole(source), root)
            self._exchange(outgoing, _split(dst, counts), stream)

    def reduce_scatter_parts(
        self, src: Array, dst: Array, op: ReduceOp, family: Family, counts: Sequence[int]
    ) -> None:
        """Combines and leaves each rank its part, of so many elements."""
        kind, call = self._library.type_of(src.dtype), self._library.reduction(op, family)
        name, own = f"reduce_scatter({op.name.lower()})", -_start(src, counts, self._rank)
        with self._enqueue(name, src, dst, own) as (source, stream), self._together():
            for root, (part, count) in enumerate(zip(_split(source, counts), counts, strict=True)):
                if count:
                    to = address(dst) if root == self._rank else 0
                    elements = count * kind.each
                    self._comm.reduce(part.at, to, elements, kind.number, call, root, stream)

    def _exchange(self, outgoing: Sequence[_Part], incoming: Sequence[_Part], stream: int) -> None:
        """Sends a part to each rank and receives one from each; parts may be empty."""
        byte = self._library.byte
        with self._together():
            for peer, (there, here) in enumerate(zip(outgoing, incoming, strict=True)):
                if peer == self._rank:
                    continue
                if there.nbytes:
                    self._comm.send(there.at, there.nbytes, byte, peer, stream)
                if here.nbytes:
                    self._comm.recv(here.at, here.nbytes, byte, peer, stream)
        there, here = outgoing[self._rank], incoming[self._rank]
        if here.nbytes:
            self._copy(here.at, there.at, here.nbytes)

    def _only(self, part: _Part, rank: int) -> list[_Part]:
        """Parts that are empty but for the one of a rank."""
        return [part if each == rank else _NOTHING for each in range(self._size)]


def _start(array: Array, counts: Sequence[int], rank: int) -> int:
    """Where in an array of all parts the one of a rank begins, in bytes."""
    return sum(counts[:rank]) * array.dtype.itemsize


def _whole(array: Array) -> _Part:
    return _Part(address(array), array.nbytes)


def _split(array: Array, counts: Iterable[int]) -> list[_Part]:
    """The parts of an array."""
    sizes = [count * array.dtype.itemsize for count in counts]
    starts = accumulate(sizes, initial=address(array))
    return [_Part(at, size) for at, size in zip(starts, sizes, strict=False)]
