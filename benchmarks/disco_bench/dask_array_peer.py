"""dask.array on processes of this machine, for the section ``arrays``; see `array_peer`."""

from __future__ import annotations

import functools
import importlib
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from disco_bench.array_cases import ArrayKit, action_of, jacobi_step, make_data
from disco_bench.array_peer import own_output, serve

__all__ = ["main"]

da: Any = importlib.import_module("dask.array")
distributed: Any = importlib.import_module("distributed")


def _sweep(array: Any) -> Any:
    return da.map_overlap(
        jacobi_step, array, depth={0: 1, 1: 0}, boundary="none", dtype=array.dtype
    )


def _as_it_is(result: Any) -> Any:
    return result


def _resplit(workers: int, array: Any) -> Any:
    return array.rechunk((array.shape[0], -(-array.shape[1] // workers)))


def _normals(workers: int, shape: tuple[int, int]) -> Any:
    chunks = -(-shape[0] // workers), shape[1]
    return da.random.default_rng(0).standard_normal(size=shape, chunks=chunks)


def _histogram(array: Any, bins: int) -> Any:
    return da.histogram(array, bins, (0, 1))[0]


class _DaskArrayPeer:
    """See `array_peer.ArrayPeer`."""

    def __init__(self, rows: int, workers: int) -> None:
        self.data = make_data(rows)
        x, left, right = (
            da.from_array(each, chunks=(-(-each.shape[0] // workers), each.shape[1])).persist()
            for each in self.data
        )
        distributed.wait([x, left, right])
        self._kit = ArrayKit(
            da,
            x,
            left,
            right,
            np.float64,
            _as_it_is,
            functools.partial(_resplit, workers),
            _sweep,
            functools.partial(_normals, workers),
            _histogram,
        )

    def action(self, name: str) -> Callable[[], Any]:
        return action_of(name, self._kit)

    def fetch(self, result: Any) -> np.ndarray[Any, Any]:
        return np.asarray(result.compute())

    def seconds(self, action: Callable[[], Any], count: int) -> float:
        started = time.perf_counter()
        for _ in range(count):
            distributed.wait(action().persist())
        return time.perf_counter() - started


def main() -> None:
    """Serves measurements until standard input ends."""
    out = own_output()
    rows, workers = map(int, sys.argv[1:])
    with (
        distributed.LocalCluster(
            n_workers=workers,
            threads_per_worker=1,
            host="127.0.0.1",
            dashboard_address=None,
            worker_dashboard_address=None,
        ) as cluster,
        distributed.Client(cluster),
    ):
        serve(_DaskArrayPeer(rows, workers), out)


if __name__ == "__main__":
    main()
