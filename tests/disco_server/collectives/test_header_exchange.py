"""What every exchange of headers does: through shared memory, messages of MPI, or threads."""

from __future__ import annotations

import itertools

from disco_server.collectives.header_exchange import TEXT_BYTES, cut_text, fit_text, naps, read_text


def test_rounds_bring_headers_data_and_texts(exchanging):
    """Every rank sees all headers and the data behind them, of every length."""
    for rank, seen in enumerate(exchanging("rounds")):
        plain, *with_data, early, texts = seen
        assert plain == [[1, 2, 3, 4], 256, []]
        assert with_data == [[[1, 2, 3, 4], 256, [0, 1, 2, 3]]] * 4
        # The first rank sees at once who has not posted.
        assert early == [False, [1, 2, 3]]
        # Texts are cut at 600 bytes, between characters.
        everyone = ["from 0", "é" * 300, "from 2", "from 3"]
        assert texts == [text for each, text in enumerate(everyone) if each != rank]


def test_a_long_wait_costs_little(exchanging):
    """Ranks whose peer is busy for seconds sleep nearly all the while."""
    for cost, took in exchanging("long_wait", seconds=2.0):
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


def test_texts_are_filled_and_cut_between_characters():
    """A short text comes back whole, a long one without half a character."""
    assert read_text(cut_text("worker 2")) == "worker 2"

    odd = "x" + "é" * TEXT_BYTES
    assert len(cut_text(odd)) == TEXT_BYTES
    assert read_text(cut_text(odd)) == "x" + "é" * ((TEXT_BYTES - 1) // 2)


def test_an_end_is_told_whole():
    """What comes before it is cut, and what UTF-8 cannot encode is escaped in both."""
    assert fit_text("worker 2", " at \udce9.py:3") == "worker 2 at \\udce9.py:3"

    told = fit_text("é" * TEXT_BYTES, " at é.py:3")
    assert told == "é" * ((TEXT_BYTES - len(" at é.py:3".encode())) // 2) + " at é.py:3"
    assert read_text(cut_text(told)) == told
    assert fit_text("x", "y" * 2 * TEXT_BYTES) == "y" * TEXT_BYTES
