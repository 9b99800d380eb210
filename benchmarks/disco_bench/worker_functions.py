"""What the workers of a session do for the benchmarks; each of them imports this."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import disco_server
from disco_bench.array_cases import jacobi_step

__all__ = [
    "noop",
    "print_for",
    "raw_allreduces",
    "read_array",
    "sleep_on",
    "spin_for",
    "time_collective",
]


disco_server.register_func("bench.jacobi_step")(jacobi_step)


@disco_server.register_func("bench.bytes_read")
def bytes_read() -> int:
    """How many bytes this process has read so far, by the kernel's count."""
    return int(Path("/proc/self/io").read_text().split()[1])


@disco_server.register_func("bench.endless")
def endless() -> None:
    """Counts until it is interrupted."""
    number = 0
    while True:
        number += 1


@disco_server.register_func("bench.noop")
def noop(_first: object, _second: object, _third: object) -> None:
    """Takes three arguments and does nothing."""


@disco_server.register_func("bench.print_for")
def print_for(seconds: float) -> None:
    """Prints short lines for a while, as fast as it can."""
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        print("x")


@disco_server.register_func("bench.spin_for")
def spin_for(seconds: float) -> None:
    """Does something else for a while."""
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        pass


@disco_server.register_func("bench.sleep_on")
def sleep_on(worker: int, seconds: float) -> None:
    """Keeps one worker waiting for a while."""
    if disco_server.current_worker().worker_id == worker:
        time.sleep(seconds)


@disco_server.register_func("bench.time_collective")
def time_collective(operation: str, nbytes: int, rounds: int, calls: int) -> list[list[float]]:
    """Times a collective of Disco and the raw one of mpi4py alternately on the same arrays.

    Args:
        operation: ``"allreduce"`` or ``"allgather"``.
        nbytes: Bytes that each rank holds afterwards.
        rounds: How many rounds count; two more come first.
        calls: Calls of each kind in a round.

    Returns:
        For each round the mean seconds of a call of Disco and of a raw call, as
        this rank sees them.
    """
    worker = disco_server.current_worker()
    worker.barrier()  # starts MPI
    from mpi4py import MPI

    comm = MPI.COMM_WORLD
    elements = nbytes // 4
    shares = comm.size if operation == "allgather" else 1
    src = np.full(elements // shares, comm.rank + 1, np.float32)
    dst = np.zeros(elements, np.float32)
    kinds: tuple[Callable[[], object], Callable[[], object]]
    if operation == "allreduce":
        kinds = (lambda: worker.allreduce(src, dst), lambda: comm.Allreduce(src, dst))
    else:
        kinds = (lambda: worker.allgather(src, dst), lambda: comm.Allgather(src, dst))
    figures: list[list[float]] = []
    for turn in range(-2, rounds):
        figure = [0.0, 0.0]
        for index in (0, 1) if turn % 2 else (1, 0):
            figure[index] = _time_calls(kinds[index], calls, comm.Barrier)
            _check(operation, dst, comm.size)
        if turn >= 0:
            figures.append(figure)
    return figures


@disco_server.register_func("bench.raw_allreduces")
def raw_allreduces(nbytes: int, calls: int, rounds: int) -> float:
    """Returns how many seconds some of mpi4py's allreduces in place take, one after another."""
    disco_server.current_worker().barrier()  # starts MPI
    from mpi4py import MPI

    comm = MPI.COMM_WORLD
    data = np.zeros(nbytes // 4, np.float32)
    return calls * _time_calls(
        lambda: comm.Allreduce(MPI.IN_PLACE, data), calls * rounds, comm.Barrier
    )


@disco_server.register_func("bench.read_array")
def read_array(nbytes: int) -> float:
    """Returns how many seconds one thread takes at best to read an array from memory."""
    array = np.ones(nbytes // 4, np.float32)
    # A product with itself, which reads as fast as anything that numpy has.
    return min(_time_calls(lambda: array @ array, 1, lambda: None) for _ in range(5))


def _time_calls(call: Callable[[], object], calls: int, barrier: Callable[[], object]) -> float:
    barrier()
    started = time.perf_counter()
    for _ in range(calls):
        call()
    return (time.perf_counter() - started) / calls


def _check(operation: str, dst: np.ndarray[Any, Any], size: int) -> None:
    """A fast wrong result would be no achievement."""
    total = size * (size + 1) / 2
    expected = [total, total] if operation == "allreduce" else [1.0, float(size)]
    assert [float(dst[0]), float(dst[-1])] == expected, (dst[0], dst[-1], expected)
    dst[:] = 0
