"""Rows between threads."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from disco_server.collectives.header_exchange import LocalChannel, LocalExchange
from disco_server.collectives.preflight import HEADER_BYTES
from disco_server.collectives.types import UnavailableError


def test_rounds_bring_headers_data_and_texts():
    """Each thread sees all headers and the data behind them, in rounds one after the other."""
    channel = LocalChannel(3)

    def run(index: int) -> list[object]:
        exchange = LocalExchange(channel, index)
        slot = exchange.find_slot(np.dtype(np.int64), 2)
        seen: list[object] = []
        for number in range(200):
            exchange.put(slot, np.array([number, index]))
            heads = exchange.meet(bytes([index]) * HEADER_BYTES + slot.payload)
            data = np.concatenate(exchange.parts(slot)).tolist()
            seen.append((list(heads[::HEADER_BYTES]), data))
        seen.append(exchange.tell(f"from {index}"))
        return seen

    with ThreadPoolExecutor(3) as threads:
        answers = list(threads.map(run, range(3)))

    for index, (*rounds, texts) in enumerate(answers):
        assert rounds == [([0, 1, 2], [n, 0, n, 1, n, 2]) for n in range(200)]
        assert texts == [f"from {each}" for each in range(3) if each != index]


def test_a_token_waits_for_nobody():
    """Posting returns at once, and the round is complete when the last has posted."""
    channel = LocalChannel(2)
    first, second = LocalExchange(channel, 0), LocalExchange(channel, 1)

    first.start(bytes(HEADER_BYTES))
    assert not first.test()
    assert first.absent() == [1]

    second.start(bytes(HEADER_BYTES))
    assert first.test()
    assert second.test()
    assert first.absent() == second.absent() == []


def test_a_closed_channel_takes_no_headers():
    """Whoever posts or looks after the end is told so."""
    channel = LocalChannel(2)
    exchange = LocalExchange(channel, 0)
    exchange.start(bytes(HEADER_BYTES))
    channel.close()

    for act in (exchange.test, lambda: exchange.start(bytes(HEADER_BYTES))):
        with pytest.raises(UnavailableError, match="session ended"):
            act()
