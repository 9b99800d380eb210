"""What all measurements share: the cluster, the report, and how long to measure."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Generator
from typing import TYPE_CHECKING, Literal, Self, TypeVar

import disco_client
from disco_bench.child import BENCHMARKS
from disco_server.cli.local import LocalCluster

if TYPE_CHECKING:
    from pathlib import Path
    from types import TracebackType

    from disco_bench.table import Measured, Report

__all__ = ["NODES", "SLOTS", "WORKERS", "Bench", "new_cluster", "variable"]

NODES, SLOTS = 2, 2
WORKERS = NODES * SLOTS
_FUNCTIONS = "disco_bench.worker_functions"
_MODELS = ("embedding.transformer", "embedding.pieces")
EXAMPLES = BENCHMARKS.parent / "examples"

_T = TypeVar("_T")


def new_cluster(array_listen: str | None = None) -> LocalCluster:
    """A cluster of this run's shape over TCP, not yet started.

    Over TCP because its yardsticks go over TCP too; and with an allow-list,
    because a port is open to every user of the machine.

    Args:
        array_listen: Where each of them serves host arrays; None for its own choice,
            which is shared memory.
    """
    paths: list[Path] = [BENCHMARKS, EXAMPLES]
    with variable("DISCO_ARRAY_LISTEN", array_listen):
        return LocalCluster(
            NODES,
            SLOTS,
            listen="127.0.0.1:0",
            allow_modules=[_FUNCTIONS, *_MODELS],
            allow_load=["uploads"],
            import_path=[str(path) for path in paths],
        )


@contextlib.contextmanager
def variable(name: str, value: str | None) -> Generator[None]:
    """Sets a variable of this process's environment for a block.

    Args:
        name: Its name.
        value: What it is; None for no such variable.
    """
    before = os.environ.pop(name, None)
    if value is not None:
        os.environ[name] = value
    try:
        yield
    finally:
        os.environ.pop(name, None)
        if before is not None:
            os.environ[name] = before


class Bench:
    """One run; a context manager that stops the cluster.

    Args:
        report: Where figures go.
        quick: Whether to show only that everything works, in a fraction of the time.
    """

    def __init__(self, report: Report, *, quick: bool = False) -> None:
        self._report = report
        self._quick = quick
        self._stack = contextlib.ExitStack()
        self._cluster: LocalCluster | None = None

    def pick(self, full: _T, quick: _T) -> _T:
        """Returns the first value for a full run, the second for a quick one."""
        return quick if self._quick else full

    def record(self, key: str, measured: Measured) -> None:
        """Notes what a row's measurement found."""
        self._report.record(key, measured)

    def excuse(self, key: str, reason: str) -> None:
        """Notes why a row has no figure; it does not count as a failure."""
        self._report.excuse(key, reason)

    @property
    def cluster(self) -> LocalCluster:
        """The cluster that most measurements share; the first use starts it."""
        if self._cluster is None:
            self._cluster = self._stack.enter_context(new_cluster())
        return self._cluster

    def session(
        self,
        num_workers: int = WORKERS,
        cluster: LocalCluster | None = None,
        *,
        recover: Literal["replay"] | Callable[[disco_client.Session], object] | None = None,
    ) -> disco_client.Session:
        """Opens a session whose workers know the benchmark's functions.

        Args:
            num_workers: How many.
            cluster: Where; None for the one that most measurements share.
            recover: See `disco_client.connect`.
        """
        session = disco_client.connect(
            (cluster or self.cluster).address,
            num_workers=num_workers,
            name=f"bench-{num_workers}",
            recover=recover,
        )
        try:
            session.import_python_module(_FUNCTIONS)
            session.sync_all()
        except BaseException:
            session.shutdown()
            raise
        return session

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stack.__exit__(kind, error, trace)
