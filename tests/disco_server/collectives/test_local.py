"""Worlds of threads; what their ranks do together is in `test_collectives`."""

from __future__ import annotations

import threading
from concurrent.futures import Future, ThreadPoolExecutor

import numpy as np
import pytest

from disco_server.collectives.local import LocalGroups, LocalWorld
from disco_server.collectives.types import ReduceOp, Tag, UnavailableError


def test_a_worker_that_is_alone_needs_nobody():
    """With one worker every collective is a copy, and returns at once."""
    groups = LocalGroups(0, LocalWorld(1))
    data, out = np.arange(100_000.0), np.empty(100_000)
    groups.position = 1
    groups.world.allreduce(data, out, ReduceOp.SUM)
    assert np.array_equal(out, data)
    groups.world.barrier()
    groups.close()


@pytest.mark.parametrize("size", [3, 100_000])
def test_closing_a_world_ends_every_wait(size):
    """Ranks that wait for one that never comes are told that the session ended."""
    world = LocalWorld(3)
    inside = threading.Barrier(3)

    def wait(rank: int) -> None:
        groups = LocalGroups(rank, world)
        groups.position = 1
        inside.wait()
        groups.world.allreduce(np.ones(size), np.ones(size), ReduceOp.SUM)

    with ThreadPoolExecutor(2) as threads:
        waits: list[Future[None]] = [threads.submit(wait, rank) for rank in range(2)]
        inside.wait()
        world.close()
        for each in waits:
            with pytest.raises(UnavailableError, match="session ended"):
                each.result(20)
    with pytest.raises(UnavailableError, match="session ended"):
        LocalGroups(2, world).world.barrier()


@pytest.mark.parametrize("nbytes", [2304, 64 << 10])
def test_a_small_collective_takes_one_barrier_or_two(nbytes):
    """Where data goes with the headers it takes one; the others move it at another one."""
    world, calls = LocalWorld(2), 20
    members = (0, 1)

    def run(rank: int) -> list[float]:
        groups = LocalGroups(rank, world)
        groups.position = 1
        data, both = np.full(nbytes // 8, rank + 1.0), np.empty(nbytes // 4)
        for _ in range(calls):
            groups.world.allreduce(data, data, ReduceOp.MAX)
            groups.world.allgather(data, both)
            groups.world.broadcast(data, data)
            groups.world.all_to_all(both, both)
        return [*data[:2], *both[:2]]

    with ThreadPoolExecutor(2) as threads:
        assert list(threads.map(run, range(2))) == [[2.0] * 4] * 2

    assert world.channel(Tag.WORLD, members)._rounds == 4 * calls
    assert world.table(Tag.WORLD, members)._rounds == calls
