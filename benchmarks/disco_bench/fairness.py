"""The cost of one session for another on the same node: its waits beside prints or transfers."""

from __future__ import annotations

import statistics
import time
from functools import partial
from typing import TYPE_CHECKING

import disco_client
from disco_bench.child import Child
from disco_bench.sampling import Pair, alternate, time_call
from disco_bench.table import Limit, Spec

if TYPE_CHECKING:
    from disco_bench.bench import Bench

__all__ = ["FAIRNESS", "measure_fairness"]

_SMALL, _LARGE = 1_000, 60_000
_RATE = 2e6
"""Bytes a second that small arrays reach on a slow machine too."""

_CLUSTER = """
import sys
from disco_server.cli.local import LocalCluster
allow = ["disco_bench.worker_functions"]
with LocalCluster(1, 2, listen="127.0.0.1:0", allow_modules=allow, log_level="info") as cluster:
    print(cluster.address, flush=True)
    sys.stdin.read()
"""
"""One node, whose daemons log as they do by themselves; their log is a file."""

_SETTLE_S = 0.2
_BETWEEN_S = 0.002
_ANSWER_S = 60.0

_SMALL_ONES = f"beside {_SMALL // 1000} kB, equal bytes/s"

FAIRNESS = (
    Spec(
        "fairness.printing",
        "sync beside a rank that prints without end, p95",
        "s",
        "beside one that spins",
        Limit("ratio", must=2.0, aim=1.2),
    ),
    Spec("fairness.printing_median", "the same, median", "s", "beside one that spins"),
    Spec(
        "fairness.arrays",
        f"sync beside inline arrays of {_LARGE // 1000} kB, median",
        "s",
        _SMALL_ONES,
        Limit("ratio", must=1.5, aim=1.0),
    ),
    Spec(
        "fairness.arrays_p95",
        "the same, p95",
        "s",
        _SMALL_ONES,
        Limit("ratio", must=3.0, aim=1.0),
    ),
    Spec("fairness.flood", "the same, as many as it can send, median", "s", "beside nobody"),
    Spec("fairness.flood_p95", "the same, p95", "s", "beside nobody"),
)


class _Waits:
    """How long a session's waits take while a tenant of its node does something."""

    def __init__(self, session: disco_client.Session, tenant: Child, seconds: float) -> None:
        self._session = session
        self._tenant = tenant
        self._seconds = seconds
        self.p95: dict[str, list[float]] = {}

    def __call__(self, doing: str) -> float:
        """Measures once.

        Args:
            doing: What the tenant is to do; empty for no tenant.

        Returns:
            The median in seconds; the 95th percentile goes to ``p95``.
        """
        if doing:
            what, *numbers = doing.split()
            line = " ".join([what, str(_SETTLE_S + self._seconds), *numbers])
            self._tenant.ask(line, _ANSWER_S)
            time.sleep(_SETTLE_S)
        waits: list[float] = []
        end = time.perf_counter() + self._seconds
        while time.perf_counter() < end:
            waits.append(time_call(self._session.sync_all))
            time.sleep(_BETWEEN_S)
        if doing:
            self._tenant.read_line(_ANSWER_S)
        waits.sort()
        self.p95.setdefault(doing, []).append(waits[int(len(waits) * 0.95)])
        return statistics.median(waits)

    def pairs(self, ours: str, theirs: str, rounds: int) -> tuple[Pair, Pair]:
        """Measures two things in turn: the medians, and the 95th percentiles."""
        self.p95.clear()
        medians = alternate(partial(self, ours), partial(self, theirs), rounds, warm_up=0)
        return medians, Pair(self.p95[ours], self.p95[theirs])


def measure_fairness(bench: Bench) -> None:
    """Measures one session's waits while another one of the same node does this or that."""
    rounds, seconds = bench.pick(9, 1), bench.pick(2.0, 0.3)
    large, small = f"arrays {_LARGE} {_RATE}", f"arrays {_SMALL} {_RATE}"
    with (
        Child(["-c", _CLUSTER]) as cluster,
        disco_client.connect(
            address := cluster.read_line(_ANSWER_S), num_workers=1, name="bench-waits"
        ) as session,
        Child(["-m", "disco_bench.tenant", address]) as tenant,
    ):
        tenant.read_line(_ANSWER_S)
        waits = _Waits(session, tenant, seconds)
        medians, p95 = waits.pairs("print_for", "spin_for", rounds)
        bench.record("fairness.printing_median", medians.measured())
        bench.record("fairness.printing", p95.measured())
        medians, p95 = waits.pairs(large, small, rounds)
        bench.record("fairness.arrays", medians.measured())
        bench.record("fairness.arrays_p95", p95.measured())
        medians, p95 = waits.pairs(f"arrays {_LARGE} 0", "", rounds)
        bench.record("fairness.flood", medians.measured())
        bench.record("fairness.flood_p95", p95.measured())
