"""A sequence of commands captured and run as one, beside the same sequence sent one by one."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from disco_bench.sampling import alternate
from disco_bench.table import Limit, Spec

if TYPE_CHECKING:
    import disco_client
    from disco_bench.bench import Bench

__all__ = ["PROGRAMS", "measure_programs"]

_ONE_BY_ONE = "the same commands, sent one by one"

PROGRAMS = (
    Spec(
        "programs.thousand",
        "commands/s, captured program of 1000 no-ops",
        "1/s",
        _ONE_BY_ONE,
        Limit("ratio", must=10.0, aim=50.0, least=True),
    ),
    Spec("programs.ten", "the same, program of 10", "1/s", _ONE_BY_ONE),
    Spec(
        "programs.define",
        "capturing 1000 no-ops, all workers",
        "s",
        "sending them once",
    ),
)


class _Sequence:
    """A number of no-ops with three arguments, and the same captured."""

    def __init__(self, session: disco_client.Session, steps: int) -> None:
        self._session = session
        self._steps = steps
        self._noop = session.get_global_func("bench.noop")
        self._arguments = (session.empty((4,), "float32"), session.empty((4,), "float32"))
        self._program = self._capture()

    def _issue(self) -> None:
        noop, (first, second) = self._noop, self._arguments
        for _ in range(self._steps):
            _result = noop(first, second, 3)

    def _capture(self) -> disco_client.Program:
        with self._session.capture("no-ops") as program:
            self._issue()
        return program

    def _time(self, call: Callable[[], object], times: int) -> float:
        self._session.sync_all()
        started = time.perf_counter()
        for _ in range(times):
            call()
        self._session.sync_all()
        return (time.perf_counter() - started) / times

    def captured(self, times: int) -> float:
        """Runs the program; returns commands/s."""
        return self._steps / self._time(self._program, times)

    def one_by_one(self, times: int) -> float:
        """Sends the commands; returns commands/s."""
        return self._steps / self._time(self._issue, times)

    def define(self) -> float:
        """Captures once more; returns seconds."""
        return self._time(self._capture, 1)

    def send(self) -> float:
        """Sends once; returns seconds."""
        return self._time(self._issue, 1)


def measure_programs(bench: Bench) -> None:
    """Compares captured programs with their commands."""
    rounds = bench.pick(7, 2)
    with bench.session() as session:
        for name, steps in (("thousand", 1000), ("ten", 10)):
            sequence = _Sequence(session, steps)
            runs, sends = bench.pick(400_000, 2_000) // steps, bench.pick(20_000, 1_000) // steps
            pair = alternate(
                lambda sequence=sequence, runs=runs: sequence.captured(runs),
                lambda sequence=sequence, sends=sends: sequence.one_by_one(sends),
                rounds,
            )
            bench.record(f"programs.{name}", pair.measured())
            if name == "thousand":
                pair = alternate(sequence.define, sequence.send, rounds)
                bench.record("programs.define", pair.measured())
