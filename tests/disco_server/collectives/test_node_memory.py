"""Memory that the ranks of one machine share."""

from __future__ import annotations


def test_every_channel_has_a_place_of_its_own(ranks):
    """Channels never meet, data rides in all of them, and only the map keeps a file open."""
    for rank, (seen, strange_is_none, left_open) in enumerate(ranks.run("shared_channels")):
        everyone, group, *pairs = seen
        first = rank // 2 * 2
        assert everyone == [[0, 1, 2, 3], [0, 1, 2, 3], True]
        assert group == [[first, first + 1], [10 + first, 11 + first], True]
        assert len(pairs) == 3
        for members, heads, rides in pairs:
            assert heads == [20 + member for member in members]
            assert rides
        assert strange_is_none
        assert left_open <= 1
