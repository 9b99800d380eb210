"""Data between threads where arrays overlap; every dtype is in `test_collectives`, `test_team`."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from disco_server.collectives import local
from disco_server.collectives.local import LocalBackend
from disco_server.collectives.thread_barrier import ThreadBarrier
from disco_server.collectives.types import ReduceOp, UnavailableError
from disco_server.collectives.validation import Family

N = 4
SIZE = 100_003
COUNTS = [40_000, 0, 60_001]
"""Uneven parts of three threads."""
STARTS = [0, 40_000, 40_000]
TOTAL = sum(COUNTS)


@pytest.fixture(autouse=True, params=[0, 1 << 30], ids=["shared", "alone"])
def most_alone(request, monkeypatch):
    """Threads share the work, or the last one does all of it."""
    monkeypatch.setattr(local, "MOST_ALONE_BYTES", request.param)


def on_all(act: Callable[[LocalBackend, int], np.ndarray], ranks: int = N) -> list[np.ndarray]:
    table = ThreadBarrier(ranks)
    pairs = {(a, b): ThreadBarrier(2) for b in range(ranks) for a in range(b)}

    def run(rank: int) -> np.ndarray:
        def open_pair(peer: int) -> tuple[ThreadBarrier, int]:
            pair = (min(peer, rank), max(peer, rank))
            return pairs[pair], pair.index(rank)

        return act(LocalBackend(table, rank, ranks, open_pair), rank)

    with ThreadPoolExecutor(ranks) as threads:
        return list(threads.map(run, range(ranks)))


@pytest.mark.parametrize("shift", [0, 1, 5000])
def test_a_reduction_may_overlap_its_source(shift):
    """In place, or a little further in the same memory, the sum is that of what was there."""

    def reduce(backend: LocalBackend, rank: int) -> np.ndarray:
        whole = np.arange(SIZE + shift, dtype=np.float64) + rank
        src, dst = whole[:SIZE], whole[shift:]
        backend.allreduce(src, dst, ReduceOp.SUM, Family.FLOAT)
        return dst

    for got in on_all(reduce):
        assert np.array_equal(got, N * np.arange(SIZE) + 6.0)


def test_parts_may_lie_where_they_belong():
    """Own parts in place, in gathers and spreads, are neither copied nor spoilt."""

    def gather(backend: LocalBackend, rank: int) -> np.ndarray:
        whole = np.full((N, SIZE), -1.0)
        whole[rank] = rank
        backend.allgather(whole[rank], whole)
        return whole[:, ::1000]

    def spread(backend: LocalBackend, rank: int) -> np.ndarray:
        whole = np.repeat(np.arange(N) + 10.0 * rank, SIZE).reshape(N, SIZE)
        backend.reduce_scatter(whole, whole[rank], ReduceOp.MAX, Family.FLOAT)
        return whole[rank, ::1000]

    for got in on_all(gather):
        assert np.array_equal(got, np.repeat(np.arange(4.0), 101).reshape(N, -1))
    for rank, got in enumerate(on_all(spread)):
        assert np.array_equal(got, np.full(101, 30.0 + rank))


def test_parts_change_places_in_one_array():
    """All-to-all in place transposes."""

    def swap(backend: LocalBackend, rank: int) -> np.ndarray:
        data = np.arange(N) + 10.0 * rank
        backend.all_to_all(data, data)
        return data

    assert [got.tolist() for got in on_all(swap)] == [
        [10.0 * other + rank for other in range(N)] for rank in range(N)
    ]


@pytest.mark.parametrize("shift", [0, 1, 30_000])
def test_uneven_reductions_may_leave_their_part_anywhere_in_the_source(shift):
    """While the others still read it."""

    def reduce(backend: LocalBackend, rank: int) -> np.ndarray:
        whole = np.arange(TOTAL + shift, dtype=np.float64) + rank
        start = STARTS[rank] + shift
        dst = whole[start : start + COUNTS[rank]]
        backend.reduce_scatter(whole[:TOTAL], dst, ReduceOp.SUM, Family.FLOAT, COUNTS)
        return dst

    for got, start, count in zip(on_all(reduce, 3), STARTS, COUNTS, strict=True):
        assert np.array_equal(got, 3 * np.arange(start, start + count) + 3.0)


@pytest.mark.parametrize("root", range(3))
@pytest.mark.parametrize("shift", [0, 1, 30_000])
def test_roots_may_give_and_take_in_one_memory(root, shift):
    """A scatter and a gather back, with the root's part anywhere in its array of all."""

    def there_and_back(backend: LocalBackend, rank: int) -> np.ndarray:
        whole = np.arange(TOTAL + shift, dtype=np.float64) * (rank == root)
        start = STARTS[rank] + shift
        part = whole[start : start + COUNTS[rank]]
        backend.scatter(whole[:TOTAL], part, COUNTS, root)
        backend.gather(part, whole[:TOTAL] if rank == root else None, COUNTS, root)
        return whole[:TOTAL] if rank == root else part

    for rank, got in enumerate(on_all(there_and_back, 3)):
        start = 0 if rank == root else STARTS[rank]
        assert np.array_equal(got, np.arange(start, start + got.size))


def test_a_closed_barrier_ends_every_wait():
    """Nobody waits for threads that never come."""
    table = ThreadBarrier(2)
    table.close()

    with pytest.raises(UnavailableError, match="session ended"):
        table.meet(0, None, len)
