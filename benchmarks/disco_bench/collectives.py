"""Allreduce and allgather over MPI, beside raw mpi4py in the same rank processes."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from disco_bench.bench import WORKERS, Bench
from disco_bench.sampling import Pair
from disco_bench.table import Limit, Spec

if TYPE_CHECKING:
    import disco_client

__all__ = ["CALLS", "COLLECTIVES", "capture_allreduces", "measure_collectives", "slowest"]

CALLS = 60
"""How many small allreduces come one after another: a token of a small language model has them."""

_KIB, _MIB = 1 << 10, 1 << 20
_SIZES = (4 * _KIB, 64 * _KIB, _MIB, 4 * _MIB, 16 * _MIB, 64 * _MIB)
_LARGE = 64 * _MIB


def _limit(operation: str, nbytes: int) -> Limit | None:
    if operation == "allreduce" and nbytes == _LARGE:
        return Limit("ratio", must=1.0, aim=1 / 1.5)  # faster than one raw call, by pieces
    if operation == "allreduce" and nbytes == 4 * _KIB:
        return Limit("excess", must=40e-6, aim=10e-6)
    return Limit("ratio", must=1.10, aim=1.02) if nbytes >= _MIB else None


def _spec(operation: str, nbytes: int) -> Spec:
    size = f"{nbytes // _MIB} MiB" if nbytes >= _MIB else f"{nbytes // _KIB} KiB"
    key = f"collectives.{operation}_{size.replace(' ', '').lower()}"
    what = f"{operation}, {size}, {WORKERS} workers"
    return Spec(key, what, "s", "raw mpi4py, same ranks", _limit(operation, nbytes))


_PLAN = [(op, nbytes, _spec(op, nbytes)) for op in ("allreduce", "allgather") for nbytes in _SIZES]
COLLECTIVES = tuple(spec for _, _, spec in _PLAN)


def _rounds(nbytes: int) -> tuple[int, int]:
    """How many rounds, and calls in each: small ones many, so that the clock is fine enough."""
    if nbytes <= 64 * _KIB:
        return 40, 50
    if nbytes <= 4 * _MIB:
        return 30, 5
    return (40, 1) if nbytes < _LARGE else (15, 1)


def measure_collectives(bench: Bench) -> None:
    """Compares each collective and size with the raw call that it ends in.

    Sizes are those of the array that each rank holds afterwards.
    """
    with bench.session() as session:
        timer = session.get_global_func("bench.time_collective")
        for operation, nbytes, spec in _PLAN:
            rounds, calls = bench.pick(_rounds(nbytes), (2, 1))
            result = timer(operation, nbytes, rounds, calls)
            ranks = [result.debug_get_from_remote(i) for i in range(session.num_workers)]
            bench.record(spec.key, slowest(ranks).measured())


def slowest(ranks: Iterable[Sequence[Sequence[float]]]) -> Pair:
    """A collective takes as long as it takes its slowest rank, in each round."""
    ours: list[float] = []
    theirs: list[float] = []
    for rounds in zip(*ranks, strict=True):
        ours.append(max(figures[0] for figures in rounds))
        theirs.append(max(figures[1] for figures in rounds))
    return Pair(ours, theirs)


def capture_allreduces(
    session: disco_client.Session, nbytes: int, runs: int
) -> Callable[[], float]:
    """Captures small allreduces; what is returned runs them and says how long they took.

    Args:
        session: Its workers take part.
        nbytes: The bytes of each one's array.
        runs: How many runs of the program are awaited together.
    """
    x = session.broadcast(np.zeros(nbytes // 4, np.float32))
    with session.capture("allreduces") as program:
        for _ in range(CALLS):
            session.allreduce(x, x)

    def run() -> float:
        session.sync_all()
        began = time.perf_counter()
        for _ in range(runs):
            program()
        session.sync_all()
        return (time.perf_counter() - began) / runs

    return run
