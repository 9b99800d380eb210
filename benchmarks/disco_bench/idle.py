"""CPU time of what has nothing to do: ranks that wait, and idle daemons."""

from __future__ import annotations

import time
from collections.abc import Sequence

import numpy as np
import psutil

import disco_client
from disco_bench.bench import WORKERS, Bench, new_cluster, variable
from disco_bench.table import Limit, Measured, Spec

__all__ = ["IDLE", "measure_idle"]

_LIMIT = Limit("figure", must=0.02, aim=0.005)
_SETTLE_S = 1.5
"""How long a wait lasts before it is looked at."""
_NOTE = "the busiest of the processes, as a share of one core"

IDLE = (
    Spec("idle.commands", "CPU time of a rank that waits for commands", "core", "", _LIMIT),
    Spec("idle.process", "the same, ProcessSession", "core", "", _LIMIT),
    Spec(
        "idle.collective",
        "the same, in an allreduce, for a rank that comes late",
        "core",
        "",
        _LIMIT,
    ),
    Spec("idle.messages", "the same where the ranks share no memory", "core", "", _LIMIT),
    Spec("idle.worker", "CPU time of a worker daemon with an idle session", "core", "", _LIMIT),
    Spec("idle.controller", "the same of the controller", "core", "", _LIMIT),
)


def measure_idle(bench: Bench) -> None:
    """Looks at the processes of sessions that nobody uses, or in which all wait for one rank."""
    with bench.session() as session:
        ranks = _pids(session)
        controller, *daemons = bench.cluster.pids
        time.sleep(_SETTLE_S)
        shares = _cpu_shares(bench, [*ranks, *daemons, controller])
        _record(bench, "idle.commands", shares[: len(ranks)])
        _record(bench, "idle.worker", shares[len(ranks) : -1])
        _record(bench, "idle.controller", shares[-1:])
        _wait_for_a_rank(bench, "idle.collective", session)
    with disco_client.ProcessSession(WORKERS) as session:
        session.sync_all()
        time.sleep(_SETTLE_S)
        _record(bench, "idle.process", _cpu_shares(bench, _pids(session)))
    # For MPICH each rank is then on a machine of its own.
    with (
        variable("MPIR_CVAR_NOLOCAL", "1"),
        new_cluster() as apart,
        bench.session(cluster=apart) as session,
    ):
        _wait_for_a_rank(bench, "idle.messages", session)


def _wait_for_a_rank(bench: Bench, key: str, session: disco_client.Session) -> None:
    sleep_on = session.get_global_func("bench.sleep_on")
    ones = session.broadcast(np.ones(4, "float32"))
    session.allreduce(ones, ones)  # starts MPI
    session.sync_all()
    sleep_on(0, _SETTLE_S + _window(bench) + 1.0)
    session.allreduce(ones, ones)
    time.sleep(_SETTLE_S)
    _record(bench, key, _cpu_shares(bench, _pids(session)[1:]))
    session.sync_all()


def _pids(session: disco_client.Session) -> list[int]:
    return [place.pid for place in session.workers]


def _window(bench: Bench) -> float:
    return bench.pick(5.0, 0.5)


def _cpu_shares(bench: Bench, pids: Sequence[int]) -> list[float]:
    """The CPU time a second that some processes take while this one sleeps."""
    started, before = time.perf_counter(), [_cpu_seconds(pid) for pid in pids]
    time.sleep(_window(bench))
    after, seconds = [_cpu_seconds(pid) for pid in pids], time.perf_counter() - started
    return [(late - early) / seconds for early, late in zip(before, after, strict=True)]


def _cpu_seconds(pid: int) -> float:
    times = psutil.Process(pid).cpu_times()
    return times.user + times.system


def _record(bench: Bench, key: str, shares: Sequence[float]) -> None:
    bench.record(key, Measured(max(shares), note=_NOTE))
