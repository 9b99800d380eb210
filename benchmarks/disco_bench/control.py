"""Commands and answers through controller and daemons: throughput and round trips."""

from __future__ import annotations

import contextlib
import importlib.util
import time
from collections.abc import Callable, Generator
from typing import TYPE_CHECKING

from disco_bench.bench import WORKERS, Bench
from disco_bench.child import BENCHMARKS, Child, ChildFailed, with_path
from disco_bench.grpc_yardstick import raw_grpc
from disco_bench.sampling import Pair, alone, alternate, median_of, rotate
from disco_bench.table import Limit, Spec, Unavailable

if TYPE_CHECKING:
    import disco_client

__all__ = [
    "COMMANDS",
    "SYNC",
    "Burst",
    "RoundTrip",
    "ask_tvm",
    "measure_commands",
    "measure_sync",
    "tvm_peer",
]

_TVM_START_S = 60.0
_TVM_ROUND_S = 60.0
_RAW = "raw grpcio ping-pong"

COMMANDS = (
    Spec(
        "commands.process",
        f"commands/s, 3-argument no-op, 2 daemons x {WORKERS // 2}",
        "1/s",
        "TVM ProcessSession, 4 workers",
        Limit("figure", must=60e3, aim=150e3, least=True),
    ),
    Spec("commands.socket", "the same", "1/s", "TVM SocketSession, 2 x 2 workers"),
    Spec("commands.processor", "processor time of the client's process for each of them", "s", ""),
)
SYNC = (
    Spec("sync.worker", "sync of one worker", "s", _RAW, Limit("ratio", must=4.0, aim=2.5)),
    Spec("sync.all", f"sync of all {WORKERS} workers", "s", _RAW),
    Spec("sync.round_trip_1", "no-op and its sync, session of 1", "s", _RAW),
    Spec("sync.round_trip_4", "no-op and one worker's sync, session of 4", "s", _RAW),
    Spec("sync.broadcast_4", "no-op and sync of all 4", "s", _RAW),
)


# Throughput -------------------------------------------------------------------


class Burst:
    """Issues many commands at once and waits until all workers have executed them.

    Attributes:
        processor_s: What a command took of this process's processor time, in seconds; for each
            time that it was measured.
    """

    def __init__(self, session: disco_client.Session, count: int) -> None:
        self._session = session
        self._count = count
        self._noop = session.get_global_func("bench.noop")
        self._arguments = (session.empty((4,), "float32"), session.empty((4,), "float32"))
        self.processor_s: list[float] = []

    def __call__(self) -> float:
        """Measures once; returns commands/s."""
        noop, (first, second) = self._noop, self._arguments
        used, started = time.process_time(), time.perf_counter()
        for _ in range(self._count):
            # Kept until the next one is there, as a program that uses its results does.
            _result = noop(first, second, 3)
        self._session.sync_all()
        took = time.perf_counter() - started
        self.processor_s.append((time.process_time() - used) / self._count)
        return self._count / took


def measure_commands(bench: Bench) -> None:
    """Compares commands/s with TVM's own sessions."""
    count, rounds = bench.pick(30_000, 2_000), bench.pick(7, 2)
    with bench.session() as session:
        burst = Burst(session, count)
        try:
            with tvm_peer("process") as peer:
                pair = alternate(burst, lambda: ask_tvm(peer, count), rounds)
            bench.record("commands.process", pair.measured())
        except (Unavailable, ChildFailed) as error:
            (figures,) = rotate((burst,), rounds)
            note = f"no figure of TVM: {error}"
            bench.record("commands.process", alone(figures, note=note))
        try:
            with tvm_peer("socket") as peer:
                pair = alternate(burst, lambda: ask_tvm(peer, count), max(1, rounds // 2))
            bench.record("commands.socket", pair.measured())
        except (Unavailable, ChildFailed) as error:
            bench.excuse("commands.socket", str(error))
        bench.record("commands.processor", alone(burst.processor_s))


@contextlib.contextmanager
def tvm_peer(kind: str, workers: int = WORKERS) -> Generator[Child]:
    """Starts TVM's Disco with a session of some kind, where it is installed.

    Args:
        kind: "threaded", "process" or "socket".
        workers: How many it has.

    Raises:
        Unavailable: It is not.
        ChildFailed: It did not start in time.
    """
    if importlib.util.find_spec("tvm") is None or importlib.util.find_spec("tvm_ffi") is None:
        msg = "apache-tvm is not installed"
        raise Unavailable(msg)
    site = BENCHMARKS / "disco_bench" / "tvm_site"
    arguments = ["-m", "disco_bench.tvm_peer", kind, str(workers)]
    with Child(arguments, with_path(BENCHMARKS, site)) as child:
        child.read_line(_TVM_START_S)
        yield child


def ask_tvm(peer: Child, question: object) -> float:
    """Asks what ``tvm_peer`` started: a number of commands, or as its module says."""
    return float(peer.ask(str(question), _TVM_ROUND_S))


# Round trips ------------------------------------------------------------------


def measure_sync(bench: Bench) -> None:
    """Compares round trips with those of a raw stream."""
    count, rounds = bench.pick(200, 20), bench.pick(11, 2)
    with raw_grpc() as raw:
        with bench.session(WORKERS) as session:
            _measure_four(bench, session, rounds, count, raw.ping)
        with bench.session(1) as session:
            trip = RoundTrip(session)
            pair = alternate(
                lambda: median_of(trip.one, count), lambda: median_of(raw.ping, count), rounds
            )
    bench.record("sync.round_trip_1", pair.measured())


class RoundTrip:
    """A no-op, and the wait for it."""

    def __init__(self, session: disco_client.Session) -> None:
        self._session = session
        self._noop = session.get_global_func("bench.noop")

    def one(self) -> None:
        """Calls, and waits for worker 0."""
        self._noop(1, 2, 3)
        self._session.sync_worker(0)

    def all(self) -> None:
        """Calls, and waits for all workers."""
        self._noop(1, 2, 3)
        self._session.sync_all()


def _measure_four(
    bench: Bench, session: disco_client.Session, rounds: int, count: int, ping: Callable[[], None]
) -> None:
    trip = RoundTrip(session)
    pings, one, everyone, call_one, call_all = rotate(
        (
            lambda: median_of(ping, count),
            lambda: median_of(session.sync_worker_0, count),
            lambda: median_of(session.sync_all, count),
            lambda: median_of(trip.one, count),
            lambda: median_of(trip.all, count),
        ),
        rounds,
    )
    bench.record("sync.worker", Pair(one, pings).measured())
    bench.record("sync.all", Pair(everyone, pings).measured())
    bench.record("sync.round_trip_4", Pair(call_one, pings).measured())
    bench.record("sync.broadcast_4", Pair(call_all, pings).measured())
