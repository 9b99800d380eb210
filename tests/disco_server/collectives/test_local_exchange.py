"""Reductions that ride with headers between threads, and the end of their channel."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from disco_server.collectives.local_exchange import LocalExchange
from disco_server.collectives.preflight import HEADER_BYTES
from disco_server.collectives.thread_barrier import ThreadBarrier
from disco_server.collectives.types import ReduceOp, UnavailableError
from disco_server.collectives.validation import Family


def test_the_last_thread_reduces_for_all():
    """In place or into another array, whoever comes last, also where that one does not wait."""
    channel = ThreadBarrier(3)
    header = bytes([1]) * HEADER_BYTES

    def run(index: int) -> list[list[int]]:
        exchange = LocalExchange(channel, index)
        slot = exchange.find_slot(np.dtype(np.int64), 2)
        seen: list[list[int]] = []
        for number in range(200):
            source = np.array([number, index])
            target = source if (number + index) % 2 else np.zeros(2, np.int64)
            exchange.put_reduction(source, target, ReduceOp.SUM, Family.INTEGER)
            if (number + index) % 3:
                exchange.meet(header + slot.payload)
            else:
                exchange.start(header + slot.payload)
                while not exchange.test():
                    time.sleep(0)  # the interpreter is the others' meanwhile
            assert exchange.headers() == header * 3
            seen.append(target.tolist())
        return seen

    with ThreadPoolExecutor(3) as threads:
        answers = list(threads.map(run, range(3)))

    assert answers == [[[3 * number, 3] for number in range(200)]] * 3


def test_ranks_that_differ_keep_their_arrays():
    """Where one brings something else, nothing is reduced, and all see who it was."""
    channel = ThreadBarrier(2)

    def run(index: int) -> tuple[bytes, list[int]]:
        exchange = LocalExchange(channel, index)
        slot = exchange.find_slot(np.dtype(np.int64), 1)
        source, target = np.array([7]), np.array([index])
        exchange.put_reduction(source, target, ReduceOp.SUM, Family.INTEGER)
        return exchange.meet(bytes([index]) * HEADER_BYTES + slot.payload), target.tolist()

    with ThreadPoolExecutor(2) as threads:
        answers = list(threads.map(run, range(2)))

    headers = bytes([0]) * HEADER_BYTES + bytes([1]) * HEADER_BYTES
    assert answers == [(headers, [0]), (headers, [1])]


def test_a_closed_channel_takes_no_headers():
    """Whoever posts or looks after the end is told so."""
    channel = ThreadBarrier(2)
    exchange = LocalExchange(channel, 0)
    exchange.start(bytes(HEADER_BYTES))
    channel.close()

    for act in (exchange.test, lambda: exchange.start(bytes(HEADER_BYTES))):
        with pytest.raises(UnavailableError, match="session ended"):
            act()
