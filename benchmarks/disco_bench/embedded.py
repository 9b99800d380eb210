"""Sessions with workers of their own, beside TVM's of the same kind."""

from __future__ import annotations

import contextlib
from collections.abc import Generator
from functools import partial

import numpy as np

import disco_client
from disco_bench import worker_functions
from disco_bench.bench import WORKERS, Bench
from disco_bench.child import ChildFailed
from disco_bench.collectives import CALLS, capture_allreduces
from disco_bench.control import Burst, ask_tvm, tvm_peer
from disco_bench.sampling import Pair, alone, alternate, median_of, rotate, time_call
from disco_bench.table import Limit, Spec, Unavailable

__all__ = ["EMBEDDED", "measure_embedded"]

NBYTES = 64 << 20
_WORKERS = (4, 8)
_KINDS = {"threaded": (1.0, {4: 1.5, 8: 4.0}), "process": (2.5, {4: 4.0, 8: 5.0})}
_REDUCED, _SMALL = (2, 4), 2304
_NAMES = {"threaded": "ThreadedSession", "process": "ProcessSession"}


def _commands_spec(kind: str, workers: int) -> Spec:
    must, aims = _KINDS[kind]
    return Spec(
        f"embedded.{kind}.{workers}",
        f"commands/s, {_NAMES[kind]}, {workers} workers",
        "1/s",
        f"TVM {_NAMES[kind]}",
        Limit("ratio", must=must, aim=aims[workers], least=True),
    )


EMBEDDED = (
    *(_commands_spec(kind, workers) for kind in _KINDS for workers in _WORKERS),
    Spec(
        "embedded.sync",
        "sync of one worker, ProcessSession",
        "s",
        "TVM ProcessSession",
        Limit("ratio", must=1.5, aim=1.0),
    ),
    Spec(
        "embedded.call",
        "no-op and its sync, ProcessSession",
        "s",
        "TVM ProcessSession",
        Limit("ratio", must=3.0, aim=2.0),
    ),
    *(
        Spec(
            f"embedded.allreduce.{workers}",
            f"{CALLS} allreduces of {_SMALL} B, captured, ThreadedSession, {workers} workers",
            "s",
            "ProcessSession",
            Limit("ratio", must=1.0),
        )
        for workers in _REDUCED
    ),
    Spec(
        "embedded.array",
        "host array of 64 MiB, ProcessSession",
        "B/s",
        "memcpy",
        Limit("figure", must=1e9, aim=4e9, least=True),
    ),
)


def measure_embedded(bench: Bench) -> None:
    """Compares threads and child processes with TVM's."""
    for kind in _KINDS:
        for workers in _WORKERS:
            _measure_commands(bench, kind, workers)
    _measure_sync(bench)
    for workers in _REDUCED:
        _measure_allreduces(bench, workers)
    with _session("process", 1) as session:
        _measure_array(bench, session)


@contextlib.contextmanager
def _session(kind: str, workers: int) -> Generator[disco_client.Session]:
    make = disco_client.ThreadedSession if kind == "threaded" else disco_client.ProcessSession
    with make(workers) as session:
        session.import_python_module(worker_functions.__name__)
        session.sync_all()
        yield session


def _measure_commands(bench: Bench, kind: str, workers: int) -> None:
    count, rounds = bench.pick(20_000, 1_000), bench.pick(7, 2)
    key = f"embedded.{kind}.{workers}"
    running = bench.pick(workers, 2)  # that many interpreters load TVM
    with _session(kind, running) as session:
        burst = Burst(session, count)
        try:
            with tvm_peer(kind, running) as peer:
                pair = alternate(burst, partial(ask_tvm, peer, count), rounds)
            bench.record(key, pair.measured())
        except (Unavailable, ChildFailed) as error:
            (figures,) = rotate((burst,), rounds)
            bench.record(key, alone(figures, note=f"no figure of TVM: {error}"))


def _measure_sync(bench: Bench) -> None:
    """The last worker: TVM's first one is a thread of the client's process."""
    count, rounds = bench.pick(300, 20), bench.pick(11, 2)
    last = WORKERS - 1
    try:
        with _session("process", WORKERS) as session, tvm_peer("process", WORKERS) as peer:
            noop = session.get_global_func("bench.noop")
            first, second = session.empty((4,), "float32"), session.empty((4,), "float32")

            def sync() -> None:
                session.sync_worker(last)

            def call() -> None:
                _result = noop(first, second, 3)
                session.sync_worker(last)

            for what, act in (("sync", sync), ("call", call)):
                pair = alternate(
                    partial(median_of, act, count),
                    partial(ask_tvm, peer, f"{what} {count}"),
                    rounds,
                )
                bench.record(f"embedded.{what}", pair.measured("the last of 4 workers"))
    except (Unavailable, ChildFailed) as error:
        for what in ("sync", "call"):
            bench.excuse(f"embedded.{what}", str(error))


def _measure_allreduces(bench: Bench, workers: int) -> None:
    runs, rounds = bench.pick((20, 9), (1, 1))
    with _session("threaded", workers) as threads, _session("process", workers) as processes:
        ours, theirs = (capture_allreduces(s, _SMALL, runs) for s in (threads, processes))
        bench.record(f"embedded.allreduce.{workers}", alternate(ours, theirs, rounds).measured())


def _measure_array(bench: Bench, session: disco_client.Session) -> None:
    rounds, nbytes = bench.pick(9, 2), bench.pick(NBYTES, 4 << 20)
    host = np.arange(nbytes // 4, dtype=np.int32)
    other = np.empty_like(host)
    remote = session.empty(host.shape, host.dtype)
    session.sync_all()

    def up() -> None:
        session.copy_to_worker_0(host, remote)
        session.sync_worker_0()

    ours, theirs = rotate(
        (
            lambda: nbytes / time_call(up),
            lambda: nbytes / time_call(lambda: np.copyto(other, host)),
        ),
        rounds,
    )
    assert np.array_equal(remote.numpy(), host)
    bench.record("embedded.array", Pair(ours, theirs).measured("until it is in the register"))
