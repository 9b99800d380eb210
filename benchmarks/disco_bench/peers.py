"""The same small things in Disco and in Ray, Dask and Monarch, on as many workers, in one run."""

from __future__ import annotations

import contextlib
import math
import secrets
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

import disco_client
from disco_bench.bench import WORKERS, Bench
from disco_bench.child import BENCHMARKS, Child, ChildFailed, peer_python, with_path
from disco_bench.control import RoundTrip
from disco_bench.peer_loop import BUSY_S, time_to_error
from disco_bench.sampling import Pair, median_of, rotate, time_call
from disco_bench.table import Limit, Spec, Unavailable

if TYPE_CHECKING:
    from disco_bench.table import Unit

__all__ = ["PEERS", "PEER_NAMES", "measure_peers", "ray_variables"]

PEER_NAMES = {"ray": "Ray", "dask": "Dask", "monarch": "Monarch"}
"""The peers, each in an environment of its own."""
NBYTES = 32 << 20
_START_S, _ROUND_S, _END_S = 120.0, 120.0, 30.0


class _Measure(NamedTuple):
    """What is measured for one row of each peer.

    Attributes:
        name: The middle of the row's key.
        what: What the table calls it.
        unit: The unit of its figures.
        limits: Of the rows beside some peers.
        without: The peers that have no such thing.
    """

    name: str
    what: str
    unit: Unit = "s"
    limits: Mapping[str, Limit] = {}
    without: tuple[str, ...] = ()

    def key(self, peer: str) -> str:
        """The name of the row beside a peer."""
        return f"peers.{self.name}.{peer}"

    def peers(self) -> Iterator[str]:
        """The peers that have such a thing."""
        return (peer for peer in PEER_NAMES if peer not in self.without)

    def specs(self) -> Iterator[Spec]:
        """The rows before they are measured."""
        for peer in self.peers():
            limit = self.limits.get(peer)
            yield Spec(self.key(peer), self.what, self.unit, PEER_NAMES[peer], limit)


_CALL = _Measure(
    "call",
    "no-op of one worker and the wait for it",
    limits={"ray": Limit("ratio", must=1.0, aim=0.5)},
)
_ALL = _Measure("all", f"no-op of all {WORKERS} workers and the wait for them")
_UP = _Measure("up", f"host array of {NBYTES >> 20} MiB to one worker", "B/s")
_KILLED = _Measure("killed", "worker is killed, until the client has the error")
_FIRST = _Measure("first", f"script that starts {WORKERS} workers, until it prints their answers")
_JOINED = _Measure(
    "joined", f"the same, of {WORKERS} workers of a cluster that is there", without=("monarch",)
)
_MEASURES = (_CALL, _ALL, _UP, _KILLED, _FIRST, _JOINED)
PEERS = tuple(spec for measure in _MEASURES for spec in measure.specs())


class _Run:
    """The peers while they are measured.

    Args:
        environ: Their environment.

    Attributes:
        reasons: Why those that have no figures, or no more of them, have none.
    """

    def __init__(self, environ: Mapping[str, str]) -> None:
        self._environ = environ
        self._pythons: dict[str, Path] = {}
        self._running: dict[str, tuple[Child, str]] = {}
        self.reasons: dict[str, str] = {}

    def start(self, stack: contextlib.ExitStack) -> None:
        """Starts those that are installed, each with its workers; the stack ends them."""
        for peer in PEER_NAMES:
            try:
                self._pythons[peer] = peer_python(peer, "bench-peers")
                child = stack.enter_context(self._child(peer, "serve"))
                self._running[peer] = child, child.read_line(_START_S)
            except (Unavailable, ChildFailed) as error:
                self.reasons[peer] = " ".join(str(error).split())

    def _child(self, peer: str, *arguments: str) -> Child:
        verb, *address = arguments
        command = ["-m", f"disco_bench.{peer}_peer", verb, str(WORKERS), *address]
        return Child(command, self._environ, self._pythons[peer], end_s=_END_S)

    @property
    def all_failed(self) -> bool:
        """Whether there is nothing to measure."""
        return len(self.reasons) == len(PEER_NAMES)

    def compare(
        self,
        measure: _Measure,
        ours: Callable[[], float],
        theirs: Callable[[str], float],
        rounds: int,
        warm_up: int = 0,
    ) -> Iterator[tuple[str, Pair]]:
        """Measures Disco and all peers in turn; returns the key of each row and its figures.

        Args:
            measure: The rows.
            ours: Measures Disco once and returns the figure.
            theirs: The same for a peer.
            rounds: How often.
            warm_up: How many rounds more come first.
        """
        peers = [peer for peer in measure.peers() if peer not in self.reasons]
        mine, *others = rotate(
            (ours, *(partial(self._unless_failed, theirs, peer) for peer in peers)),
            rounds,
            warm_up=warm_up,
        )
        for peer, figures in zip(peers, others, strict=True):
            if peer not in self.reasons:
                yield measure.key(peer), Pair(mine, figures)

    def _unless_failed(self, theirs: Callable[[str], float], peer: str) -> float:
        try:
            return math.nan if peer in self.reasons else theirs(peer)
        except ChildFailed as error:
            self.reasons[peer] = " ".join(str(error).split())
            return math.nan

    def ask(self, question: str, peer: str) -> float:
        """A figure of a peer's; see `peer_loop`."""
        return float(self._running[peer][0].ask(question, _ROUND_S))

    def first(self, peer: str, *, join: bool) -> float:
        """The seconds until a peer's first script prints its result."""
        address = (self._running[peer][1],) if join else ()
        started = time.perf_counter()
        with self._child(peer, "first", *address) as child:
            return _until_answered(child, started)


def measure_peers(bench: Bench) -> None:
    """Compares what users of a cluster do first with the same in the peers that are installed."""
    with tempfile.TemporaryDirectory(prefix="peers", ignore_cleanup_errors=True) as folder:
        run = _Run({**with_path(BENCHMARKS), **ray_variables(folder)})
        with contextlib.ExitStack() as stack:
            run.start(stack)
            if not run.all_failed:
                for key, pair in _measure(bench, run):
                    bench.record(key, pair.measured())
    for peer, reason in run.reasons.items():
        for measure in _MEASURES:
            if peer in measure.peers():
                bench.excuse(measure.key(peer), reason)


def ray_variables(folder: str) -> dict[str, str]:
    """Keep Ray's files in a folder, and its token, which it puts into the home by default, here."""
    return {
        "RAY_TMPDIR": folder,
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN": secrets.token_hex(32),
    }


def _measure(bench: Bench, run: _Run) -> Iterator[tuple[str, Pair]]:
    (count, rounds), few = bench.pick((100, 9), (10, 1)), bench.pick(3, 1)
    with bench.session(1) as session:
        trip = RoundTrip(session)
        ask = partial(run.ask, f"call {count}")
        yield from run.compare(_CALL, lambda: median_of(trip.one, count), ask, rounds, 1)
    with bench.session() as session:
        trip = RoundTrip(session)
        ask = partial(run.ask, f"all {count}")
        yield from run.compare(_ALL, lambda: median_of(trip.all, count), ask, rounds, 1)
        nbytes = bench.pick(NBYTES, 1 << 20)
        ask = partial(run.ask, f"up {nbytes}")
        yield from run.compare(_UP, _Upload(session, nbytes), ask, rounds, 1)
    lose = partial(_lose_worker, bench)
    yield from run.compare(_KILLED, lose, partial(run.ask, "killed"), few)
    address = bench.cluster.address
    yield from run.compare(_FIRST, _first, partial(run.first, join=False), few)
    yield from run.compare(_JOINED, partial(_first, address), partial(run.first, join=True), few)


class _Upload:
    """Sends an array to worker 0 of a session; measures once, and returns bytes/s."""

    def __init__(self, session: disco_client.Session, nbytes: int) -> None:
        self._session = session
        self._array = np.ones(nbytes, np.uint8)
        self._held = session.copy_to_worker_0(self._array)
        session.sync_worker_0()

    def __call__(self) -> float:
        return self._array.nbytes / time_call(self._send)

    def _send(self) -> None:
        self._session.copy_to_worker_0(self._array, self._held)
        self._session.sync_worker_0()


def _lose_worker(bench: Bench) -> float:
    """Kills a worker that is busy; returns the seconds until the wait for it raises."""
    with bench.session() as session:
        last = WORKERS - 1
        session.get_global_func("bench.sleep_on")(last, BUSY_S)
        pid = session.workers[last].pid
        return time_to_error(pid, lambda: session.sync_worker(last), disco_client.WorkerLost)


def _first(*address: str) -> float:
    started = time.perf_counter()
    with Child(["-m", "disco_bench.first_result", str(WORKERS), *address], end_s=_END_S) as child:
        return _until_answered(child, started)


def _until_answered(child: Child, started: float) -> float:
    answers = int(child.read_line(_START_S))
    seconds = time.perf_counter() - started
    assert answers == WORKERS, answers
    return seconds
