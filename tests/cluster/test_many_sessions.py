"""Sessions one after another, and many at once: nothing of them is left behind."""

from __future__ import annotations

import operator
import time
from concurrent.futures import ThreadPoolExecutor

import psutil
import pytest

from disco_client import connect
from disco_server.cli.local import LocalCluster

SLOTS = 4
Held = tuple[tuple[list[int], dict[int, int]], tuple[int, int]]
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


def descriptors(process: psutil.Process) -> int:
    """How many it has; -1 if it has ended or hides them, as what forks ranks does from its user."""
    try:
        return process.num_fds()
    except psutil.Error:
        return -1


def held(cluster: LocalCluster) -> tuple[list[int], dict[int, int]]:
    """What sessions could leave: descriptors of the daemons and of the processes below them."""
    daemons = [psutil.Process(pid) for pid in cluster.pids]
    below = [each for daemon in daemons for each in daemon.children(recursive=True)]
    return list(map(descriptors, daemons)), {each.pid: descriptors(each) for each in below}


def held_at_rest(cluster: LocalCluster) -> tuple[list[int], dict[int, int]]:
    """What is held when the last session has ended: one process below the daemons forks ranks."""
    now, before = held(cluster), None
    while len(now[1]) > 1 or now != before:
        time.sleep(CALM_S)
        now, before = held(cluster), now
    return now


def held_here() -> tuple[int, int]:
    """Descriptors and threads of this process, where earlier tests may leave some for a while."""
    me = psutil.Process()
    return me.num_fds(), me.num_threads()


def nothing_left(cluster: LocalCluster, before: Held) -> bool:
    """Whether the daemons and this process hold no more than they did.

    They may hold less: connections without a call end after some seconds.
    """
    (daemons, below), here = before
    now_daemons, now_below = held(cluster)
    return now_below == below and all(
        map(operator.le, (*now_daemons, *held_here()), (*daemons, *here))
    )


def test_a_hundred_sessions_in_a_row_leave_nothing(alone, eventually):
    """Neither in the daemons nor in the program, and no process."""
    before = held_at_rest(alone), held_here()
    for _ in range(100):
        use(alone.address)
    eventually(lambda: nothing_left(alone, before), what="all that sessions held to be given back")


def test_fifty_at_once_take_their_turns_and_leave_nothing(alone, eventually):
    """There are slots for a few of them; each waits until it has one, and all are served."""
    before = held_at_rest(alone), held_here()
    with ThreadPoolExecutor(50) as threads:
        done = [threads.submit(use, alone.address) for _ in range(50)]
    assert [each.exception() for each in done] == [None] * 50
    eventually(lambda: nothing_left(alone, before), what="all that sessions held to be given back")
