"""One rank of the stand-in's NCCL, as a process of its own.

Arguments: the rank, the size, the file by which rank 0 hands on the unique id, and what to
do: a function of this file. Prints what that returns, as JSON.
"""

from __future__ import annotations

import faulthandler
import json
import os
import sys
import threading
import time
from pathlib import Path

import cupy as cp  # pyright: ignore[reportMissingImports]
import numpy as np
from cupy.cuda import nccl  # pyright: ignore[reportMissingImports]


def unique_id(rank: int, file: Path) -> bytes:
    """Made by rank 0, read by the others."""
    if rank == 0:
        made = nccl.get_unique_id()
        part = file.with_suffix(".part")
        part.write_bytes(made)
        part.rename(file)
    while not file.exists():
        time.sleep(0.01)
    return file.read_bytes()


def communicator(rank: int, size: int, file: Path) -> object:
    """A communicator on the device that is current."""
    return nccl.NcclCommunicator(size, unique_id(rank, file), rank)


def total(comm: object, value: int) -> int:
    """The sum of a number over all ranks."""
    array = cp.full(1000, value, np.int64)
    comm.allReduce(array.data.ptr, array.data.ptr, 1000, 4, 0, 0)
    assert (array == array[0]).all()
    return array[0].item()


def sums(rank: int, size: int, file: Path) -> object:
    """Several collectives, and one among every other rank."""
    comm = communicator(rank, size, file)
    found = [total(comm, rank + turn) for turn in range(3)]
    part = comm.commSplit(rank % 2, rank)
    found.append(total(part, rank))
    part.destroy()
    comm.destroy()
    return found


def with_threads(rank: int, size: int, file: Path) -> object:
    """Two ranks in each process, as threads."""
    made = unique_id(rank, file)
    found = {}

    def one(index: int) -> None:
        cp.cuda.Device(index % 4).use()
        comm = nccl.NcclCommunicator(2 * size, made, index)
        found[index] = total(comm, index)
        comm.destroy()

    threads = [threading.Thread(target=one, args=(2 * rank + i,)) for i in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return [found[2 * rank], found[2 * rank + 1]]


def construction(rank: int, size: int, file: Path) -> object:
    """How the construction fails."""
    try:
        comm = communicator(rank, size, file)
    except nccl.NcclError as error:
        return [error.status, str(error)]
    return [0, str(comm.size())]


def watched(rank: int, size: int, file: Path) -> object:
    """Collectives, watched as a program should: what was got, and how it ended."""
    comm = communicator(rank, size, file)
    found = []
    stream = cp.cuda.Stream(non_blocking=True)
    event = cp.cuda.Event(disable_timing=True)
    array = cp.ones(1, np.int64)
    for _ in range(4):
        ends = time.monotonic() + 3
        try:
            comm.allReduce(array.data.ptr, array.data.ptr, 1, 4, 0, stream.ptr)
            event.record(stream)
            while not event.done:
                comm.check_async_error()
                assert time.monotonic() < ends
                time.sleep(0.005)
        except (nccl.NcclError, AssertionError) as error:
            comm.abort()
            stream.synchronize()
            return [*found, f"error {getattr(error, 'status', 'timeout')}"]
        found.append(array.get().item())
    comm.destroy()
    return found


if __name__ == "__main__":
    faulthandler.dump_traceback_later(25, exit=True)
    _rank, _size = int(sys.argv[1]), int(sys.argv[2])
    if "STANDIN_DEVICE" in os.environ:
        cp.cuda.Device(int(os.environ["STANDIN_DEVICE"])).use()
    sys.stdout.write(json.dumps(globals()[sys.argv[4]](_rank, _size, Path(sys.argv[3]))))
