"""Collectives between the threads of one process, on numpy arrays."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from disco_server.collectives.communicator import Communicator
from disco_server.collectives.group import LineParts
from disco_server.collectives.header_exchange import LocalChannel, LocalExchange
from disco_server.collectives.numeric import combine
from disco_server.collectives.types import Array, ReduceOp, Tag, UnavailableError

if TYPE_CHECKING:
    from disco_server.collectives.loss import Loss
    from disco_server.collectives.types import Array, ReduceOp
    from disco_server.collectives.validation import Family, Lines

__all__ = [
    "LocalBackend",
    "LocalCommunicator",
    "LocalTable",
    "LocalWorld",
    "copy_into",
    "detached",
    "keep",
    "reduce_into",
    "same_place",
]


# The data operations between threads, which read each other's arrays.
#
# Every thread publishes its array, and when all have done so each copies or computes its
# share. numpy lets other threads run while it copies or reduces, so the shares are
# worked on at the same time. No thread returns before all have finished reading.


# Elements that are combined at once: some hundred KiB, which stay in a cache.
_PIECE = 1 << 15


class LocalTable:
    """Where the threads of one group publish their arrays.

    Args:
        members: How many they are.
    """

    def __init__(self, members: int) -> None:
        self.shown: list[Any] = [None] * members
        self._barrier = threading.Barrier(members)

    def meet(self) -> None:
        """Waits for all threads.

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


class LocalBackend:
    """One thread's part in the operations of one group; see `Backend`.

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
        """Publishes a value and waits until all have published theirs."""
        table = self._table
        table.shown[self._rank] = value
        table.meet()
        return list(table.shown)

    def _done(self) -> None:
        """Waits until no thread reads any more."""
        self._table.meet()
        self._table.shown[self._rank] = None

    def allreduce(self, src: Array, dst: Array, op: ReduceOp, family: Family) -> None:
        """See `Backend.allreduce`; each rank reduces a share and copies the others'."""
        source, target = detached(src, dst), dst.reshape(-1)
        shown = self._show((source.reshape(-1), target))
        bounds = _shares(target.size, self._size)
        start, stop = bounds[self._rank]
        reduce_into([each for each, _ in shown], start, target[start:stop], op, family)
        self._table.meet()
        for rank, (start, stop) in enumerate(bounds):
            if rank != self._rank:
                target[start:stop] = shown[rank][1][start:stop]
        self._done()

    def reduce_scatter(
        self,
        src: Array,
        dst: Array,
        op: ReduceOp,
        family: Family,
        counts: Sequence[int] | None = None,
    ) -> None:
        """See `Backend.reduce_scatter`."""
        target = dst.reshape(-1)
        lengths = counts or [target.size] * self._size
        sources = self._show(self._shareable(src, dst, lengths).reshape(-1))
        reduce_into(sources, sum(lengths[: self._rank]), target, op, family)
        self._done()

    def allgather(self, src: Array, dst: Array, counts: Sequence[int] | None = None) -> None:
        """See `Backend.allgather`."""
        parts = _cut(dst, counts or [src.size] * self._size)
        sources = self._show(keep(src, dst, parts[self._rank]).reshape(-1))
        for part, source in zip(parts, sources, strict=True):
            copy_into(part, source)
        self._done()

    def broadcast(self, src: Array, dst: Array, root: int = 0) -> None:
        """See `Backend.broadcast`."""
        shown = self._show(detached(src, dst) if self._rank == root else None)
        copy_into(dst.reshape(-1), shown[root].reshape(-1))
        self._done()

    def scatter(
        self, src: Array | None, dst: Array, counts: Sequence[int] | None = None, root: int = 0
    ) -> None:
        """See `Backend.scatter`."""
        lengths = counts or [dst.size] * self._size
        mine = None
        if src is not None and self._rank == root:
            mine = self._shareable(src, dst, lengths)
        shown = self._show(mine)
        copy_into(dst.reshape(-1), _cut(shown[root], lengths)[self._rank])
        self._done()

    def gather(
        self, src: Array, dst: Array | None, counts: Sequence[int] | None = None, root: int = 0
    ) -> None:
        """See `Backend.gather`."""
        if dst is None or self._rank != root:
            self._show(src.reshape(-1))
        else:
            parts = _cut(dst, counts or [src.size] * self._size)
            sources = self._show(keep(src, dst, parts[root]).reshape(-1))
            for part, source in zip(parts, sources, strict=True):
                copy_into(part, source)
        self._done()

    def all_to_all(
        self, src: Array, dst: Array, table: Sequence[Sequence[int]] | None = None
    ) -> None:
        """See `Backend.all_to_all`."""
        rank = self._rank
        rows = table or [[src.size // self._size] * self._size] * self._size
        source = src.copy() if np.may_share_memory(src, dst) else src
        sources = self._show(source.reshape(-1))
        parts = _cut(dst, [row[rank] for row in rows])
        for part, row, each in zip(parts, rows, sources, strict=True):
            start = sum(row[:rank])
            part[:] = each[start : start + part.size]
        self._done()

    def send(self, buf: Array, rank: int) -> None:
        """See `Backend.send`."""
        table, place = self._open_pair(rank)
        table.shown[place] = buf
        table.meet()
        table.meet()
        table.shown[place] = None

    def recv(self, buf: Array, rank: int) -> None:
        """See `Backend.recv`."""
        table, place = self._open_pair(rank)
        table.meet()
        buf[...] = table.shown[1 - place].reshape(buf.shape)
        table.meet()

    def _shareable(self, whole: Array, part: Array, counts: Sequence[int]) -> Array:
        """An array of parts that others read while this rank writes to its own part."""
        mine = _cut(whole, counts)[self._rank]
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


def detached(src: Array, dst: Array) -> Array:
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
    """Copies an array unless the target is the same memory."""
    if not same_place(target, source):
        target[:] = source


def _cut(whole: Array, counts: Sequence[int]) -> list[Array]:
    """The parts of an array, flat."""
    flat = whole.reshape(-1)
    stops = accumulate(counts)
    return [flat[stop - count : stop] for count, stop in zip(counts, stops, strict=True)]


_Channel = tuple[Tag, tuple[int, ...]]


class LocalWorld:
    """What the workers of a session share when they are threads.

    Args:
        num_workers: The workers of the session.
        num_groups: Their groups.
    """

    def __init__(self, num_workers: int, num_groups: int = 1) -> None:
        self.num_workers = num_workers
        self.num_groups = num_groups
        self._channels: dict[_Channel, LocalChannel] = {}
        self._tables: dict[_Channel, LocalTable] = {}
        self._lock = threading.Lock()
        self._closed = False

    def channel(self, tag: Tag, members: tuple[int, ...]) -> LocalChannel:
        """The channel of these ranks' headers; the first caller makes it."""
        with self._lock:
            found = self._channels.get((tag, members))
            if found is None:
                found = self._channels[tag, members] = LocalChannel(len(members))
                if self._closed:
                    found.close()
        return found

    def table(self, tag: Tag, members: tuple[int, ...]) -> LocalTable:
        """The table of these ranks' arrays; the first caller makes it."""
        with self._lock:
            found = self._tables.get((tag, members))
            if found is None:
                found = self._tables[tag, members] = LocalTable(len(members))
                if self._closed:
                    found.close()
        return found

    def close(self) -> None:
        """Ends every wait of every rank with `UnavailableError`; idempotent."""
        with self._lock:
            self._closed = True
            for shared in (*self._channels.values(), *self._tables.values()):
                shared.close()


class LocalCommunicator(Communicator):
    """A rank that is a thread; see `Communicator`.

    Args:
        worker_id: This rank.
        world: Shared by the ranks.
        loss: Is notified if a library for GPUs fails in use.
    """

    ccl = "local"

    def __init__(self, worker_id: int, world: LocalWorld, loss: Loss | None = None) -> None:
        self._shared = world
        super().__init__(
            worker_id,
            world.num_workers,
            world.num_groups,
            self._open_exchange,
            self._open_backend,
            loss,
        )

    def _open_exchange(self, tag: Tag, members: tuple[int, ...]) -> LocalExchange:
        return LocalExchange(self._shared.channel(tag, members), members.index(self._worker_id))

    def _open_backend(self, tag: Tag, members: tuple[int, ...]) -> LocalBackend:
        table = self._shared.table(tag, members)
        return LocalBackend(table, members.index(self._worker_id), self._open_pair)

    def _open_line(self, lines: Lines, place: int | None) -> LineParts | None:
        if place is None:
            return None
        members = lines[place]
        return LineParts(
            self._open_exchange(Tag.TEAM, members), self._open_backend(Tag.TEAM, members)
        )

    def _open_pair(self, peer: int) -> tuple[LocalTable, int]:
        pair = (min(peer, self._worker_id), max(peer, self._worker_id))
        return self._shared.table(Tag.PAIR, pair), pair.index(self._worker_id)

    def _release(self) -> None:
        """Does nothing: the world belongs to its owner."""
