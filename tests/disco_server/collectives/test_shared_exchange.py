"""Rows, data and texts through memory that four real ranks share."""

from __future__ import annotations

from disco_server.collectives.header_exchange import SharedMemoryExchange, channel_bytes


def test_rounds_bring_headers_data_and_texts(ranks):
    """Every rank sees all headers and the data behind them, of every length."""
    for rank, seen in enumerate(ranks.run("rounds", shared=True)):
        plain, *with_data, early, texts = seen
        assert plain == [[1, 2, 3, 4], 256, []]
        assert with_data == [[[1, 2, 3, 4], 256, [0, 1, 2, 3]]] * 4
        # The first rank sees at once who has not posted.
        assert early == [False, [1, 2, 3]]
        # Texts are cut at 400 bytes, between characters.
        everyone = ["from 0", "é" * 200, "from 2", "from 3"]
        assert texts == [text for each, text in enumerate(everyone) if each != rank]


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
