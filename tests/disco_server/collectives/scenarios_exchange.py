"""What exchanges of headers do on one rank, whatever carries them; see `scenarios.py`."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
from scenarios import Place

from disco_server.collectives.header_exchange import NO_DATA, HeaderExchange
from disco_server.collectives.local_exchange import LocalExchange
from disco_server.collectives.mpi_exchange import MpiExchange
from disco_server.collectives.node_memory import NodeMemory
from disco_server.collectives.preflight import HEADER_BYTES
from disco_server.collectives.types import Tag

EVERYONE = (0, 1, 2, 3)


@contextlib.contextmanager
def opened(place: Place, way: str) -> Iterator[HeaderExchange]:
    """A new exchange of all ranks.

    Args:
        place: The rank.
        way: What carries it: ``"threads"``, or between processes ``"memory"`` or ``"messages"``.
    """
    comm: Any = place.flat
    place.step()
    if way == "threads":
        barrier = comm._shared._barrier(f"test {place.seq}", Tag.WORLD, EVERYONE)
        yield LocalExchange(barrier, place.rank)
        return
    channel = comm._mpi.COMM_WORLD.Dup()
    made: HeaderExchange | None
    if way == "memory":
        made = NodeMemory(comm._mpi, channel, 4, 1).make_exchange(Tag.WORLD, EVERYONE)
    else:
        made = MpiExchange(comm._mpi, channel, place.rank, EVERYONE, 5, with_data=True)
    assert made is not None
    yield made
    made.free()
    channel.Free()


def rounds(place: Place, way: str) -> list[Any]:
    """Rounds of one channel by hand: headers, data that rides along, and texts."""
    seen: list[Any] = []
    with opened(place, way) as exchange:
        for size in (0, 1, 33, 1000, 4096):
            header = bytes([place.rank + 1] * HEADER_BYTES)
            found = exchange.find_slot(np.dtype(np.float32), size) if size else None
            if found is not None:
                exchange.put(found, np.full(size, place.rank, np.float32))
            heads = exchange.meet(header + (found.payload if found else NO_DATA))
            data = [float(part.sum()) / size for part in exchange.parts(found)] if found else []
            seen.append([list(heads[::HEADER_BYTES]), len(heads), data])
        place.flat.world.barrier()
        if place.rank == 0:
            # The others have not posted, and will not before this rank has looked.
            exchange.start(bytes(HEADER_BYTES))
            seen.append([exchange.test(), exchange.absent()])
        place.step()
        place.flat.world.barrier()
        if place.rank:
            exchange.start(bytes(HEADER_BYTES))
            seen.append([False, [1, 2, 3]])
        while not exchange.test():
            time.sleep(0)  # lets the others run, which may be threads of this interpreter
        assert exchange.absent() == []
        seen.append(exchange.tell("é" * 400 if place.rank == 1 else f"from {place.rank}"))
    return seen


def long_wait(place: Place, way: str, seconds: float) -> list[float]:
    """The CPU time of a round to which rank 0 comes late, and how long it took."""
    with opened(place, way) as exchange:
        place.flat.world.barrier()
        started, before = time.perf_counter(), time.process_time()
        if place.rank == 0:
            time.sleep(seconds)
        exchange.meet(bytes(HEADER_BYTES))
        cost = time.process_time() - before
        return [cost, time.perf_counter() - started]
