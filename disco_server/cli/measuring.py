"""Measurements of ``disco bench`` and ``disco doctor``, in a session of their own."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from disco_client.errors import NoSlots
from disco_client.text import many

if TYPE_CHECKING:
    from disco_client.session import Session
    from disco_client.wire.overview import Overview

__all__ = ["Figure", "free_workers", "measure_all", "measure_allreduce"]

_COMMANDS = 2_000
_SYNCS = 50
_MOST_WORKERS = 16
_ROUND_BYTES = 32 << 20
"""About how much is moved in a round: small arrays often, large ones once."""


@dataclass(frozen=True, slots=True)
class Figure:
    """One measurement.

    Attributes:
        name: What was measured.
        unit: ``1/s``, ``B/s`` or ``s``.
        typical: The median of the rounds.
        best: The best of the rounds: the highest, or of seconds the lowest.
        nbytes: The size of the array, if there is one.
    """

    name: str
    unit: str
    typical: float
    best: float
    nbytes: int = 0

    def as_dict(self) -> dict[str, Any]:
        """The same for programs."""
        return asdict(self)


def free_workers(view: Overview) -> int:
    """For how many workers there is room now, with devices of one kind.

    Raises:
        NoSlots: There is no room.
    """
    kinds: dict[str, int] = {}
    for node in view.nodes:
        for device in node.devices:
            kind = device.partition(":")[0]
            kinds[kind] = kinds.get(kind, 0) + 1
    total = sum(node.slots for node in view.nodes)
    free = sum(node.slots - node.used for node in view.nodes if node.state == "ready")
    found = min(free, max(kinds.values(), default=0), _MOST_WORKERS)
    if not found:
        msg = (
            f"expected a free slot to measure with, the cluster has {many(total, 'slot')} and none "
            "is free; see disco sessions"
        )
        raise NoSlots(msg, total_slots=total, free_slots=free)
    return found


def measure_all(session: Session, sizes: Sequence[int], rounds: int) -> Iterator[Figure]:
    """Measures a cluster, figure by figure.

    Args:
        session: The session.
        sizes: The sizes of the arrays, in bytes.
        rounds: How often each is measured.
    """
    yield _figure("commands", "1/s", rounds, lambda: _commands(session))
    yield _figure("sync of one worker", "s", rounds, lambda: _syncs(session.sync_worker_0))
    yield _figure("sync of all workers", "s", rounds, lambda: _syncs(session.sync_all))
    yield from _copies(session, max(sizes), rounds)
    for nbytes in sizes:
        yield from measure_allreduce(session, nbytes, rounds)


def measure_allreduce(session: Session, nbytes: int, rounds: int) -> Iterator[Figure]:
    """Measures how long an allreduce takes, and its bytes per second."""
    count = max(nbytes // 4, 1)
    array = session.broadcast(np.zeros(count, "float32"))
    calls = max(min(_ROUND_BYTES // nbytes, 100), 1)

    def once() -> float:
        started = time.perf_counter()
        for _ in range(calls):
            session.allreduce(array, array)
        session.sync_all()
        return (time.perf_counter() - started) / calls

    once()  # the first one opens the communicator
    took = [once() for _ in range(rounds)]
    rates = [nbytes / each for each in took]
    yield Figure("allreduce", "s", statistics.median(took), min(took), nbytes)
    yield Figure("allreduce", "B/s", statistics.median(rates), max(rates), nbytes)


def _figure(
    name: str, unit: str, rounds: int, once: Callable[[], float], nbytes: int = 0
) -> Figure:
    once()
    found = [once() for _ in range(rounds)]
    best = min(found) if unit == "s" else max(found)
    return Figure(name, unit, statistics.median(found), best, nbytes)


def _commands(session: Session) -> float:
    """Commands that every worker executes in a second."""
    function = session.get_global_func("runtime.disco.worker_rank")
    session.sync_all()
    started = time.perf_counter()
    for _ in range(_COMMANDS):
        # Kept until the next one has come, as a program that uses its results does.
        _result = function()
    session.sync_all()
    return _COMMANDS / (time.perf_counter() - started)


def _syncs(sync: Callable[[], object]) -> float:
    started = time.perf_counter()
    for _ in range(_SYNCS):
        sync()
    return (time.perf_counter() - started) / _SYNCS


def _copies(session: Session, nbytes: int, rounds: int) -> Iterator[Figure]:
    """Bytes in a second from here to worker 0, and back."""
    host = np.zeros(max(nbytes // 4, 1), "float32")
    there = session.empty(host.shape, "float32")
    session.copy_to_worker_0(host, there)
    session.sync_all()

    def bring() -> float:
        started = time.perf_counter()
        session.copy_to_worker_0(host, there)
        session.sync_worker_0()
        return host.nbytes / (time.perf_counter() - started)

    def fetch() -> float:
        started = time.perf_counter()
        session.copy_from_worker_0(host, there)
        session.sync_worker_0()
        return host.nbytes / (time.perf_counter() - started)

    yield _figure("copy to worker 0", "B/s", rounds, bring, host.nbytes)
    yield _figure("copy from worker 0", "B/s", rounds, fetch, host.nbytes)
