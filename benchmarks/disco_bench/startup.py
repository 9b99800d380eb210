"""How long until something can be done: a ready session, and the client's import."""

from __future__ import annotations

import contextlib
import io
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import numpy as np

import disco_client
from disco_bench.bench import WORKERS, Bench, new_cluster
from disco_bench.sampling import alone, rotate, time_call
from disco_bench.table import Limit, Measured, Spec

if TYPE_CHECKING:
    from disco_server.cli.local import LocalCluster

__all__ = ["IMPORTS", "SESSIONS", "measure_imports", "measure_sessions"]

_IN_A_ROW, _AT_ONCE = 100, 50
_CLIENT = "from disco_client import connect"
_BARE = "import grpc, numpy"
_SERVER_MODULES = (
    f"{_CLIENT}; import sys; print(sum(m.startswith('disco_server') for m in sys.modules))"
)

SESSIONS = (
    Spec(
        "session.cold",
        f"ready session, {WORKERS} workers, daemons just started",
        "s",
        f"{WORKERS} interpreters that import numpy",
        Limit("figure", must=2.0, aim=0.8),
    ),
    Spec(
        "session.ready",
        f"ready session, {WORKERS} workers, daemons that are there",
        "s",
        "",
        Limit("figure", must=0.2, aim=0.1),
    ),
    Spec("session.mpi", "the same and its first allreduce, with which MPI starts", "s", ""),
    Spec("session.row", f"{_IN_A_ROW} sessions of one worker, one after another", "s", ""),
    Spec(
        "session.burst",
        f"{_AT_ONCE} sessions of one worker at once, {WORKERS} slots",
        "s",
        "",
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
    """Times from the call of connect to the return of the first sync, or allreduce."""
    rounds = bench.pick(5, 1)
    cold: list[float] = []
    bare: list[float] = []
    for _ in range(rounds):
        bare.append(time_call(_start_interpreters))
        with new_cluster() as cluster:
            cold.append(_time_session(cluster))
    bench.record("session.cold", alone(cold, statistics.median(bare)))
    ready, with_mpi = rotate(
        (
            lambda: _time_session(bench.cluster),
            lambda: _time_session(bench.cluster, _allreduce),
        ),
        bench.pick(9, 1),
    )
    bench.record("session.ready", alone(ready))
    bench.record("session.mpi", alone(with_mpi))
    _measure_many(bench)


def _measure_many(bench: Bench) -> None:
    """Times sessions of one worker, from the first call of connect to the end of the last."""
    in_a_row, at_once = bench.pick((_IN_A_ROW, _AT_ONCE), (3, 6))
    address = bench.cluster.address

    def row() -> float:
        return time_call(lambda: [_use(address) for _ in range(in_a_row)])

    def burst() -> float:
        # Those that wait for a slot would say so a thousand times.
        with contextlib.redirect_stderr(io.StringIO()), ThreadPoolExecutor(at_once) as threads:
            return time_call(lambda: list(threads.map(_use, [address] * at_once)))

    rows, bursts = rotate((row, burst), bench.pick(5, 1))
    bench.record("session.row", alone(rows))
    bench.record("session.burst", alone(bursts))


def _use(address: str) -> None:
    with disco_client.connect(address, num_workers=1) as session:
        session.sync_all()


def _sync(session: disco_client.Session) -> None:
    session.sync_all()


def _allreduce(session: disco_client.Session) -> None:
    ones = session.broadcast(np.ones(4, "float32"))
    session.allreduce(ones, ones)
    session.sync_all()


def _time_session(
    cluster: LocalCluster, use: Callable[[disco_client.Session], None] = _sync
) -> float:
    started = time.perf_counter()
    session = disco_client.connect(cluster.address, num_workers=WORKERS)
    use(session)
    seconds = time.perf_counter() - started
    session.shutdown()
    return seconds


def _start_interpreters() -> None:
    """Starts as many bare interpreters as a session has workers, and waits for all."""
    running = [subprocess.Popen([sys.executable, "-c", "import numpy"]) for _ in range(WORKERS)]
    for process in running:
        process.wait()


# The import ---------------------------------------------------------------------


def measure_imports(bench: Bench) -> None:
    """Times the client's import, less the start of the interpreter, and checks what it loads."""
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
