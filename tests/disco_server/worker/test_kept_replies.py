"""Replies are kept until the client has them."""

from __future__ import annotations

from disco_server.worker import kept_replies
from disco_server.worker.kept_replies import KeptReplies


def filled():
    kept = KeptReplies()
    for number in (1, 2, 3):
        kept.add(2, number, b"two-%d" % number)
        kept.add(5, number, b"five-%d" % number)
    return kept


def test_what_the_client_has_is_forgotten():
    """Each rank by its own count; the others keep their order."""
    kept = filled()
    kept.forget([0, 0, 2, 0, 0, 1])
    assert list(kept.waiting()) == [b"five-2", b"two-3", b"five-3"]
    assert kept.nbytes == len(b"five-2two-3five-3")
    assert kept.sent([5, 2, 7]) == [3, 3, 0]


def test_a_client_that_begins_wants_nothing_of_before():
    """It says that it has nothing, and the counts go on."""
    kept = filled()
    kept.forget([])
    assert list(kept.waiting()) == []
    assert kept.nbytes == 0
    assert kept.sent([2]) == [3]


def test_it_says_when_it_has_enough(monkeypatch):
    """Whoever reads from the ranks stops then, until some are forgotten."""
    monkeypatch.setattr(kept_replies, "FULL_BYTES", 30)
    kept = filled()
    assert kept.full
    kept.forget([9] * 6)
    assert not kept.full
