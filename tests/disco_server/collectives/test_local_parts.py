"""Uneven parts between threads where arrays overlap; every dtype and way is in `test_team`."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from disco_server.collectives import local
from disco_server.collectives.local import LocalBackend
from disco_server.collectives.thread_barrier import ThreadBarrier
from disco_server.collectives.types import ReduceOp
from disco_server.collectives.validation import Family

N = 3
COUNTS = [40_000, 0, 60_001]
STARTS = [0, 40_000, 40_000]
TOTAL = sum(COUNTS)


@pytest.fixture(autouse=True, params=[0, 1 << 30], ids=["shared", "alone"])
def most_alone(request, monkeypatch):
    """Threads share the work, or the last one does all of it."""
    monkeypatch.setattr(local, "MOST_ALONE_BYTES", request.param)


def on_all(act: Callable[[LocalBackend, int], np.ndarray]) -> list[np.ndarray]:
    table = ThreadBarrier(N)

    def run(rank: int) -> np.ndarray:
        return act(LocalBackend(table, rank, N, lambda _peer: (table, 0)), rank)

    with ThreadPoolExecutor(N) as threads:
        return list(threads.map(run, range(N)))


@pytest.mark.parametrize("shift", [0, 1, 30_000])
def test_reductions_may_leave_their_part_anywhere_in_the_source(shift):
    """While the others still read it."""

    def reduce(backend: LocalBackend, rank: int) -> np.ndarray:
        whole = np.arange(TOTAL + shift, dtype=np.float64) + rank
        start = STARTS[rank] + shift
        dst = whole[start : start + COUNTS[rank]]
        backend.reduce_scatter(whole[:TOTAL], dst, ReduceOp.SUM, Family.FLOAT, COUNTS)
        return dst

    for got, start, count in zip(on_all(reduce), STARTS, COUNTS, strict=True):
        assert np.array_equal(got, N * np.arange(start, start + count) + 3.0)


@pytest.mark.parametrize("root", range(N))
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

    for rank, got in enumerate(on_all(there_and_back)):
        start = 0 if rank == root else STARTS[rank]
        assert np.array_equal(got, np.arange(start, start + got.size))
