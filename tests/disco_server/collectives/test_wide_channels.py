"""The channels in which ranks agree."""

from __future__ import annotations

from disco_server.collectives.types import Tag, wide_channels


def test_a_channel_for_all_and_one_for_each_group():
    """Consecutive slices; whoever is alone has no channel."""
    assert wide_channels(1, 1) == []
    assert wide_channels(2, 2) == [(Tag.WORLD, (0, 1))]
    assert wide_channels(4, 2) == [
        (Tag.WORLD, (0, 1, 2, 3)),
        (Tag.GROUP, (0, 1)),
        (Tag.GROUP, (2, 3)),
    ]
