"""Memory of a worker process that has nothing to do."""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from typing import Any

import psutil

from disco_bench.bench import WORKERS, Bench
from disco_bench.table import Limit, Measured, Spec

__all__ = ["MEMORY", "measure_memory"]

_BARE = "an interpreter that imported numpy"
_HOLD = "import numpy, sys; print('ready', flush=True); sys.stdin.read()"
_MIB = 1 << 20
_SETTLE_S = 0.5
MEMORY = (
    Spec(
        "memory.idle",
        "memory of an idle worker process",
        "B",
        _BARE,
        Limit("figure", must=80 * _MIB, aim=45 * _MIB),
    ),
    Spec("memory.idle_mpi", "the same after its first collective", "B", _BARE),
)


def measure_memory(bench: Bench) -> None:
    """Compares idle workers with as many interpreters that imported numpy."""
    bare = [
        subprocess.Popen(
            [sys.executable, "-c", _HOLD], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        for _ in range(WORKERS)
    ]
    try:
        for process in bare:
            assert process.stdout is not None
            process.stdout.readline()
        with bench.session() as session:
            pids = [place.pid for place in session.workers]
            _record(bench, "memory.idle", pids, [process.pid for process in bare])
            tiny = session.empty((4,), "float32")
            session.allreduce(tiny, tiny)
            session.sync_all()
            _record(bench, "memory.idle_mpi", pids, [process.pid for process in bare])
    finally:
        for process in bare:
            process.communicate()


def _record(bench: Bench, key: str, workers: Sequence[int], bare: Sequence[int]) -> None:
    time.sleep(_SETTLE_S)
    ours, theirs = _sizes(workers), _sizes(bare)
    kind = next(kind for kind in ("pss", "uss", "rss") if kind in ours)
    others = ", ".join(
        f"{name.upper()} {ours[name] / _MIB:.1f} MiB" for name in ours if name != kind
    )
    note = f"{kind.upper()}, the median of {len(workers)} processes; {others}"
    bench.record(key, Measured(ours[kind], theirs[kind], note=note))


def _sizes(pids: Sequence[int]) -> dict[str, float]:
    """The median sizes of some processes, in bytes, by each measure that the system has."""
    infos: list[Any] = [psutil.Process(pid).memory_full_info() for pid in pids]
    return {
        kind: statistics.median(float(getattr(info, kind)) for info in infos)
        for kind in ("pss", "uss", "rss")
        if hasattr(infos[0], kind)
    }
