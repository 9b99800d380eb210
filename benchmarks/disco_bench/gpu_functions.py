"""What the workers of a session do for the benchmarks of GPUs; each of them imports this."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any

import numpy as np

import disco_server
from disco_server.collectives.types import ReduceOp

__all__ = ["add", "matmul", "numbers", "time_collective"]

_raw: dict[str, Any] = {}
"""The communicator for raw calls, by session."""


@disco_server.register_func("bench.gpu_numbers")
def numbers(shape: Sequence[int], dtype: str) -> Any:
    """An array of the worker's device, of numbers between 0 and 1."""
    host = np.random.default_rng(1).random(tuple(shape), np.float32).astype(dtype)
    return disco_server.current_worker().xp.asarray(host)


@disco_server.register_func("bench.gpu_add")
def add(first: Any, second: Any, out: Any) -> None:
    """Adds two arrays into a third."""
    disco_server.current_worker().xp.add(first, second, out)


@disco_server.register_func("bench.gpu_matmul")
def matmul(first: Any, second: Any, out: Any) -> None:
    """Multiplies two matrices into a third."""
    disco_server.current_worker().xp.matmul(first, second, out=out)


@disco_server.register_func("bench.gpu_time_collective")
def time_collective(operation: str, nbytes: int, rounds: int, calls: int) -> list[list[float]]:
    """Times a collective of Disco and the raw one alternately on the same arrays.

    Args:
        operation: ``"allreduce"`` or ``"allgather"``.
        nbytes: Bytes that each rank holds afterwards.
        rounds: How many rounds count; two more come first.
        calls: Calls of each kind in a round, enqueued one after the other.

    Returns:
        For each round the mean seconds of a call of Disco and of a raw call until the
        GPU is done with all of them, as this rank sees them.
    """
    worker = disco_server.current_worker()
    raw, binding = _open_raw(worker), import_module("cupy.cuda.nccl")
    xp = worker.xp
    count = nbytes // 4
    each = count // worker.num_workers if operation == "allgather" else count
    src = xp.full(each, worker.worker_id + 1, np.float32)
    dst = xp.zeros(count, np.float32)
    pointers, kind = (src.data.ptr, dst.data.ptr), binding.NCCL_FLOAT32
    stream = xp.cuda.get_current_stream().ptr
    kinds: tuple[Callable[[], object], Callable[[], object]]
    # Not by worker.allreduce, which skips the reduction for a lone worker.
    if operation == "allreduce":
        kinds = (
            lambda: worker.world.allreduce(src, dst, ReduceOp.SUM),
            lambda: raw.allReduce(*pointers, each, kind, binding.NCCL_SUM, stream),
        )
    else:
        kinds = (
            lambda: worker.world.allgather(src, dst),
            lambda: raw.allGather(*pointers, each, kind, stream),
        )
    figures: list[list[float]] = []
    for turn in range(-2, rounds):
        figure = [0.0, 0.0]
        for index in (0, 1) if turn % 2 else (1, 0):
            figure[index] = _time_calls(worker, kinds[index], calls)
            _check(operation, dst, worker.num_workers)
        if turn >= 0:
            figures.append(figure)
    return figures


def _open_raw(worker: disco_server.Worker) -> Any:
    """A communicator of all workers that Disco knows nothing of."""
    if worker.session_name not in _raw:
        binding: Any = import_module("cupy.cuda.nccl")
        mine = np.zeros(128, np.uint8)
        if worker.worker_id == 0:
            mine[:] = np.frombuffer(binding.get_unique_id(), np.uint8)
        unique = worker.allgather(mine, in_group=False)[0].tobytes()
        _raw[worker.session_name] = binding.NcclCommunicator(
            worker.num_workers, unique, worker.worker_id
        )
    return _raw[worker.session_name]


def _time_calls(worker: disco_server.Worker, call: Callable[[], object], calls: int) -> float:
    worker.settle()
    worker.barrier()
    started = time.perf_counter()
    for _ in range(calls):
        call()
    worker.settle()
    return (time.perf_counter() - started) / calls


def _check(operation: str, dst: Any, size: int) -> None:
    """A fast wrong result would be no achievement."""
    total = size * (size + 1) / 2
    expected = [total, total] if operation == "allreduce" else [1.0, float(size)]
    assert [float(dst[0]), float(dst[-1])] == expected, (dst[0], dst[-1], expected)
    dst.fill(0)
