"""What the peers of the section ``peers`` have in common; each runs in an environment of its own.

A peer's module takes ``serve WORKERS``, and then answers lines of standard input by figures on
its output: ``call COUNT`` and ``all COUNT`` by the median seconds of a no-op on one worker, or
on all, and the wait for its result; ``up NBYTES`` by the bytes a second of an array of the
client's until one worker has it; ``killed`` by the seconds from the end of a busy worker to the
error in the client, which waits for it. Its first line is the address of its cluster, empty where
it has none that others can join. ``first WORKERS [ADDRESS]`` prints how many workers have answered,
of a cluster of its own or of that one, and ends.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable
from typing import Any, Protocol

import numpy as np

from disco_bench.sampling import median_of, time_call

__all__ = ["BUSY_S", "Peer", "main", "time_to_error"]

BUSY_S = 600.0
"""How long the call takes during which a worker is killed."""
_BEGINS_S = 0.3


class Peer(Protocol):
    """A client of a cluster with some workers."""

    address: str

    def call(self) -> None:
        """Calls a no-op on one worker, and waits for it."""

    def call_all(self) -> None:
        """The same on all workers."""

    def upload(self, array: np.ndarray[Any, Any]) -> None:
        """Returns when one worker holds the array."""

    def lose_worker(self) -> float:
        """Returns the seconds of `time_to_error`; there are as many workers as before then."""
        ...


def time_to_error(pid: int, wait: Callable[[], object], error: type[Exception]) -> float:
    """Kills a worker that is busy; returns the seconds until the wait for it raises.

    Args:
        pid: The worker's process.
        wait: Waits for a call that takes it `BUSY_S`.
        error: What that raises.
    """
    time.sleep(_BEGINS_S)
    started = time.perf_counter()
    os.kill(pid, signal.SIGKILL)
    try:
        wait()
    except error:
        return time.perf_counter() - started
    msg = "a killed worker has answered"
    raise AssertionError(msg)


def _answer(peer: Peer, line: str) -> float:
    verb, *count = line.split()
    if verb == "call":
        return median_of(peer.call, int(count[0]))
    if verb == "all":
        return median_of(peer.call_all, int(count[0]))
    if verb == "up":
        array = np.ones(int(count[0]), np.uint8)
        return array.nbytes / time_call(lambda: peer.upload(array))
    assert verb == "killed", verb
    return peer.lose_worker()


def main(serve: Callable[[int], Any], first: Callable[[int, str], Any]) -> None:
    """Does what the command line says.

    Args:
        serve: Makes a context manager that enters a `Peer` with so many workers.
        first: Makes one that enters the process ids of so many workers, which they have answered;
            of the cluster at an address or, where that is empty, of its own.
    """
    verb, workers, *address = sys.argv[1:]
    # What the peer and its workers print is no answer.
    out = os.fdopen(os.dup(sys.stdout.fileno()), "w")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    if verb == "first":
        with first(int(workers), "".join(address)) as answers:
            print(len(answers), file=out, flush=True)
        return
    with serve(int(workers)) as peer:
        print(peer.address, file=out, flush=True)
        for line in sys.stdin:
            print(_answer(peer, line), file=out, flush=True)
