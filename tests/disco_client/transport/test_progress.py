"""The slowest of many workers is known without looking at all of them each time."""

from __future__ import annotations

import random

from disco_client.transport.progress import Progress


def test_the_slowest_is_known_whatever_the_order():
    """As if all were compared at each step; a command that is older than one known is nothing."""
    chance = random.Random(5)
    progress, plain = Progress(7, 3), [3] * 7
    for _ in range(2000):
        worker, seq = chance.randrange(7), chance.randrange(40)
        before = min(plain)
        plain[worker] = max(plain[worker], seq)
        assert progress.note(worker, seq) == (min(plain) > before)
        assert progress.slowest == min(plain)
        assert progress.each == plain


def test_workers_that_keep_together_are_compared_once_a_round():
    """So a wait for all of them costs each of them the same, however many there are."""

    class Watched(list):
        looks = 0

        def __iter__(self):
            self.looks += 1
            return super().__iter__()

    progress = Progress(100, 0)
    progress.each = Watched(progress.each)
    for seq in range(1, 11):
        for worker in range(100):
            progress.note(worker, seq)
    assert progress.slowest == 10
    assert progress.each.looks == 10
