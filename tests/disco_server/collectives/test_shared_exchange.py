"""Data that rides with headers through memory that four real ranks share."""

from __future__ import annotations

from disco_server.collectives.shared_exchange import SharedMemoryExchange, channel_bytes


def test_large_reductions_go_in_several_rounds(ranks):
    """What is too large for one round is reduced in a few, wherever it lies."""
    assert ranks.run("in_rounds") == [[]] * 4


def test_large_parts_are_gathered_in_several_rounds(ranks):
    """Whether they lie apart, in their place, elsewhere in the whole or with gaps."""
    assert ranks.run("gather_rounds") == [[]] * 4


def test_what_one_rank_has_goes_with_its_header(ranks):
    """A broadcast up to 64 KiB, a transfer up to 16 KiB; other ranks put nothing."""
    assert ranks.run("of_one_rank") == [[]] * 4


def test_how_much_goes_in_rounds_depends_on_the_ranks():
    """Few ranks reduce anything in rounds; many reduce and gather what is some rounds long."""
    few, many = (
        SharedMemoryExchange(memoryview(bytearray(channel_bytes(members, 4096))), 0, members, 4096)
        for members in (2, 8)
    )
    assert few.most_bytes > 1 << 32
    assert many.most_bytes == many.most_gathered == 4 * many.data_bytes
    assert few.most_gathered == few.data_bytes
