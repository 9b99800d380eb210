"""Distributed tensors: products and redistribution, beside torch's DTensor over gloo.

Both sides do the same on as many ranks of the same CPUs, with one thread for
arithmetic each: many operations that are issued at once and then awaited on all ranks,
and small ones also one after the other, each with its own wait.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Generator
from functools import partial
from typing import NamedTuple

import numpy as np

import disco_client
from disco_bench.bench import WORKERS, Bench, new_cluster, variable
from disco_bench.child import BENCHMARKS, Child, ChildFailed, peer_python, with_path
from disco_bench.dtensor_cases import CASES, NOTHING, Case, expected, inputs, result_of
from disco_bench.sampling import Pair, alternate, median_of
from disco_bench.table import Limit, Spec, Unavailable
from disco_client.distributed import DTensor

__all__ = ["DTENSOR", "TORCH", "measure_dtensor"]

TORCH = "torch", "bench-torch"
"""Names the yardstick, as `peer_python` takes it."""
_START_S, _ROUND_S = 120.0, 120.0
_ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
_SMALL, _LARGE = 64 << 10, 16 << 20
_SIZES = {_SMALL: "64 KiB", _LARGE: "16 MiB"}
_PEER = "torch DTensor, gloo"


class _Row(NamedTuple):
    """What is measured for one row.

    Attributes:
        case: What is done.
        nbytes: Of each operand.
        verb: "many" or "one", as for torch's ranks.
        remote: Whether through a controller and daemons.
    """

    case: Case
    nbytes: int
    verb: str = "many"
    remote: bool = False

    @property
    def key(self) -> str:
        """The name of the row."""
        size = _SIZES[self.nbytes].replace(" ", "").lower()
        far = "remote." if self.remote else ""
        return f"dtensor.{far}{self.case.name}_{size}" + ("_one" if self.verb == "one" else "")

    @property
    def spec(self) -> Spec:
        """The row before it is measured."""
        how = ", one and its wait" if self.verb == "one" else ""
        far = ", 2 daemons" if self.remote else ""
        what = f"{self.case.what}, {_SIZES[self.nbytes]}{far}{how}"
        return Spec(self.key, what, "s", _PEER, self._limit())

    def _limit(self) -> Limit | None:
        # One at a time, and through daemons, most of the time is the wait, not the tensors.
        if self.remote or self.verb == "one":
            return None
        return _AIMS.get(self.case.name, Limit("ratio", must=1.0, aim=0.5))

    def effort(self) -> tuple[int, int]:
        """How many rounds, and operations in each."""
        if self.nbytes < _LARGE:
            return 15, 20 if self.verb == "one" else 100
        return (7, 2) if len(self.case.operands) > 1 else (11, 4)


_PRODUCT = Limit("ratio", must=1.1, aim=1.0)  # of two libraries' arithmetic, for the most part
_AIMS = {
    "matmul": _PRODUCT,
    "matmul_2x2": _PRODUCT,
    "s_to_s": Limit("ratio", must=0.8, aim=0.4),  # a fourth of the bytes
}
_TENSORS = tuple(case for case in CASES.values() if case is not NOTHING)
_ROWS = (
    *(_Row(case, _SMALL) for case in _TENSORS),
    *(_Row(case, _SMALL, "one") for case in _TENSORS),
    *(_Row(case, _LARGE) for case in _TENSORS),
    *(_Row(CASES[name], _SMALL, remote=True) for name in ("matmul", "s_to_s")),
)
_WAIT = Spec("dtensor.wait", f"waiting for all {WORKERS} workers", "s", "gloo's barrier")
DTENSOR = (_WAIT, *(row.spec for row in _ROWS))


def measure_dtensor(bench: Bench) -> None:
    """Compares each product and each redistribution with torch's.

    Raises:
        Unavailable: There is no torch to compare with, or it failed.
    """
    try:
        with torch_peer() as peer:
            _measure(bench, peer)
    except ChildFailed as error:
        raise Unavailable(" ".join(str(error).split())) from None


def _measure(bench: Bench, peer: Child) -> None:
    with contextlib.ExitStack() as stack:
        for name, value in _ONE_THREAD.items():
            stack.enter_context(variable(name, value))
        near = stack.enter_context(disco_client.ProcessSession(WORKERS))
        far = stack.enter_context(bench.session(cluster=stack.enter_context(new_cluster())))
        waits = bench.pick((15, 20), (1, 2))
        bench.record(_WAIT.key, _pair(near, peer, _Row(NOTHING, 0, "one"), *waits).measured())
        for row in _ROWS:
            _ask(peer, f"check {row.case.name} {row.nbytes}")
            effort = bench.pick(row.effort(), (1, 2))
            bench.record(row.key, _pair(far if row.remote else near, peer, row, *effort).measured())


def _pair(session: disco_client.Session, peer: Child, row: _Row, rounds: int, count: int) -> Pair:
    action = _action(session, row.case, row.nbytes)
    _check(action, row.case, row.nbytes)
    question = f"{row.verb} {row.case.name} {row.nbytes} {count}"
    return alternate(
        partial(_many if row.verb == "many" else _one, session, action, count),
        lambda: float(_ask(peer, question)),
        rounds,
    )


def _ask(peer: Child, question: str) -> str:
    return peer.ask(question, _ROUND_S)


@contextlib.contextmanager
def torch_peer() -> Generator[Child]:
    """Starts the ranks of torch.

    Raises:
        Unavailable: There is no torch.
        ChildFailed: They did not start in time.
    """
    environ = {**with_path(BENCHMARKS), **_ONE_THREAD}
    arguments = ["-m", "disco_bench.torch_peer", str(WORKERS)]
    with Child(arguments, environ, python=peer_python(*TORCH)) as child:
        child.read_line(_START_S)
        yield child


def _action(session: disco_client.Session, case: Case, nbytes: int) -> Callable[[], object]:
    mesh = session.mesh(case.mesh)
    pairs = zip(inputs(case, nbytes), case.operands, strict=True)
    operands = [session.distribute(array, mesh, text) for array, text in pairs]
    return result_of(operands, (lambda x: x.redistribute(case.after)) if case.after else None)


def _check(action: Callable[[], object], case: Case, nbytes: int) -> None:
    """A fast wrong result would be no achievement."""
    result = action()
    if not isinstance(result, DTensor):
        return
    assert not case.after or str(result.placement) == case.after, result.placement
    assert np.array_equal(result.numpy(), expected(case, nbytes)), case


def _many(session: disco_client.Session, action: Callable[[], object], count: int) -> float:
    started = time.perf_counter()
    for _ in range(count):
        _result = action()
    session.sync_all()
    return (time.perf_counter() - started) / count


def _one(session: disco_client.Session, action: Callable[[], object], count: int) -> float:
    def once() -> None:
        _result = action()
        session.sync_all()

    return median_of(once, count)
