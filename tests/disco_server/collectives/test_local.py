"""Worlds of threads; what their ranks do together is in `test_collectives`."""

from __future__ import annotations

import threading
from concurrent.futures import Future, ThreadPoolExecutor

import numpy as np
import pytest

from disco_server.collectives.local import LocalCommunicator, LocalWorld
from disco_server.collectives.types import ReduceOp, UnavailableError


def test_a_worker_that_is_alone_needs_nobody():
    """With one worker every collective is a copy, and returns at once."""
    comm = LocalCommunicator(0, LocalWorld(1))
    data, out = np.arange(100_000.0), np.empty(100_000)
    comm.position = 1
    comm.allreduce(data, out, ReduceOp.SUM)
    assert np.array_equal(out, data)
    comm.barrier()
    comm.close()


@pytest.mark.parametrize("size", [3, 100_000])
def test_closing_a_world_ends_every_wait(size):
    """Ranks that wait for one that never comes are told that the session ended."""
    world = LocalWorld(3)
    inside = threading.Barrier(3)

    def wait(rank: int) -> None:
        comm = LocalCommunicator(rank, world)
        comm.position = 1
        inside.wait()
        comm.allreduce(np.ones(size), np.ones(size), ReduceOp.SUM)

    with ThreadPoolExecutor(2) as threads:
        waits: list[Future[None]] = [threads.submit(wait, rank) for rank in range(2)]
        inside.wait()
        world.close()
        for each in waits:
            with pytest.raises(UnavailableError, match="session ended"):
                each.result(20)
    with pytest.raises(UnavailableError, match="session ended"):
        LocalCommunicator(2, world).barrier()
