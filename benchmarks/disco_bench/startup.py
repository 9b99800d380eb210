"""How long until something can be done: a ready session, and the client's import."""

from __future__ import annotations

import contextlib
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence

import psutil

import disco_client
from disco_bench.bench import NODES, SLOTS, WORKERS, Bench, new_cluster
from disco_bench.sampling import alone, rotate, time_call
from disco_bench.table import Limit, Measured, Spec
from disco_server.cli.local import LocalCluster

__all__ = ["IMPORTS", "SESSIONS", "measure_imports", "measure_sessions"]

_SPARES_S = 60.0
_POLL_S = 0.3
_CLIENT = "from disco_client import connect"
_BARE = "import grpc, numpy"
_SERVER_MODULES = (
    f"{_CLIENT}; import sys; print(sum(m.startswith('disco_server') for m in sys.modules))"
)

SESSIONS = (
    Spec(
        "session.cold",
        f"ready session, {WORKERS} workers, no spare interpreters",
        "s",
        f"{WORKERS} interpreters that import numpy",
        Limit("figure", must=2.0, aim=0.8),
    ),
    Spec(
        "session.warm",
        f"ready session, {WORKERS} workers, spare interpreters",
        "s",
        "",
        Limit("figure", must=0.3, aim=0.05),
    ),
)
IMPORTS = (
    Spec(
        "import.client",
        _CLIENT,
        "s",
        _BARE,
        Limit("figure", must=0.5, aim=0.25),
    ),
    Spec(
        "import.server_modules",
        "modules of the server that it loads",
        "count",
        "",
        Limit("figure", must=0),
    ),
)


# Sessions -----------------------------------------------------------------------


def measure_sessions(bench: Bench) -> None:
    """Times from the call of connect to the return of the first sync of all workers."""
    rounds = bench.pick(5, 1)
    cold: list[float] = []
    bare: list[float] = []
    for _ in range(rounds):
        bare.append(time_call(_start_interpreters))
        with new_cluster(warm=0) as cluster:
            cold.append(_time_session(cluster))
    note = "each with daemons just started"
    bench.record("session.cold", alone(cold, statistics.median(bare), note))
    warm: list[float] = []
    for turn in range(bench.pick(9, 1) + 1):
        _await_spares(bench.cluster)
        seconds = _time_session(bench.cluster)
        if turn:
            warm.append(seconds)
    bench.record("session.warm", alone(warm))


def _time_session(cluster: LocalCluster) -> float:
    started = time.perf_counter()
    session = disco_client.connect(cluster.address, num_workers=WORKERS)
    session.sync_all()
    seconds = time.perf_counter() - started
    session.shutdown()
    return seconds


def _start_interpreters() -> None:
    """Starts as many bare interpreters as a session has workers, and waits for all."""
    running = [subprocess.Popen([sys.executable, "-c", "import numpy"]) for _ in range(WORKERS)]
    for process in running:
        process.wait()


def _await_spares(cluster: LocalCluster) -> None:
    """Waits until every daemon has as many spare interpreters as slots, and they are idle.

    Raises:
        TimeoutError: They never were.
    """
    deadline = time.monotonic() + _SPARES_S
    before: list[float] = []
    while time.monotonic() < deadline:
        spent = _children_cpu(cluster.pids[1:])
        if len(spent) == NODES * SLOTS and spent == before:
            return
        before = spent
        time.sleep(_POLL_S)
    msg = f"the daemons had no {NODES * SLOTS} idle spare interpreters within {_SPARES_S:.0f} s"
    raise TimeoutError(msg)


def _children_cpu(pids: Sequence[int]) -> list[float]:
    """The CPU seconds of each child of some processes."""
    spent: list[float] = []
    for child in (child for pid in pids for child in psutil.Process(pid).children()):
        # Ranks of the session before may be on their way out.
        with contextlib.suppress(psutil.NoSuchProcess):
            times = child.cpu_times()
            spent.append(times.user + times.system)
    return spent


# The import ---------------------------------------------------------------------


def measure_imports(bench: Bench) -> None:
    """Times the client's import, less the start of the interpreter, and looks what it loads."""
    rounds = bench.pick(11, 2)
    bare, grpc, client = rotate(
        (_interpreter("pass"), _interpreter(_BARE), _interpreter(_CLIENT)), rounds
    )
    start = statistics.median(bare)
    note = f"less the {start * 1e3:.0f} ms that an interpreter takes to start and end"
    bench.record(
        "import.client",
        alone([seconds - start for seconds in client], statistics.median(grpc) - start, note),
    )
    loaded = subprocess.run(
        [sys.executable, "-c", _SERVER_MODULES], capture_output=True, text=True, check=True
    )
    bench.record("import.server_modules", Measured(float(loaded.stdout)))


def _interpreter(code: str) -> Callable[[], float]:
    return lambda: time_call(lambda: subprocess.run([sys.executable, "-c", code], check=True))
