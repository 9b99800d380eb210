"""The circles in which ranks meet."""

from __future__ import annotations

from disco_server.collectives.types import Tag, wide_lanes


def test_a_lane_for_all_and_one_for_each_group():
    """Consecutive slices; whoever is alone has no lane."""
    assert wide_lanes(1, 1) == []
    assert wide_lanes(2, 2) == [(Tag.WORLD, (0, 1))]
    assert wide_lanes(4, 2) == [
        (Tag.WORLD, (0, 1, 2, 3)),
        (Tag.GROUP, (0, 1)),
        (Tag.GROUP, (2, 3)),
    ]
