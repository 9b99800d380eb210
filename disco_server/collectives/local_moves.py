"""The data operations between threads, which see each other's arrays.

Every thread shows its array, and when all have done so each takes or computes its
share. numpy lets other threads run while it copies or reduces, so the shares are
worked on at the same time. Before anybody returns all have finished reading.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from disco_server.collectives.base import Array, ReduceOp, UnavailableError
from disco_server.collectives.checks import Family
from disco_server.collectives.numeric import combine

__all__ = [
    "LocalMoves",
    "LocalTable",
    "apart",
    "copy_into",
    "keep",
    "reduce_into",
    "same_place",
]

# Elements that are combined at once: some hundred KiB, which stay in a cache.
_PIECE = 1 << 15


class LocalTable:
    """Where the threads of one side show their arrays.

    Args:
        members: How many they are.
    """

    def __init__(self, members: int) -> None:
        self.shown: list[Any] = [None] * members
        self._barrier = threading.Barrier(members)

    def meet(self) -> None:
        """Waits for all.

        Raises:
            UnavailableError: The session is over.
        """
        try:
            self._barrier.wait()
        except threading.BrokenBarrierError:
            raise UnavailableError(
                "the session ended while this worker was in a collective"
            ) from None

    def close(self) -> None:
        """Ends every wait, now and later."""
        self._barrier.abort()


class LocalMoves:
    """One thread's part in the operations of one side; see `sides.DataMoves`.

    Args:
        table: Shared with the other members.
        rank: This thread's place among them.
        open_pair: Finds the table of this rank and another one, and which of its
            two places is this rank's.
    """

    def __init__(
        self, table: LocalTable, rank: int, open_pair: Callable[[int], tuple[LocalTable, int]]
    ) -> None:
        self._table = table
        self._rank = rank
        self._size = len(table.shown)
        self._open_pair = open_pair

    def _show(self, value: Any) -> list[Any]:
        """Shows a value and waits until all have shown theirs."""
        table = self._table
        table.shown[self._rank] = value
        table.meet()
        return list(table.shown)

    def _done(self) -> None:
        """Waits until nobody reads any more."""
        self._table.meet()
        self._table.shown[self._rank] = None

    def allreduce(self, src: Array, dst: Array, op: ReduceOp, family: Family) -> None:
        """See `DataMoves.allreduce`; each rank reduces a share and copies the others'."""
        source, target = apart(src, dst), dst.reshape(-1)
        shown = self._show((source.reshape(-1), target))
        bounds = _shares(target.size, self._size)
        start, stop = bounds[self._rank]
        reduce_into([each for each, _ in shown], start, target[start:stop], op, family)
        self._table.meet()
        for rank, (start, stop) in enumerate(bounds):
            if rank != self._rank:
                target[start:stop] = shown[rank][1][start:stop]
        self._done()

    def reduce_scatter(self, src: Array, dst: Array, op: ReduceOp, family: Family) -> None:
        """See `DataMoves.reduce_scatter`."""
        sources = self._show(self._lend(src, dst, self._rank).reshape(-1))
        target = dst.reshape(-1)
        reduce_into(sources, self._rank * target.size, target, op, family)
        self._done()

    def allgather(self, src: Array, dst: Array) -> None:
        """See `DataMoves.allgather`."""
        parts = dst.reshape(self._size, -1)
        sources = self._show(keep(src, dst, parts[self._rank]).reshape(-1))
        for part, source in zip(parts, sources, strict=True):
            copy_into(part, source)
        self._done()

    def broadcast(self, src: Array, dst: Array) -> None:
        """See `DataMoves.broadcast`."""
        shown = self._show(apart(src, dst) if self._rank == 0 else None)
        copy_into(dst.reshape(-1), shown[0].reshape(-1))
        self._done()

    def scatter(self, src: Array | None, dst: Array) -> None:
        """See `DataMoves.scatter`."""
        mine = None
        if src is not None and self._rank == 0:
            mine = self._lend(src, dst, 0).reshape(self._size, -1)
        shown = self._show(mine)
        copy_into(dst.reshape(-1), shown[0][self._rank])
        self._done()

    def gather(self, src: Array, dst: Array | None) -> None:
        """See `DataMoves.gather`."""
        if dst is None or self._rank:
            self._show(src.reshape(-1))
        else:
            parts = dst.reshape(self._size, -1)
            sources = self._show(keep(src, dst, parts[0]).reshape(-1))
            for part, source in zip(parts, sources, strict=True):
                copy_into(part, source)
        self._done()

    def all_to_all(self, src: Array, dst: Array) -> None:
        """See `DataMoves.all_to_all`."""
        source = src.copy() if np.may_share_memory(src, dst) else src
        sources = self._show(source.reshape(self._size, -1))
        for part, each in zip(dst.reshape(self._size, -1), sources, strict=True):
            part[:] = each[self._rank]
        self._done()

    def send(self, buf: Array, rank: int) -> None:
        """See `DataMoves.send`."""
        table, place = self._open_pair(rank)
        table.shown[place] = buf
        table.meet()
        table.meet()
        table.shown[place] = None

    def recv(self, buf: Array, rank: int) -> None:
        """See `DataMoves.recv`."""
        table, place = self._open_pair(rank)
        table.meet()
        buf[...] = table.shown[1 - place].reshape(buf.shape)
        table.meet()

    def _lend(self, whole: Array, part: Array, rank: int) -> Array:
        """An array of parts that others read while this rank writes to its own part."""
        mine = whole.reshape(self._size, -1)[rank]
        return whole if same_place(mine, part) else keep(whole, part, mine)


def _shares(size: int, ranks: int) -> list[tuple[int, int]]:
    bounds = [size * rank // ranks for rank in range(ranks + 1)]
    return list(pairwise(bounds))


def reduce_into(
    sources: Sequence[Array], at: int, target: Array, op: ReduceOp, family: Family
) -> None:
    """Combines the elements of flat sources from a place on, as many as the target has.

    The target may be that place of one of the sources.
    """
    if len(sources) == 1:
        copy_into(target, sources[0][at : at + target.size])
        return
    scratch = np.empty(min(target.size, _PIECE), target.dtype)
    for start in range(0, target.size, _PIECE):
        out = target[start : start + _PIECE]
        piece = scratch[: out.size]
        first = at + start
        combine([each[first : first + out.size] for each in sources], piece, op, family)
        out[:] = piece


def same_place(a: Array, b: Array) -> bool:
    """Whether two arrays are the same memory."""
    return a.ctypes.data == b.ctypes.data and a.nbytes == b.nbytes


def apart(src: Array, dst: Array) -> Array:
    """A source that its destination is, or that shares no memory with it."""
    return (
        src
        if src is dst or same_place(src, dst) or not np.may_share_memory(src, dst)
        else src.copy()
    )


def keep(src: Array, dst: Array, own: Array) -> Array:
    """A source that others may read while the destination is written.

    Args:
        src: The source.
        dst: What is written.
        own: The part of either that is the same before and after.
    """
    return src if same_place(src, own) or not np.may_share_memory(src, dst) else src.copy()


def copy_into(target: Array, source: Array) -> None:
    """Copies what is not there already."""
    if not same_place(target, source):
        target[:] = source
