"""The cost of being able to recover, and the pause that a lost worker causes."""

from __future__ import annotations

import contextlib
import os
import signal
import tempfile
import time
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

import disco_client
from disco_bench.control import Burst
from disco_bench.sampling import alternate, time_call
from disco_bench.table import Spec

if TYPE_CHECKING:
    from disco_bench.bench import Bench

__all__ = ["RECOVERY", "measure_recovery"]

_KEEPING = "a session that does not recover"
_WORKERS = 2
_UPLOAD_BYTES = 16 << 20
_REPLAYED = 1000
_LOST_S = 60.0
_STEPS = 2000
_SIZE = 512

RECOVERY = (
    Spec("recovery.commands", 'commands/s, no-ops, recover="replay"', "1/s", _KEEPING),
    Spec("recovery.uploads", 'host -> worker 0, 16 MiB, recover="replay"', "B/s", _KEEPING),
    Spec(
        "recovery.pause",
        f"a worker is killed, until {_REPLAYED:,} commands are done again",
        "s",
        "a new session, ready, and those commands",
    ),
    Spec(
        "recovery.rebuild",
        f"a worker is killed after {_STEPS:,} steps, until a step on new weights; recover=rebuild",
        "s",
        'the same steps, recover="replay"',
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
    steps = bench.pick(_STEPS, 20)
    again, anew = (
        _StepsAfterLoss(bench, steps, rebuild=False),
        _StepsAfterLoss(bench, steps, rebuild=True),
    )
    with again.session, anew.session:
        bench.record("recovery.rebuild", alternate(anew, again, bench.pick(5, 1)).measured())


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


class _StepsAfterLoss:
    """Multiplies a vector by weights, fetches it and sends the next one, as a decoder does.

    Measures once how long a killed worker holds up the next step, and returns the seconds.

    Args:
        bench: Opens the session.
        count: How many steps come before that.
        rebuild: Whether the weights are made anew; otherwise all is done again.
    """

    def __init__(self, bench: Bench, count: int, *, rebuild: bool) -> None:
        self.session = bench.session(_WORKERS, recover=self._make if rebuild else "replay")
        self._make(self.session)
        for _ in range(count):
            self._step()

    def _make(self, session: disco_client.Session) -> None:
        self._matmul = session.get_global_func("numpy.matmul")
        self._weights = session.broadcast(np.eye(_SIZE, dtype="float32"))

    def _step(self) -> None:
        vector = np.ones((1, _SIZE), "float32")
        self._matmul(self.session.broadcast(vector), self._weights).numpy()

    def __call__(self) -> float:
        known = len(self.session.recoveries)
        started = time.perf_counter()
        os.kill(self.session.workers[1].pid, signal.SIGKILL)
        while time.perf_counter() - started < _LOST_S:
            with contextlib.suppress(disco_client.WorkersReplaced):
                self._step()
                if len(self.session.recoveries) > known:
                    return time.perf_counter() - started
        msg = f"the session had no other workers within {_LOST_S:.0f} s"
        raise TimeoutError(msg)


def _anew(bench: Bench) -> None:
    with bench.session(_WORKERS) as session:
        Burst(session, _REPLAYED)()
