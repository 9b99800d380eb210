"""Rows, data and texts between four real ranks."""

from __future__ import annotations


def test_rounds_bring_headers_data_and_texts(ranks):
    """Every rank sees all headers and the data behind them, of every length."""
    for rank, seen in enumerate(ranks.run("rounds", shared=False)):
        plain, *with_data, early, texts = seen
        assert plain == [[1, 2, 3, 4], 256, []]
        assert with_data == [[[1, 2, 3, 4], 256, [0, 1, 2, 3]]] * 4
        # The first rank sees at once who has not posted.
        assert early == [False, [1, 2, 3]]
        # Texts are cut at 600 bytes, between characters.
        everyone = ["from 0", "é" * 300, "from 2", "from 3"]
        assert texts == [text for each, text in enumerate(everyone) if each != rank]
