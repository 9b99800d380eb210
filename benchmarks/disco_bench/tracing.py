"""What a trace costs while it is open: the same commands with and without one, in turn."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from disco_bench.sampling import alternate
from disco_bench.table import Limit, Spec

if TYPE_CHECKING:
    import disco_client
    from disco_bench.bench import Bench

__all__ = ["TRACING", "measure_tracing"]

_UNTRACED = "the same, not traced"
_COST = Limit("ratio", must=0.97, aim=0.99, least=True)

TRACING = (
    Spec("tracing.steps", "steps/s, matmul and allreduce, while traced", "1/s", _UNTRACED, _COST),
    Spec("tracing.commands", "commands/s, no-ops, while traced", "1/s", _UNTRACED, _COST),
)


class _Traced:
    """Runs the same commands with a trace and without; entering and writing is not timed."""

    def __init__(self, session: disco_client.Session, step: Callable[[], object]) -> None:
        self._session = session
        self._step = step
        self.missing = 0

    def plain(self, count: int) -> float:
        """Returns steps/s."""
        self._session.sync_all()
        started = time.perf_counter()
        for _ in range(count):
            self._step()
        self._session.sync_all()
        return count / (time.perf_counter() - started)

    def traced(self, count: int) -> float:
        """Returns steps/s."""
        with tempfile.TemporaryDirectory() as folder:
            with self._session.trace(Path(folder) / "trace.json") as trace:
                rate = self.plain(count)
            self.missing += sum(len(rank.missing) for rank in trace.flight().ranks)
        return rate


def measure_tracing(bench: Bench) -> None:
    """Compares traced commands with the same ones that are not."""
    rounds = bench.pick(15, 2)
    with bench.session() as session:
        noop = session.get_global_func("bench.noop")
        matmul = session.get_global_func("numpy.matmul")
        weights = session.broadcast(np.ones((256, 256), "float32"))
        total = session.empty((256, 256), "float32")

        def step() -> None:
            session.allreduce(matmul(weights, weights), total)

        for name, act, count in (
            ("steps", step, bench.pick(300, 5)),
            ("commands", lambda: noop(weights, total, 3), bench.pick(20_000, 500)),
        ):
            both = _Traced(session, act)
            pair = alternate(
                lambda both=both, count=count: both.traced(count),
                lambda both=both, count=count: both.plain(count),
                rounds,
            )
            note = f"{both.missing} gaps" if both.missing else "nothing is missing in them"
            bench.record(f"tracing.{name}", pair.measured(note))
