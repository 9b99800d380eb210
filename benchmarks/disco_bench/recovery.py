"""The cost of being able to recover, and the pause that a lost worker causes."""

from __future__ import annotations

import os
import signal
import tempfile
import time
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from disco_bench.control import Burst
from disco_bench.sampling import alternate, time_call
from disco_bench.table import Spec

if TYPE_CHECKING:
    import disco_client
    from disco_bench.bench import Bench

__all__ = ["RECOVERY", "measure_recovery"]

_KEEPING = "a session that does not recover"
_WORKERS = 2
_UPLOAD_BYTES = 16 << 20
_REPLAYED = 1000
_LOST_S = 60.0

RECOVERY = (
    Spec("recovery.commands", 'commands/s, no-ops, recover="replay"', "1/s", _KEEPING),
    Spec("recovery.uploads", 'host -> worker 0, 16 MiB, recover="replay"', "B/s", _KEEPING),
    Spec(
        "recovery.pause",
        f"a worker is killed, until {_REPLAYED:,} commands are done again",
        "s",
        "a new session, ready, and those commands",
    ),
)


def measure_recovery(bench: Bench) -> None:
    """Compares a session that recovers with one that does not, on the same cluster in turn.

    Between rounds a checkpoint empties the log, as a program would do it.
    """
    with (
        tempfile.TemporaryDirectory() as folder,
        bench.session(_WORKERS, recover="replay") as keeping,
        bench.session(_WORKERS) as plain,
    ):
        for name, kind, count in (
            ("commands", Burst, bench.pick(20_000, 500)),
            ("uploads", _Uploads, bench.pick(4, 1)),
        ):
            pair = alternate(
                partial(_then_checkpoint, kind(keeping, count), keeping, folder),
                kind(plain, count),
                bench.pick(15, 2),
            )
            bench.record(f"recovery.{name}", pair.measured())
    with bench.session(_WORKERS, recover="replay") as session:
        Burst(session, _REPLAYED)()
        pauses = alternate(
            lambda: _pause(session),
            lambda: time_call(lambda: _anew(bench)),
            bench.pick(5, 1),
        )
    bench.record("recovery.pause", pauses.measured())


def _then_checkpoint(
    measure: Callable[[], float], session: disco_client.Session, folder: str
) -> float:
    figure = measure()
    session.checkpoint(folder)
    return figure


class _Uploads:
    """Sends an array to worker 0 repeatedly; measures once, and returns bytes/s."""

    def __init__(self, session: disco_client.Session, count: int) -> None:
        self._session = session
        self._count = count
        self._array = np.ones(_UPLOAD_BYTES, np.uint8)
        self._held = session.copy_to_worker_0(self._array)

    def __call__(self) -> float:
        self._session.sync_all()
        started = time.perf_counter()
        for _ in range(self._count):
            self._session.copy_to_worker_0(self._array, self._held)
        self._session.sync_worker_0()
        return self._count * self._array.nbytes / (time.perf_counter() - started)


def _pause(session: disco_client.Session) -> float:
    """Kills a worker; returns the seconds until everything is done again."""
    known = len(session.recoveries)
    started = time.perf_counter()
    os.kill(session.workers[1].pid, signal.SIGKILL)
    while len(session.recoveries) == known:
        if time.perf_counter() - started > _LOST_S:
            msg = f"the session had no other workers within {_LOST_S:.0f} s"
            raise TimeoutError(msg)
        session.sync_all()
    session.sync_all()
    return time.perf_counter() - started


def _anew(bench: Bench) -> None:
    with bench.session(_WORKERS) as session:
        Burst(session, _REPLAYED)()
