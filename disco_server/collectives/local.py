"""Collectives between the threads of one process, on numpy arrays."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from functools import partial
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from disco_server.collectives.local_exchange import LocalExchange
from disco_server.collectives.numeric import combine
from disco_server.collectives.process_groups import ProcessGroups
from disco_server.collectives.teams import LineParts
from disco_server.collectives.thread_barrier import MOST_ALONE_BYTES, ThreadBarrier
from disco_server.collectives.types import Array, ReduceOp, Tag

if TYPE_CHECKING:
    from disco_server.collectives.loss import Loss
    from disco_server.collectives.validation import Family, Lines

__all__ = [
    "LocalBackend",
    "LocalGroups",
    "LocalWorld",
    "copy_into",
    "detached",
    "keep",
    "reduce_into",
    "same_place",
]


# The data operations between threads, which read each other's arrays.
#
# Every thread publishes its arrays. What is small the last one does for all. Of what is large
# each copies or computes its share: numpy lets other threads run while it copies or reduces, so
# the shares are worked on at the same time, and no thread returns before all have finished reading.


# Elements that are combined at once: some hundred KiB, which stay in a cache.
_PIECE = 1 << 15

_Step = Callable[[int, list[Any]], None]
"""Does one rank's share of an operation, given what all ranks have published."""


class LocalBackend:
    """One thread's part in the operations of one group; see `Backend`.

    Args:
        barrier: Where the members publish their arrays.
        rank: This thread's place among them.
        size: How many they are.
        open_pair: Finds the barrier of this rank and another one, and which of its
            two places is this rank's.
    """

    def __init__(
        self,
        barrier: ThreadBarrier,
        rank: int,
        size: int,
        open_pair: Callable[[int], tuple[ThreadBarrier, int]],
    ) -> None:
        self._barrier = barrier
        self._rank = rank
        self._size = size
        self._open_pair = open_pair

    def _move(self, arrays: object, nbytes: int, *steps: _Step) -> None:
        """Does an operation.

        Args:
            arrays: What this rank publishes.
            nbytes: Of the longest array that takes part, the same on all ranks.
            steps: What each rank does, one after the other; all ranks have done one before any
                begins with the next. The same for all ranks but for the number that they get.
        """
        meet, rank = self._barrier.meet, self._rank
        if nbytes * self._size <= MOST_ALONE_BYTES:
            meet(rank, arrays, partial(_take_steps, steps))
            return
        published = meet(rank, arrays, list)
        for step in steps:
            step(rank, published)
            meet(rank, None, _do_nothing)

    def allreduce(self, src: Array, dst: Array, op: ReduceOp, family: Family) -> None:
        """See `Backend.allreduce`; each rank reduces a share and copies the others'."""
        bounds = _shares(dst.size, self._size)

        def reduce(rank: int, published: list[Any]) -> None:
            start, stop = bounds[rank]
            target = published[rank][1][start:stop]
            reduce_into([source for source, _ in published], start, target, op, family)

        def collect(rank: int, published: list[Any]) -> None:
            target = published[rank][1]
            for other, (start, stop) in enumerate(bounds):
                if other != rank:
                    target[start:stop] = published[other][1][start:stop]

        arrays = detached(src, dst).reshape(-1), dst.reshape(-1)
        self._move(arrays, dst.nbytes, reduce, collect)

    def reduce_scatter(
        self,
        src: Array,
        dst: Array,
        op: ReduceOp,
        family: Family,
        counts: Sequence[int] | None = None,
    ) -> None:
        """See `Backend.reduce_scatter`."""
        lengths = counts or [dst.size] * self._size

        def reduce(rank: int, published: list[Any]) -> None:
            sources = [source for source, _ in published]
            reduce_into(sources, sum(lengths[:rank]), published[rank][1], op, family)

        arrays = self._shareable(src, dst, lengths).reshape(-1), dst.reshape(-1)
        self._move(arrays, src.nbytes, reduce)

    def allgather(self, src: Array, dst: Array, counts: Sequence[int] | None = None) -> None:
        """See `Backend.allgather`."""
        parts = _cut(dst, counts or [src.size] * self._size)

        def collect(rank: int, published: list[Any]) -> None:
            for part, (source, _) in zip(published[rank][1], published, strict=True):
                copy_into(part, source)

        arrays = keep(src, dst, parts[self._rank]).reshape(-1), parts
        self._move(arrays, dst.nbytes, collect)

    def broadcast(self, src: Array, dst: Array, root: int = 0) -> None:
        """See `Backend.broadcast`."""

        def copy(rank: int, published: list[Any]) -> None:
            copy_into(published[rank][1], published[root][0])

        source = detached(src, dst).reshape(-1) if self._rank == root else None
        self._move((source, dst.reshape(-1)), dst.nbytes, copy)

    def scatter(
        self, src: Array | None, dst: Array, counts: Sequence[int] | None = None, root: int = 0
    ) -> None:
        """See `Backend.scatter`."""
        lengths = counts or [dst.size] * self._size

        def copy(rank: int, published: list[Any]) -> None:
            copy_into(published[rank][1], _cut(published[root][0], lengths)[rank])

        source = None
        if src is not None and self._rank == root:
            source = self._shareable(src, dst, lengths)
        self._move((source, dst.reshape(-1)), sum(lengths) * dst.itemsize, copy)

    def gather(
        self, src: Array, dst: Array | None, counts: Sequence[int] | None = None, root: int = 0
    ) -> None:
        """See `Backend.gather`."""
        lengths = counts or [src.size] * self._size

        def collect(rank: int, published: list[Any]) -> None:
            if rank == root:
                for part, (source, _) in zip(published[root][1], published, strict=True):
                    copy_into(part, source)

        parts: list[Array] = []
        if dst is not None and self._rank == root:
            parts = _cut(dst, lengths)
            src = keep(src, dst, parts[root])
        self._move((src.reshape(-1), parts), sum(lengths) * src.itemsize, collect)

    def all_to_all(
        self, src: Array, dst: Array, table: Sequence[Sequence[int]] | None = None
    ) -> None:
        """See `Backend.all_to_all`."""
        rows = table or [[src.size // self._size] * self._size] * self._size

        def collect(rank: int, published: list[Any]) -> None:
            parts = _cut(published[rank][1], [row[rank] for row in rows])
            for part, row, (source, _) in zip(parts, rows, published, strict=True):
                start = sum(row[:rank])
                part[:] = source[start : start + part.size]

        source = src.copy() if np.may_share_memory(src, dst) else src
        nbytes = max(map(sum, rows)) * src.itemsize
        self._move((source.reshape(-1), dst), nbytes, collect)

    def send(self, buf: Array, rank: int) -> None:
        """See `Backend.send`."""
        barrier, place = self._open_pair(rank)
        barrier.meet(place, (buf, None), _hand_over)

    def recv(self, buf: Array, rank: int) -> None:
        """See `Backend.recv`."""
        barrier, place = self._open_pair(rank)
        barrier.meet(place, (None, buf), _hand_over)

    def _shareable(self, whole: Array, part: Array, counts: Sequence[int]) -> Array:
        """An array of parts that others read while this rank writes to its own part."""
        mine = _cut(whole, counts)[self._rank]
        return whole if same_place(mine, part) else keep(whole, part, mine)


def _take_steps(steps: Sequence[_Step], published: list[Any]) -> None:
    """Does the steps of all ranks."""
    for step in steps:
        for rank in range(len(published)):
            step(rank, published)


def _do_nothing(_brought: list[Any]) -> None:
    """What the last one does where threads only wait for each other."""


def _hand_over(published: list[Any]) -> None:
    """Copies what one of two ranks sends to where the other one receives."""
    (one, into), (other, or_into) = published
    source, target = (one, or_into) if into is None else (other, into)
    target[...] = source.reshape(target.shape)


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
        self._barriers: dict[tuple[str, _Channel], ThreadBarrier] = {}
        self._lock = threading.Lock()
        self._closed = False

    def channel(self, tag: Tag, members: tuple[int, ...]) -> ThreadBarrier:
        """Where these ranks exchange headers; the first caller makes it."""
        return self._barrier("headers", tag, members)

    def table(self, tag: Tag, members: tuple[int, ...]) -> ThreadBarrier:
        """Where these ranks publish their arrays; the first caller makes it."""
        return self._barrier("arrays", tag, members)

    def _barrier(self, what: str, tag: Tag, members: tuple[int, ...]) -> ThreadBarrier:
        with self._lock:
            found = self._barriers.get((what, (tag, members)))
            if found is None:
                found = self._barriers[what, (tag, members)] = ThreadBarrier(len(members))
                if self._closed:
                    found.close()
        return found

    def wake(self) -> None:
        """Lets every rank that waits ask whether it was interrupted."""
        with self._lock:
            for barrier in self._barriers.values():
                barrier.wake()

    def close(self) -> None:
        """Ends every wait of every rank with `UnavailableError`; idempotent."""
        with self._lock:
            self._closed = True
            for barrier in self._barriers.values():
                barrier.close()


class LocalGroups(ProcessGroups):
    """The process groups of a rank that is a thread.

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
        barrier, rank = self._shared.table(tag, members), members.index(self._worker_id)
        return LocalBackend(barrier, rank, len(members), self._open_pair)

    def _open_line(self, lines: Lines, place: int | None) -> LineParts | None:
        if place is None:
            return None
        members = lines[place]
        return LineParts(
            self._open_exchange(Tag.TEAM, members), self._open_backend(Tag.TEAM, members)
        )

    def _open_pair(self, peer: int) -> tuple[ThreadBarrier, int]:
        pair = (min(peer, self._worker_id), max(peer, self._worker_id))
        return self._shared.table(Tag.PAIR, pair), pair.index(self._worker_id)

    def _release(self) -> None:
        """Does nothing: the world belongs to its owner."""
