"""Dask's distributed workers, as the section ``peers`` asks for them; see `peer_loop`."""

from __future__ import annotations

import contextlib
import importlib
import os
import time
from collections.abc import Generator
from typing import Any

import numpy as np

from disco_bench import peer_loop

distributed: Any = importlib.import_module("distributed")

_ALL_S = 60


class _DaskActor:
    """An actor, whose calls return sooner than those of tasks."""

    def noop(self) -> None:
        """Does nothing."""

    def pid(self) -> int:
        """Its process."""
        return os.getpid()

    def sleep(self) -> None:
        """Is busy."""
        time.sleep(peer_loop.BUSY_S)


def _noop() -> None:
    """Does nothing."""


class _DaskPeer:
    """See `peer_loop.Peer`."""

    def __init__(self, workers: int, address: str, client: Any) -> None:
        self.address = address
        self._workers = workers
        self._client = client
        self._first, *_ = self._addresses()
        self._actor = self._make(self._first)
        self._held: object = None

    def call(self) -> None:
        self._actor.noop().result()

    def call_all(self) -> None:
        assert len(self._client.run(_noop)) == self._workers

    def upload(self, array: np.ndarray[Any, Any]) -> None:
        self._held = self._client.scatter(array, workers=[self._first], direct=True, hash=False)

    def lose_worker(self) -> float:
        before = self._addresses()
        last = next(address for address in reversed(before) if address != self._first)
        actor = self._make(last)
        pid = actor.pid().result()
        busy = actor.sleep()
        seconds = peer_loop.time_to_error(pid, busy.result, OSError)
        # Its nanny starts another one, with an address of its own.
        deadline = time.monotonic() + _ALL_S
        while last in self._addresses() or len(self._addresses()) < len(before):
            assert time.monotonic() < deadline, "no other worker came"
            time.sleep(0.1)
        return seconds

    def _addresses(self) -> list[str]:
        return list(self._client.scheduler_info(n_workers=-1)["workers"])

    def _make(self, worker: str) -> Any:
        return self._client.submit(_DaskActor, actor=True, workers=[worker], pure=False).result()


@contextlib.contextmanager
def _cluster(workers: int) -> Generator[Any]:
    with distributed.LocalCluster(
        n_workers=workers,
        threads_per_worker=1,
        host="127.0.0.1",
        dashboard_address=None,
        worker_dashboard_address=None,
    ) as cluster:
        yield cluster


@contextlib.contextmanager
def _serve(workers: int) -> Generator[_DaskPeer]:
    with _cluster(workers) as cluster, distributed.Client(cluster) as client:
        yield _DaskPeer(workers, cluster.scheduler_address, client)


@contextlib.contextmanager
def _first(workers: int, address: str) -> Generator[list[int]]:
    with contextlib.ExitStack() as stack:
        cluster = address or stack.enter_context(_cluster(workers))
        client = stack.enter_context(distributed.Client(cluster))
        yield list(client.run(os.getpid).values())


if __name__ == "__main__":
    peer_loop.main(_serve, _first)
