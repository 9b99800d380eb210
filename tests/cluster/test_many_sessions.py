"""Sessions one after another, and many at once: nothing of them is left behind."""

from __future__ import annotations

import operator
import subprocess
import sys
import time

import psutil
import pytest

from disco_client import connect
from disco_server.cli.local import LocalCluster

SLOTS = 4
Held = tuple[list[int], list[int]]
CALM_S = 0.3

PROGRAM = """
import os, sys, time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from disco_client import connect

address, count, at_once = sys.argv[1], *map(int, sys.argv[2:])


def use(_):
    with connect(address, num_workers=1) as session:
        session.sync_all()


def name(read, path):
    try:
        return read(path)
    except OSError:
        return "gone meanwhile"


def held():
    me = Path("/proc/self")
    files = sorted(name(os.readlink, each) for each in (me / "fd").iterdir())
    threads = sorted(name(Path.read_text, each / "comm") for each in (me / "task").iterdir())
    return files, threads


for _ in range(3):
    use(None)
before = held()
with ThreadPoolExecutor(at_once) as threads:
    list(threads.map(use, range(count)))
deadline = time.monotonic() + 30
while not all(len(now) <= len(then) for now, then in zip(held(), before)):
    if time.monotonic() > deadline:
        sys.exit(f"expected no more than {before}, got {held()}")
    time.sleep(0.05)  # the pause of a poll, which the deadline ends
"""
"""Has so many sessions, so many of them at once; ends well if nothing of them is left in it.

It is a process of its own, in which nothing else comes and goes.
"""


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


def held(cluster: LocalCluster) -> Held:
    """What sessions could leave: descriptors of the daemons and of the processes below them."""
    daemons = [psutil.Process(pid) for pid in cluster.pids]
    below = [each for daemon in daemons for each in daemon.children(recursive=True)]
    return list(map(descriptors, daemons)), list(map(descriptors, below))


def held_at_rest(cluster: LocalCluster) -> Held:
    """What is held when the last session has ended: one process below the daemons forks ranks."""
    now, before = held(cluster), None
    while len(now[1]) > 1 or now != before:
        time.sleep(CALM_S)
        now, before = held(cluster), now
    return now


def nothing_left(cluster: LocalCluster, before: Held) -> bool:
    """Whether the daemons hold no more than they did, and no other processes are below them.

    They may hold less: connections without a call end after some seconds.
    """
    return all(
        len(now) == len(then) and all(map(operator.le, now, then))
        for now, then in zip(held(cluster), before, strict=True)
    )


@pytest.mark.parametrize(
    ("count", "at_once"),
    [
        pytest.param(100, 1, id="in a row"),
        pytest.param(50, 50, id="at once, which take turns on a few slots"),
    ],
)
def test_many_sessions_leave_nothing(alone, eventually, count, at_once):
    """Neither in the daemons nor in the program, and no process."""
    before = held_at_rest(alone)
    given = [sys.executable, "-c", PROGRAM, alone.address, str(count), str(at_once)]
    done = subprocess.run(given, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    eventually(
        lambda: nothing_left(alone, before),
        what=lambda: f"no more than {before} to be held, but {held(alone)} is",
    )
