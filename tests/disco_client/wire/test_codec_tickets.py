"""The tickets of a command's arrays are found wherever they are."""

from __future__ import annotations

import numpy as np

from disco_client.wire.codec import EncodedValue, encode_value, tickets_in
from disco_client.wire.values import ArrayPorter


class Numbers(ArrayPorter):
    """Gives each array the next ticket."""

    def __init__(self):
        self.tickets = 0

    def offer(self, array):
        self.tickets += 1
        return self.tickets


def test_tickets_are_found_in_lists_and_maps():
    """Those of large arrays only: small ones are in the value."""
    large, small = np.zeros(100_000), np.zeros(3)
    porter, values = Numbers(), [EncodedValue() for _ in range(4)]
    for out, value in zip(
        values, (large, [small, large, [large]], {"a": large, "b": 5}, "text"), strict=True
    ):
        encode_value(out, value, porter)
    assert sorted(tickets_in(values)) == [1, 2, 3, 4]
    assert list(tickets_in([EncodedValue()])) == []
