"""Checkpoints in the background: what a training step beside one costs, and what the call does."""

from __future__ import annotations

import statistics
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from disco_bench.sampling import Pair
from disco_bench.table import Limit, Spec

if TYPE_CHECKING:
    import disco_client
    from disco_bench.bench import Bench
    from disco_client.distributed import DTensor

__all__ = ["SAVING", "measure_saving"]

_WORKERS = 2
"""One for each of the cores on which the figures of the pages were measured."""

_ROWS = 1 << 13
_COLUMNS = 1 << 13
"""With numbers of 8 bytes, 512 MiB."""

_WIDTH = 640
_STEPS = 20
"""So many are measured at least, before the save as after it has begun."""

SAVING = (
    Spec(
        "saving.step",
        f"a training step of {_WORKERS} workers while 512 MiB are saved in the background",
        "s",
        "the same step without a save",
        Limit("ratio", 1.05),
    ),
    Spec(
        "saving.call",
        "the call that saves 512 MiB in the background: the copies",
        "s",
        "a save that waits",
    ),
)


def measure_saving(bench: Bench) -> None:
    """Runs steps without a save and beside one, in turn."""
    state = np.random.default_rng(7).random((bench.pick(_ROWS, _ROWS >> 5), _COLUMNS))
    with tempfile.TemporaryDirectory() as name, bench.session(_WORKERS) as session:
        x = session.distribute(state, placement="S[0]")
        step = _TrainingStep(session)
        step.run(3)
        steps, calls = Pair([], []), Pair([], [])
        for turn in range(bench.pick(8, 2)):
            alone = [] if turn % 2 else step.run(_STEPS)
            began = time.perf_counter()
            saving = session.save(Path(name) / "background", {"x": x}, wait=False)
            calls.ours.append(time.perf_counter() - began)
            beside = step.run(_STEPS, saving)
            saving.wait()
            steps.ours.append(statistics.mean(beside))
            steps.theirs.append(statistics.mean(alone or step.run(_STEPS)))
            calls.theirs.append(_save(session, Path(name) / "waiting", x))
        bench.record("saving.step", steps.measured())
        bench.record("saving.call", calls.measured())


class _TrainingStep:
    """A step of training as its workers see it: products, then the sum of gradients."""

    def __init__(self, session: disco_client.Session) -> None:
        self._session = session
        self._matmul = session.get_global_func("numpy.matmul")
        weights = np.random.default_rng(7).random((_WIDTH, _WIDTH))
        self._weights = session.broadcast(weights)

    def run(self, count: int, saving: disco_client.Saving | None = None) -> list[float]:
        """Does so many steps, and goes on while a save is under way; the times of each."""
        taken: list[float] = []
        while len(taken) < count or not (saving is None or saving.done):
            began = time.perf_counter()
            activations = self._matmul(self._weights, self._weights)
            gradients = self._matmul(activations, self._weights)
            self._session.allreduce(gradients)
            self._session.sync_all()
            taken.append(time.perf_counter() - began)
        return taken


def _save(session: disco_client.Session, path: Path, x: DTensor) -> float:
    began = time.perf_counter()
    session.save(path, {"x": x}, progress=False)
    return time.perf_counter() - began
