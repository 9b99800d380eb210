"""Heat's arrays on the ranks of mpiexec, as the section ``arrays`` asks for them; see `array_peer`.

Rank 0 reads lines, and all ranks do what they say. The slowest rank counts.
"""

from __future__ import annotations

import importlib
import sys
import time
import types
from collections.abc import Callable
from typing import Any

import numpy as np

from disco_bench.array_cases import ArrayKit, action_of, jacobi_step, make_data
from disco_bench.array_peer import answer, own_output

__all__ = ["main"]

_PAUSE_S = 0.001
"""Between two looks for what to do."""


class _Absent(types.ModuleType):
    """Stands for a library that is not there, of which only names are asked for."""

    def __getattr__(self, name: str) -> object:
        if name.startswith("__"):
            raise AttributeError(name)
        return sys.modules.get(f"{self.__name__}.{name}", object)


def _import_heat() -> Any:
    """Heat without torchvision, which it imports for its data sets alone."""
    for name in ("torchvision.transforms", "torchvision.datasets", "torchvision"):
        sys.modules.setdefault(name, _Absent(name))
    return importlib.import_module("heat")


torch: Any = importlib.import_module("torch")
heat: Any = _import_heat()
MPI: Any = importlib.import_module("mpi4py.MPI")


def _sweep(array: Any) -> Any:
    """With the halos that neighbours send."""
    array.get_halo(1)
    rank, size = array.comm.rank, array.comm.size
    padded = jacobi_step(array.array_with_halos)
    inner = padded[1 if rank else 0 : -1 if rank < size - 1 else None]
    return heat.DNDarray(
        inner, array.shape, array.dtype, array.split, array.device, array.comm, array.balanced
    )


def _everywhere(result: Any) -> Any:
    return result if result.split is None else heat.resplit(result, None)


def _resplit(array: Any) -> Any:
    return heat.resplit(array, 1)


def _normals(shape: tuple[int, int]) -> Any:
    return heat.random.randn(*shape, dtype=heat.float64, split=0)


def _histogram(array: Any, bins: int) -> Any:
    return heat.histc(array, bins=bins, min=0, max=1)


class _HeatPeer:
    """See `array_peer.ArrayPeer`."""

    def __init__(self, rows: int) -> None:
        torch.set_num_threads(1)
        self.data = make_data(rows)
        self._comm = MPI.COMM_WORLD
        x, left, right = (heat.array(each, split=0) for each in self.data)
        self._kit = ArrayKit(
            heat,
            x,
            left,
            right,
            heat.float64,
            _everywhere,
            _resplit,
            _sweep,
            _normals,
            _histogram,
        )

    def action(self, name: str) -> Callable[[], Any]:
        return action_of(name, self._kit)

    def fetch(self, result: Any) -> np.ndarray[Any, Any]:
        return result.numpy()

    def seconds(self, action: Callable[[], Any], count: int) -> float:
        self._comm.Barrier()
        started = time.perf_counter()
        for _ in range(count):
            _result = action()
        self._comm.Barrier()
        return self._comm.allreduce(time.perf_counter() - started, op=MPI.MAX)


def _told(comm: Any, line: str | None) -> str:
    """The line that rank 0 read, without a loop in MPI that keeps a core from the others' turn."""
    if comm.rank == 0:
        for rank in range(1, comm.size):
            comm.send(line, rank)
        return line or ""
    while not comm.iprobe(source=0):
        time.sleep(_PAUSE_S)
    return comm.recv(source=0)


def main() -> None:
    """Serves measurements until standard input ends."""
    out = own_output()
    peer = _HeatPeer(int(sys.argv[1]))
    comm = MPI.COMM_WORLD
    first = comm.rank == 0
    if first:
        print("ready", file=out, flush=True)
    with out:
        while line := _told(comm, sys.stdin.readline() if first else None):
            found = answer(peer, line)
            if first:
                print(found, file=out, flush=True)


if __name__ == "__main__":
    main()
