"""Rows, data and texts through memory that four real ranks share."""

from __future__ import annotations

import itertools

import pytest

from disco_server.collectives.header_exchange import naps
from disco_server.collectives.shared_exchange import SharedMemoryExchange, channel_bytes


def test_rounds_bring_headers_data_and_texts(ranks):
    """Every rank sees all headers and the data behind them, of every length."""
    for rank, seen in enumerate(ranks.run("rounds", shared=True)):
        plain, *with_data, early, texts = seen
        assert plain == [[1, 2, 3, 4], 256, []]
        assert with_data == [[[1, 2, 3, 4], 256, [0, 1, 2, 3]]] * 4
        # The first rank sees at once who has not posted.
        assert early == [False, [1, 2, 3]]
        # Texts are cut at 600 bytes, between characters.
        everyone = ["from 0", "é" * 300, "from 2", "from 3"]
        assert texts == [text for each, text in enumerate(everyone) if each != rank]


@pytest.mark.parametrize("shared", [True, False], ids=["memory", "messages"])
def test_a_long_wait_costs_little(ranks, shared):
    """Ranks whose peer is busy for seconds sleep nearly all the while."""
    for cost, took in ranks.run("long_wait", shared=shared, seconds=2.0):
        assert took > 1.5
        assert cost < took / 3


def test_a_nap_is_short_beside_the_wait_before_it():
    """A rank that waits is late by at most a hundredth of the wait, and by ten milliseconds."""
    waited = 0.0
    for nap in itertools.islice(naps(), 5000):
        assert nap <= 100e-6 + waited / 100
        assert nap <= 10e-3
        waited += nap
    assert nap > 1e-3


def test_large_reductions_go_in_several_rounds(ranks):
    """What is too large for one round is reduced in a few, wherever it lies."""
    assert ranks.run("in_rounds") == [[]] * 4


def test_large_parts_are_gathered_in_several_rounds(ranks):
    """Whether they lie apart, in their place, elsewhere in the whole or with gaps."""
    assert ranks.run("gather_rounds") == [[]] * 4


def test_how_much_goes_in_rounds_depends_on_the_ranks():
    """Few ranks reduce anything in rounds; many reduce and gather what is some rounds long."""
    few, many = (
        SharedMemoryExchange(memoryview(bytearray(channel_bytes(members, 4096))), 0, members, 4096)
        for members in (2, 8)
    )
    assert few.most_bytes > 1 << 32
    assert many.most_bytes == many.most_gathered == 4 * many.data_bytes
    assert few.most_gathered == few.data_bytes
