"""Monarch's actors, as the section ``peers`` asks for them; see `peer_loop`."""

from __future__ import annotations

import contextlib
import importlib
import os
import time
from collections.abc import Generator
from typing import Any

import numpy as np

from disco_bench import peer_loop

monarch: Any = importlib.import_module("monarch.actor")
supervision: Any = importlib.import_module("monarch._rust_bindings.monarch_hyperactor.supervision")


class _MonarchActor(monarch.Actor):
    """An actor."""

    def __init__(self) -> None:
        self._held: object = None

    @monarch.endpoint
    def noop(self) -> None:
        """Does nothing."""

    @monarch.endpoint
    def pid(self) -> int:
        """Its process."""
        return os.getpid()

    @monarch.endpoint
    def hold(self, array: np.ndarray[Any, Any]) -> int:
        """Keeps an array."""
        self._held = array
        return array.nbytes

    @monarch.endpoint
    def sleep(self) -> None:
        """Is busy."""
        time.sleep(peer_loop.BUSY_S)


class _MonarchPeer:
    """See `peer_loop.Peer`; its processes belong to one client."""

    address = ""

    def __init__(self, workers: int) -> None:
        self._workers = workers
        self.start()

    def start(self) -> None:
        """Starts the workers."""
        self._processes = monarch.this_host().spawn_procs(per_host={"worker": self._workers})
        self._actors = self._processes.spawn("worker", _MonarchActor)
        self._one = self._actors.slice(worker=0)
        self.call_all()

    def stop(self) -> None:
        """Ends them."""
        self._processes.stop().get()

    def call(self) -> None:
        self._one.noop.call_one().get()

    def call_all(self) -> None:
        self._actors.noop.call().get()

    def upload(self, array: np.ndarray[Any, Any]) -> None:
        assert self._one.hold.call_one(array).get() == array.nbytes

    def lose_worker(self) -> float:
        last = self._actors.slice(worker=self._workers - 1)
        pid = last.pid.call_one().get()
        busy = last.sleep.call_one()
        seconds = peer_loop.time_to_error(pid, busy.get, supervision.SupervisionError)
        # What is left of a mesh that lost a process is of no use.
        self.stop()
        self.start()
        return seconds


def _ignore(_failure: object) -> None:
    """By default a lost worker ends the client."""


@contextlib.contextmanager
def _serve(workers: int) -> Generator[_MonarchPeer]:
    monarch.unhandled_fault_hook = _ignore
    peer = _MonarchPeer(workers)
    try:
        yield peer
    finally:
        peer.stop()


@contextlib.contextmanager
def _first(workers: int, _address: str) -> Generator[list[int]]:
    processes = monarch.this_host().spawn_procs(per_host={"worker": workers})
    actors = processes.spawn("worker", _MonarchActor)
    yield [pid for _, pid in actors.pid.call().get()]
    processes.stop().get()


if __name__ == "__main__":
    peer_loop.main(_serve, _first)
