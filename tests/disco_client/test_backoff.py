"""Pauses between attempts grow up to a limit."""

from __future__ import annotations

from disco_client.backoff import Backoff


def test_pauses_grow_to_the_longest_and_begin_anew():
    """Each lies between half of what has grown and all of it."""
    backoff = Backoff(0.1, 0.5)
    for _ in range(2):
        for whole in (0.1, 0.2, 0.4, 0.5, 0.5):
            assert whole / 2 <= backoff.pause() <= whole
        backoff.reset()
