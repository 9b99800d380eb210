"""Sessions one after another, and many at once: nothing of them is left behind."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor

import psutil
import pytest

from disco_client import connect
from disco_server.cli.local import LocalCluster

SLOTS = 4
CALM_S = 0.3


@pytest.fixture(scope="module")
def alone():
    """A cluster of one node that nobody else uses, and that has served sessions before."""
    with LocalCluster(1, SLOTS) as running:
        for _ in range(3):
            use(running.address)
        yield running


def use(address: str) -> None:
    """One session of one worker, from its start to its end."""
    with connect(address, num_workers=1) as session:
        session.sync_all()


def held(cluster: LocalCluster) -> tuple[list[int], dict[int, int], int, int]:
    """What sessions could leave.

    Descriptors of the daemons and of the processes below them, and descriptors and threads of
    this process.
    """
    daemons = [psutil.Process(pid) for pid in cluster.pids]
    below = [each for daemon in daemons for each in daemon.children(recursive=True)]
    me = psutil.Process()
    return (
        [each.num_fds() for each in daemons],
        {each.pid: each.num_fds() for each in below},
        me.num_fds(),
        me.num_threads(),
    )


def held_at_rest(cluster: LocalCluster) -> tuple[list[int], dict[int, int], int, int]:
    """What is held when the last session has ended: one process below the daemons forks ranks."""
    now, before = held(cluster), None
    while len(now[1]) > 1 or now != before:
        time.sleep(CALM_S)
        now, before = held(cluster), now
    return now


def test_a_hundred_sessions_in_a_row_leave_nothing(alone, eventually):
    """Neither in the daemons nor in the program, and no process."""
    before = held_at_rest(alone)
    for _ in range(100):
        use(alone.address)
    eventually(lambda: held(alone) == before, what="all that sessions held to be given back")


def test_fifty_at_once_take_their_turns_and_leave_nothing(alone, eventually):
    """There are slots for a few of them; each waits until it has one, and all are served."""
    before = held_at_rest(alone)
    with ThreadPoolExecutor(50) as threads:
        done = [threads.submit(use, alone.address) for _ in range(50)]
    assert [each.exception() for each in done] == [None] * 50
    eventually(lambda: held(alone) == before, what="all that sessions held to be given back")
