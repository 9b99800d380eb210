"""Ray's actors and tasks, as the section ``peers`` asks for them; see `peer_loop`."""

from __future__ import annotations

import contextlib
import importlib
import os
import time
from collections.abc import Generator
from typing import Any

import numpy as np

from disco_bench import peer_loop

# Nothing is reported to anybody, and, as on a laptop, every address is one of the loopback.
os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"

ray: Any = importlib.import_module("ray")

OBJECTS_BYTES = 256 << 20
QUIET = {"log_to_driver": False, "logging_level": "ERROR"}


class _RayActor:
    """An actor."""

    def __init__(self) -> None:
        self._held: object = None

    def noop(self) -> None:
        """Does nothing."""

    def pid(self) -> int:
        """Its process."""
        return os.getpid()

    def hold(self, array: np.ndarray[Any, Any]) -> int:
        """Keeps an array."""
        self._held = array
        return array.nbytes

    def sleep(self) -> None:
        """Is busy."""
        time.sleep(peer_loop.BUSY_S)


class _RayPeer:
    """See `peer_loop.Peer`."""

    def __init__(self, workers: int, address: str) -> None:
        self.address = address
        self._make = ray.remote(_RayActor).remote
        self._actors = [self._make() for _ in range(workers)]
        self.call_all()

    def call(self) -> None:
        ray.get(self._actors[0].noop.remote())

    def call_all(self) -> None:
        ray.get([actor.noop.remote() for actor in self._actors])

    def upload(self, array: np.ndarray[Any, Any]) -> None:
        assert ray.get(self._actors[0].hold.remote(array)) == array.nbytes

    def lose_worker(self) -> float:
        actor = self._actors.pop()
        pid = ray.get(actor.pid.remote())
        busy = actor.sleep.remote()
        seconds = peer_loop.time_to_error(pid, lambda: ray.get(busy), ray.exceptions.ActorDiedError)
        self._actors.append(self._make())
        self.call_all()
        return seconds


@contextlib.contextmanager
def _cluster(workers: int) -> Generator[str]:
    """Starts one; its address."""
    started = ray.init(
        num_cpus=workers,
        include_dashboard=False,
        object_store_memory=OBJECTS_BYTES,
        **QUIET,
    )
    try:
        yield started.address_info["address"]
    finally:
        ray.shutdown()


@contextlib.contextmanager
def _serve(workers: int) -> Generator[_RayPeer]:
    with _cluster(workers) as address:
        yield _RayPeer(workers, address)


@contextlib.contextmanager
def _first(workers: int, address: str) -> Generator[list[int]]:
    with ray.init(address, **QUIET) if address else _cluster(workers):
        pid = ray.remote(_pid)
        yield ray.get([pid.remote() for _ in range(workers)])


def _pid() -> int:
    return os.getpid()


if __name__ == "__main__":
    peer_loop.main(_serve, _first)
