"""``session.numpy`` beside Heat, dask.array and numpy: the same arrays, cases and processes.

Disco and its peers have as many processes of this machine, each with one thread for arithmetic.
They take turns, and each figure is the mean of some repetitions, until all workers have the last
result.
"""

from __future__ import annotations

import contextlib
import math
import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any, NamedTuple, Self

import disco_client
from disco_bench import worker_functions
from disco_bench.array_cases import (
    CASES,
    ArrayCase,
    ArrayKit,
    action_of,
    make_data,
    refuse_unequal,
)
from disco_bench.bench import Bench, variable
from disco_bench.child import BENCHMARKS, Child, ChildFailed, peer_python, with_path
from disco_bench.sampling import Pair, rotate
from disco_bench.table import Limit, Measured, Spec, Unavailable
from disco_client.distributed import DTensor

__all__ = ["NUMPY_NAMES", "measure_numpy_names"]

SIZES = (2, 4)
"""How many workers."""
ROWS = 400_000
_START_S, _ROUND_S, _END_S = 180.0, 180.0, 30.0
_SETTLE_S = 0.1
"""Before each turn: threads of BLAS go on for a while after a product, in case of another one."""
_THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
_ENOUGH = 1.5
"""How many times one thread of numpy two workers must reach, where Heat's reach it."""

_PEERS = {
    "heat": "Heat",
    "dask": "dask.array",
    "numpy": "numpy, 1 thread",
    "numpy2": "numpy, 2 threads",
}
_NO_NAME = {("resplit", "numpy"), ("resplit", "numpy2")}
_LIMITS = {"heat": Limit("ratio", must=1.0, aim=0.5)}


class _NamesRow(NamedTuple):
    """A row: a case on so many workers beside a peer."""

    case: ArrayCase
    workers: int
    peer: str

    @property
    def key(self) -> str:
        """The name of the row."""
        return f"arrays.{self.case.name}_{self.workers}.{self.peer}"

    @property
    def spec(self) -> Spec:
        """The row before it is measured."""
        what = f"{self.case.what}, {self.workers} workers"
        return Spec(self.key, what, "s", _PEERS[self.peer], _LIMITS.get(self.peer))


_ROWS = tuple(
    _NamesRow(case, workers, peer)
    for workers in SIZES
    for case in CASES.values()
    for peer in _PEERS
    if (case.name, peer) not in _NO_NAME
)
_BEHIND = Spec("arrays.behind", "rows behind Heat", "count", limit=Limit("figure", must=0))
_MEAN = Spec(
    "arrays.mean", "geometric mean of the ratios to Heat", "count", limit=Limit("figure", must=0.5)
)
_SHORT = Spec(
    "arrays.short",
    f"rows of 2 workers below {_ENOUGH} times numpy, where Heat is not",
    "count",
    limit=Limit("figure", must=0),
)
NUMPY_NAMES = (*(row.spec for row in _ROWS), _BEHIND, _MEAN, _SHORT)


def measure_numpy_names(bench: Bench) -> None:
    """Compares what numpy's names compute, and how long that takes."""
    found: dict[str, Pair] = {}
    reasons: dict[str, str] = {}
    with contextlib.ExitStack() as stack:
        for name in _THREADS:
            stack.enter_context(variable(name, "1"))
        stack.enter_context(variable("OPENBLAS_CORETYPE", None))
        for workers in SIZES:
            with _Turns(bench, workers, reasons) as turns:
                for case in CASES.values():
                    for row, pair in turns.measure(case):
                        found[row.key] = pair
                        bench.record(row.key, pair.measured())
    for row in _ROWS:
        if row.key not in found:
            bench.excuse(row.key, reasons[row.peer])
    _summarize(bench, found, reasons)


def _summarize(bench: Bench, found: Mapping[str, Pair], reasons: Mapping[str, str]) -> None:
    """The rows about all others."""
    ratios = {
        row.key: statistics.median(found[row.key].ratios)
        for row in _ROWS
        if row.key in found and row.peer in ("heat", "numpy")
    }
    heats = {row.key: ratios[row.key] for row in _ROWS if row.peer == "heat" and row.key in ratios}
    if not heats:
        for spec in (_BEHIND, _MEAN, _SHORT):
            bench.excuse(spec.key, reasons["heat"])
        return
    behind = [key for key, ratio in heats.items() if ratio > 1]
    short = [
        row.case.name
        for row in _ROWS
        if row.workers == SIZES[0]
        and row.peer == "numpy"
        and row.key in ratios
        and (heat := heats.get(row._replace(peer="heat").key)) is not None
        and ratios[row.key] / heat < 1 / _ENOUGH < ratios[row.key]
    ]
    mean = math.exp(statistics.fmean(map(math.log, heats.values())))
    bench.record(_BEHIND.key, Measured(len(behind), note=", ".join(behind)))
    bench.record(_MEAN.key, Measured(mean))
    bench.record(_SHORT.key, Measured(len(short), note=", ".join(short)))


class _Turns:
    """Disco and its peers with their arrays; a context manager.

    Args:
        bench: Says how long to measure.
        workers: How many each has.
        reasons: Why peers have no figures; others are added.
    """

    def __init__(self, bench: Bench, workers: int, reasons: dict[str, str]) -> None:
        self._bench = bench
        self._workers = workers
        self._reasons = reasons
        self._rows = bench.pick(ROWS, 500)
        self._data = make_data(self._rows)
        self._peers: dict[str, Child] = {}
        self._stack = contextlib.ExitStack()

    def __enter__(self) -> Self:
        for peer in _PEERS:
            if peer in self._reasons:
                continue
            try:
                child = self._stack.enter_context(self._start(peer))
                child.read_line(_START_S)
                self._peers[peer] = child
            except (Unavailable, ChildFailed) as error:
                self._reasons[peer] = " ".join(str(error).split())
        self._session = self._stack.enter_context(disco_client.ProcessSession(self._workers))
        self._session.import_python_module(worker_functions.__name__)
        self._kit = _disco_kit(self._session, self._data)
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def _start(self, peer: str) -> Child:
        environ = with_path(BENCHMARKS)
        rows = str(self._rows)
        if peer == "heat":
            python = peer_python("heat", "bench-heat")
            command = ["-n", str(self._workers), str(python), "-m", "disco_bench.heat_peer", rows]
            return Child(command, environ, python=python.parent / "mpiexec", end_s=_END_S)
        if peer == "dask":
            command = ["-m", "disco_bench.dask_array_peer", rows, str(self._workers)]
            python = peer_python("dask", "bench-peers")
            return Child(command, environ, python=python, end_s=_END_S)
        threads = dict.fromkeys(_THREADS, "2" if peer == "numpy2" else "1")
        return Child(["-m", "disco_bench.array_peer", rows], environ | threads, end_s=_END_S)

    def measure(self, case: ArrayCase) -> Iterator[tuple[_NamesRow, Pair]]:
        """Measures all in turn, after a look at their results."""
        action = action_of(case.name, self._kit)
        refuse_unequal(case.name, action().numpy(), self._data)
        peers = [peer for peer in self._peers if (case.name, peer) not in _NO_NAME]
        for peer in peers:
            self._ask(f"check {case.name}", peer)
        count, rounds = self._bench.pick((case.times, 5), (1, 1))
        question = f"many {case.name} {count}"
        mine, *others = rotate(
            (
                partial(_settled, partial(_many, self._session, action, count)),
                *(partial(_settled, partial(self._figure, question, peer)) for peer in peers),
            ),
            rounds,
        )
        for peer, figures in zip(peers, others, strict=True):
            if peer not in self._reasons:
                yield _NamesRow(case, self._workers, peer), Pair(mine, figures)

    def _figure(self, question: str, peer: str) -> float:
        answer = self._ask(question, peer)
        return math.nan if answer is None else float(answer)

    def _ask(self, question: str, peer: str) -> str | None:
        """A peer's answer; None from one that has failed."""
        if peer in self._reasons:
            return None
        try:
            return self._peers[peer].ask(question, _ROUND_S)
        except ChildFailed as error:
            self._reasons[peer] = " ".join(str(error).split())
            return None


def _settled(figure: Callable[[], float]) -> float:
    time.sleep(_SETTLE_S)
    return figure()


def _disco_kit(session: disco_client.Session, data: Any) -> ArrayKit:
    xp = session.numpy
    x, left, right = map(xp.asarray, data)
    return ArrayKit(
        xp,
        x,
        left,
        right,
        "float64",
        partial(DTensor.redistribute, placement="R"),
        partial(DTensor.redistribute, placement="S[1]"),
        partial(xp.map_overlap, "bench.jacobi_step", depth={0: 1}, boundary="none"),
        xp.random.default_rng(0).standard_normal,
        partial(_histogram, xp),
    )


def _histogram(xp: Any, array: DTensor, bins: int) -> DTensor:
    return xp.histogram(array, bins, (0, 1))[0]


def _many(session: disco_client.Session, action: Callable[[], object], count: int) -> float:
    session.sync_all()
    started = time.perf_counter()
    for _ in range(count):
        _result = action()
    session.sync_all()
    return (time.perf_counter() - started) / count
