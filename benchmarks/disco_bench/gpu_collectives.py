"""Collectives of arrays on GPUs, beside the same library's calls in the same processes."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from disco_bench.collectives import slowest
from disco_bench.gpu import Gpus, gpu_session
from disco_bench.table import Limit, Measured, Spec, Unavailable, describe_figure

if TYPE_CHECKING:
    from disco_bench.bench import Bench

__all__ = ["ALONE", "TOGETHER", "measure_alone", "measure_together"]

_KIB, _MIB = 1 << 10, 1 << 20
_SIZES = (4 * _KIB, 64 * _KIB, _MIB, 16 * _MIB, 64 * _MIB)


def _spec(section: str, operation: str, nbytes: int, ranks: str) -> Spec:
    size = f"{nbytes // _MIB} MiB" if nbytes >= _MIB else f"{nbytes // _KIB} KiB"
    limit = Limit("ratio", must=1.10, aim=1.02) if nbytes >= _MIB else None
    if nbytes == 4 * _KIB:
        limit = Limit("excess", must=40e-6, aim=10e-6)
    return Spec(
        f"{section}.{operation}_{size.replace(' ', '').lower()}",
        f"{operation}, {size}, {ranks}",
        "s",
        "the library's own call",
        limit,
    )


_ALONE = [
    ("allreduce", nbytes, _spec("alone", "allreduce", nbytes, "one rank")) for nbytes in _SIZES
]
_TOGETHER = [
    (operation, nbytes, _spec("together", operation, nbytes, "all GPUs"))
    for operation in ("allreduce", "allgather")
    for nbytes in _SIZES
]
ALONE = tuple(spec for _, _, spec in _ALONE)
TOGETHER = tuple(spec for _, _, spec in _TOGETHER)


def measure_alone(gpus: Gpus, bench: Bench) -> None:
    """Compares an allreduce of one rank with NCCL's, which is a copy then."""
    _measure(gpus, bench, 1, _ALONE)


def measure_together(gpus: Gpus, bench: Bench) -> None:
    """Compares collectives over all GPUs with NCCL's.

    Raises:
        Unavailable: There is one GPU only.
    """
    if gpus.number < 2:  # noqa: PLR2004  (a pair)
        msg = "several ranks need several GPUs, of which there is one here"
        raise Unavailable(msg)
    _measure(gpus, bench, gpus.number, _TOGETHER)


def _measure(gpus: Gpus, bench: Bench, workers: int, plan: list[tuple[str, int, Spec]]) -> None:
    with gpu_session(gpus, workers) as session:
        timer = session.get_global_func("bench.gpu_time_collective")
        for operation, full, spec in plan:
            # Many at a time, as a model has them: one alone would show the wait for the GPU.
            rounds, calls = bench.pick((20, 50 if full < 16 * _MIB else 10), (2, 2))
            nbytes = bench.pick(full, 4 * _KIB) // workers * workers
            result = timer(operation, nbytes, rounds, calls)
            ranks = [result.debug_get_from_remote(worker) for worker in range(workers)]
            found = slowest(ranks).measured()
            bandwidths = _bandwidths(operation, nbytes, workers, found)
            note = f"{workers} ranks; {calls} calls enqueued and then awaited; {bandwidths}"
            bench.record(spec.key, replace(found, note=note))


def _bandwidths(operation: str, nbytes: int, ranks: int, found: Measured) -> str:
    """Disco's bandwidth and the yardstick's, as nccl-tests computes and calls them.

    That of the bus is what each GPU sends and receives in any case, so that it does not depend
    on how many there are; of one GPU nothing goes over a bus.
    """
    kind = "bus" if ranks > 1 else "algorithm"
    passes = 2 if operation == "allreduce" else 1
    share = passes * (ranks - 1) / ranks if ranks > 1 else 1.0
    ours, raw = (
        describe_figure(nbytes * share / seconds, "B/s") if seconds else "none"
        for seconds in (found.figure, found.yardstick)
    )
    return f"{kind} bandwidth {ours}, by the library's own call {raw}"
