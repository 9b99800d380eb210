"""What single parts of the MPI communicator do on one rank; see `scenarios.py`."""

from __future__ import annotations

from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
from scenarios import Place, differ, known, make, reduce_by_hand

from disco_server.collectives.mpi import MpiBackend
from disco_server.collectives.mpi_library import Pieces
from disco_server.collectives.node_memory import NodeMemory
from disco_server.collectives.types import ReduceOp, Tag
from disco_server.collectives.validation import find_kind


def backend_knows(dtype: np.dtype, op: ReduceOp) -> bool:
    """Averages of integers are made of sums, before a backend is called."""
    return known(dtype, op) and not (op is ReduceOp.AVG and dtype.kind in "iu")


def in_pieces(place: Place) -> list[str]:
    """Allreduce in pieces, the last one short, in place and apart, averages included."""
    comm, wrong = place.flat, []
    data = comm._mpi.COMM_WORLD.Dup()
    cut = MpiBackend(comm._mpi, data, Pieces(5000, 4096))
    for dtype in (np.dtype(np.int16), np.dtype(np.float32), np.dtype(bool)):
        for op in (ReduceOp.SUM, ReduceOp.AVG, ReduceOp.MAX):
            kind = find_kind(dtype)
            if not backend_knows(dtype, op):
                continue
            for size in (4096 // dtype.itemsize, 10_001):
                want = reduce_by_hand([make(each, size, dtype) for each in range(4)], op)
                src = make(place.rank, size, dtype)
                dst = np.empty_like(src)
                cut.allreduce(src, dst, op, kind.family)
                wrong += differ(f"{dtype} {op.name} {size}", dst, want)
                cut.allreduce(src, src[:], op, kind.family)
                wrong += differ(f"in place {dtype} {op.name} {size}", src, want)
    data.Free()
    return wrong


def in_rounds(place: Place) -> list[str]:
    """Allreduce of data that rides in several rounds, apart, in place and overlapping."""
    wrong: list[str] = []
    for dtype, op in ((np.dtype(np.float32), ReduceOp.AVG), (np.dtype(np.int16), ReduceOp.MAX)):
        for size, shift in ((600_001, None), (600_001, 0), (1_100_000, 7)):
            for group, members in place.ways():
                place.step()
                want = reduce_by_hand([make(each, size, dtype) for each in members], op)
                whole = np.zeros(size + (shift or 0), dtype)
                src = whole[:size]
                src[:] = make(place.rank, size, dtype)
                dst = np.empty(size, dtype) if shift is None else whole[shift:] if shift else src
                group.allreduce(src, dst, op)
                wrong += differ(f"{dtype} {op.name} {size} {shift}", dst, want)
    return wrong


def gather_rounds(place: Place) -> list[str]:
    """Allgather of parts that ride in several rounds, and of one that is too large for that."""
    wrong: list[str] = []
    world, mine, dtype = place.flat.world, place.rank, np.dtype(np.int32)
    exchange = world.exchange
    asked: list[int] = []
    put = exchange.put
    exchange.put = lambda found, data: (asked.append(data.size), put(found, data))[1]
    for size, count in ((262_145, 2), (600_001, 3), (1_048_576, 4), (1_048_577, 0)):
        data = make(mine, size, dtype)
        want = np.concatenate([make(each, size, dtype) for each in range(4)])
        whole = np.zeros(4 * size + 7, dtype)
        for name, src, dst in (
            ("apart", data, whole[: 4 * size]),
            ("in its place", whole[: 4 * size].reshape(4, -1)[mine], whole[: 4 * size]),
            ("elsewhere in it", whole[7 : 7 + size], whole[: 4 * size]),
            ("with gaps", np.repeat(data, 2)[::2], np.zeros(8 * size, dtype)[::2]),
        ):
            src[:] = data
            asked.clear()
            place.step()
            world.allgather(src, dst)
            wrong += differ(f"{name} {size}", dst, want)
            if len(asked) != count or sum(asked) not in (0, size):
                wrong.append(f"{name} {size}: rode in pieces of {asked}")
    return wrong


def of_one_rank(place: Place) -> list[str]:
    """Broadcasts and transfers, which go with the header of the rank that has the data, or not."""
    groups, mine, wrong = place.flat, place.rank, list[str]()
    world, pair = groups.world, groups._pairs[mine ^ 1].exchange
    asked: list[int] = []
    for exchange in (world.exchange, pair):
        put = exchange.put
        exchange.put = lambda slot, data, put=put: (asked.append(data.size), put(slot, data))
    for size, rides in ((3, 2), (4096, 2), (4097, 1), (16_384, 1), (16_385, 0)):
        for dtype, step in ((np.dtype(np.float32), 1), (np.dtype(np.int32), 2)):
            asked.clear()
            place.step()
            data = np.zeros(step * size, dtype)[::step]
            data[:] = make(mine, size, dtype)
            world.broadcast(data, data, 1)
            wrong += differ(f"broadcast {dtype} {size}", data, make(1, size, dtype))
            into = np.zeros((step * size, 1), dtype)[::step]
            data[:] = make(mine, size, dtype)
            world.broadcast(data if mine == 1 else None, into, 1)
            wrong += differ(f"broadcast apart {dtype} {size}", into[:, 0], make(1, size, dtype))
            if mine % 2:
                world.send(data, mine - 1)
            else:
                world.recv(data, mine + 1)
            wrong += differ(f"transfer {dtype} {size}", data, make(mine | 1, size, dtype))
            # Rank 1 brings two broadcasts and a transfer, rank 3 a transfer.
            count = {1: rides + min(rides, 1), 3: rides // 2}.get(mine, 0)
            if asked != [size] * count:
                wrong.append(f"{dtype} {size}: put {asked}")
    return wrong


def count_open() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def shared_channels(place: Place) -> list[Any]:
    """Every channel of this rank in shared memory: who posted what, and what is left open."""
    comm = place.flat._mpi.COMM_WORLD.Dup()
    before = count_open()
    memory = NodeMemory(place.flat._mpi, comm, 4, 2)
    left_open = count_open() - before
    group = (0, 1) if place.rank < 2 else (2, 3)
    pairs = [(Tag.PAIR, pair) for pair in combinations(range(4), 2) if place.rank in pair]
    channels = [(Tag.WORLD, (0, 1, 2, 3)), (Tag.GROUP, group), *pairs]
    seen: list[Any] = []
    for tag, members in channels:
        exchange = memory.make_exchange(tag, members)
        heads = exchange.meet(bytes([10 * tag + place.rank] * 64))
        seen.append([list(members), list(heads[::64]), exchange.data_bytes > 0])
    strange = memory.make_exchange(Tag.GROUP, (1, 2))
    comm.Free()
    return [seen, strange is None, left_open]


def parts_in_pieces(place: Place) -> list[str]:
    """Uneven parts with hardly an element at once, and many pieces of halves."""
    comm, wrong = place.flat, []
    data = comm._mpi.COMM_WORLD.Dup()
    backend = MpiBackend(comm._mpi, data, Pieces(1 << 20, 1 << 20), most=7)
    counts = [100_000, 0, 9, 70_001]
    starts, total, mine = [0, 100_000, 100_000, 100_009], sum(counts), place.rank
    own = slice(starts[mine], starts[mine] + counts[mine])
    for dtype in (np.dtype(np.float16), np.dtype(bool), np.dtype(np.int32)):
        for op in (ReduceOp.SUM, ReduceOp.AVG):
            kind = find_kind(dtype)
            if not backend_knows(dtype, op):
                continue
            want = reduce_by_hand([make(each, total, dtype) for each in range(4)], op)
            dst = np.empty(counts[mine], dtype)
            src = make(mine, total, dtype)
            backend.reduce_scatter(src, dst, op, kind.family, counts)
            wrong += differ(f"reduce_scatter {dtype} {op.name}", dst, want[own])
    few = [30, 0, 9, 22]
    part, whole = np.full(few[mine], float(mine)), np.empty(sum(few))
    backend.allgather(part, whole, few)
    wrong += differ("allgather", whole, np.repeat(np.arange(4.0), few))
    part[:] = -1
    backend.scatter(whole, part, few, 3)
    wrong += differ("scatter", part, np.full(few[mine], float(mine)))
    data.Free()
    return wrong
