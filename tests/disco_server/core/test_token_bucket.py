"""Rates that are limited."""

from __future__ import annotations

from disco_server.core.token_bucket import TokenBucket


def test_a_burst_passes_and_then_the_rate_counts():
    """Tokens come back with time, never more than there were."""
    bucket = TokenBucket(100, 10, 0, now=5.0)
    assert bucket.left(5.0) == 100
    bucket.take(100)
    assert bucket.left(5.0) == 0
    assert bucket.left(7.0) == 20
    assert bucket.left(1000.0) == 100


def test_what_is_spent_comes_back_in_pieces():
    """Until a piece is together there is nothing, and afterwards all of it."""
    bucket = TokenBucket(100, 10, 30, now=0.0)
    bucket.take(80)
    assert bucket.left(0.0) == 20, "not spent yet"
    bucket.take(20)
    assert bucket.left(2.0) == 0
    bucket.take(0)
    assert bucket.left(2.5) == 0
    assert bucket.left(3.5) == 35
    bucket.take(10)
    assert bucket.left(3.5) == 25
