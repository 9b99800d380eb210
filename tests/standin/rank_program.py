"""One rank of the stand-in's NCCL, as a process of its own.

Arguments: the rank, the size, the file by which rank 0 hands on the unique id, and what to
do: a function of this file. Prints what that returns, as JSON, in a line after any that a
library prints.
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


def turned(rank: int, size: int, file: Path) -> object:
    """The order of the ranks in a split that turns it round and leaves out the last but one."""
    comm = communicator(rank, size, file)
    part = comm.commSplit(-1 if rank == size - 2 else 5, -rank)
    found = None if part is None else order(part, rank)
    total(comm, 1)  # so that nobody ends whose hub others still need
    return found


def order(part: object, rank: int) -> object:
    """The ranks of a communicator as gathering has them, and as sending has them."""
    mine, every = cp.full(1, rank, np.int64), cp.full(part.size(), -1, np.int64)
    part.allGather(mine.data.ptr, every.data.ptr, 1, 4, 0)
    swapped = cp.full(part.size(), rank, np.int64)
    nccl.groupStart()
    for peer in range(part.size()):
        if peer != part.rank_id():
            part.send(mine.data.ptr, 1, 4, peer, 0)
            part.recv(swapped.data.ptr + 8 * peer, 1, 4, peer, 0)
    nccl.groupEnd()
    assert swapped.tolist() == every.tolist()
    return [part.rank_id(), part.size(), every.tolist()]


def averages(rank: int, size: int, file: Path) -> object:
    """Averages of integers and floats, sums that end on each rank, and a swap."""
    comm = communicator(rank, size, file)
    whole = cp.asarray(np.array([-3, 3, 4]) * rank)
    comm.allReduce(whole.data.ptr, whole.data.ptr, 3, 4, 4, 0)
    half = cp.full(1, 1 + rank, np.float16)
    comm.reduceScatter(half.data.ptr, half.data.ptr, 0, 6, 4, 0)
    comm.allReduce(half.data.ptr, half.data.ptr, 1, 6, 4, 0)
    parts, own = cp.asarray(np.array([[2, 0], [2, rank]])), cp.zeros(2, np.int64)
    nccl.groupStart()
    for root in range(size):
        to = own.data.ptr if root == rank else 0
        comm.reduce(parts.data.ptr + 16 * root, to, 2, 4, 0, root, 0)
    nccl.groupEnd()
    mine, other = cp.full(1, rank, np.int64), cp.zeros(1, np.int64)
    nccl.groupStart()
    comm.send(mine.data.ptr, 1, 4, 1 - rank, 0)
    comm.recv(other.data.ptr, 1, 4, 1 - rank, 0)
    nccl.groupEnd()
    found = [whole.tolist(), half[0].item(), own.tolist(), other[0].item()]
    comm.destroy()
    return found


def library(rank: int, size: int, file: Path) -> object:
    """Whether the version is of this decade, how long an id is, and which libraries are loaded."""
    made = unique_id(rank, file)
    maps = Path("/proc/self/maps").read_text()
    files = {line.rpartition("/")[2] for line in maps.splitlines()}
    loaded = [each for each in ("libccl.so.1", "libccl.so.2") if each in files]
    return [nccl.get_version() > 2000_00_00, len(made), loaded]


if __name__ == "__main__":
    faulthandler.dump_traceback_later(25, exit=True)
    _rank, _size = int(sys.argv[1]), int(sys.argv[2])
    if "STANDIN_DEVICE" in os.environ:
        cp.cuda.Device(int(os.environ["STANDIN_DEVICE"])).use()
    _found = globals()[sys.argv[4]](_rank, _size, Path(sys.argv[3]))
    sys.stdout.write("\n" + json.dumps(_found))
    if os.environ.get("STANDIN_NCCL_CARRIER") == "oneccl":
        # Its own end waits for a call that was left behind.
        sys.stdout.flush()
        os._exit(0)
