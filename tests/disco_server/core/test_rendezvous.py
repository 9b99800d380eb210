"""The exchange of one session, without any waiting."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from disco_server.core.rendezvous import Rendezvous, RendezvousError, StoreLimits, Wake


def test_what_was_put_is_there():
    """A getter after the put is answered at once."""
    rendezvous = Rendezvous()
    assert rendezvous.put("key", b"value") == []
    assert rendezvous.get("key", "a") == [Wake("a", value=b"value")]


def test_getters_wait_for_the_put():
    """All who came early are woken by the put, and nobody else."""
    rendezvous = Rendezvous()
    assert rendezvous.get("key", "a") == []
    assert rendezvous.get("key", "b") == []
    assert rendezvous.get("other", "c") == []
    assert rendezvous.put("key", b"") == [Wake("a", value=b""), Wake("b", value=b"")]


def test_a_key_is_written_once():
    """The same value again is no harm; another one is an error and changes nothing."""
    rendezvous = Rendezvous()
    rendezvous.put("key", b"one")
    assert rendezvous.put("key", b"one") == []
    with pytest.raises(RendezvousError, match="'key' was written before with another value"):
        rendezvous.put("key", b"two")
    assert rendezvous.get("key", "a") == [Wake("a", value=b"one")]


def test_a_fence_completes_with_the_last_participant():
    """All leave with what all brought, and the items are keys from then on."""
    rendezvous = Rendezvous()
    rendezvous.get("y", "reader")
    assert rendezvous.fence("f", 1, 3, {"x": b"1"}, "b") == []
    assert rendezvous.fence("f", 0, 3, {}, "a") == []
    wakes = rendezvous.fence("f", 2, 3, {"y": b"2", "x": b"1"}, "c")
    items = {"x": b"1", "y": b"2"}
    assert wakes == [
        Wake("b", items=items),
        Wake("a", items=items),
        Wake("c", items=items),
        Wake("reader", value=b"2"),
    ]
    assert rendezvous.get("x", "later") == [Wake("later", value=b"1")]


def test_fences_are_apart():
    """Two fences under two names do not mix."""
    rendezvous = Rendezvous()
    rendezvous.fence("f", 0, 2, {"x": b"1"}, "a")
    rendezvous.fence("g", 0, 2, {"y": b"2"}, "b")
    wakes = rendezvous.fence("g", 1, 2, {}, "c")
    assert [wake.items for wake in wakes] == [{"y": b"2"}] * 2


@pytest.mark.parametrize(
    ("participant", "participants", "items", "words"),
    [
        (1, 3, {}, "for 2 participants, but participant 1 says 3"),
        (0, 2, {}, "participant 0 came twice"),
        (2, 2, {}, "participant 2 is not one of 2"),
        (-1, 2, {}, "participant -1 is not one of 2"),
        (1, 2, {"x": b"other"}, "'x' was written before with another value"),
        (1, 2, {"stored": b"other"}, "'stored' was written before with another value"),
        (1, 2, {"": b""}, "1 to 256 are allowed"),
    ],
)
def test_wrong_arrivals_are_refused(participant, participants, items, words):
    """A wrong arrival is an error for who made it; the fence still completes."""
    rendezvous = Rendezvous()
    rendezvous.put("stored", b"s")
    rendezvous.fence("f", 0, 2, {"x": b"1"}, "a")
    with pytest.raises(RendezvousError, match=words):
        rendezvous.fence("f", participant, participants, items, "odd")
    woken = rendezvous.fence("f", 1, 2, {}, "b")
    assert [wake.waiter for wake in woken] == ["a", "b"]


def test_a_straggler_is_told():
    """A fence that is complete takes nobody in any more."""
    rendezvous = Rendezvous()
    rendezvous.fence("f", 0, 1, {}, "a")
    with pytest.raises(RendezvousError, match="came twice"):
        rendezvous.fence("f", 0, 1, {}, "b")


def test_the_same_waiter_may_ask_again():
    """It is counted once; where it was answered, it is answered the same again."""
    rendezvous = Rendezvous(StoreLimits(waiting=2))
    for _ in range(3):
        assert rendezvous.get("key", "a") == []
        assert rendezvous.fence("f", 0, 2, {"x": b"1"}, "a") == []
    assert rendezvous.put("key", b"v") == [Wake("a", value=b"v")]
    rendezvous.fence("f", 1, 2, {"y": b"2"}, "b")
    assert rendezvous.fence("f", 0, 2, {"x": b"1"}, "a") == [
        Wake("a", items={"x": b"1", "y": b"2"})
    ]


def test_failure_wakes_everyone():
    """All waiters learn the reason, once, and later calls are refused with it."""
    rendezvous = Rendezvous()
    rendezvous.get("key", "a")
    rendezvous.fence("f", 0, 2, {}, "b")
    rendezvous.fence("done", 0, 1, {}, "c")
    assert rendezvous.fail("node-1 went away") == [
        Wake("a", error="node-1 went away"),
        Wake("b", error="node-1 went away"),
    ]
    assert rendezvous.failed == "node-1 went away"
    assert rendezvous.fail("again") == []
    for call in (
        lambda: rendezvous.put("key", b""),
        lambda: rendezvous.get("key", "d"),
        lambda: rendezvous.fence("f", 1, 2, {}, "e"),
    ):
        with pytest.raises(RendezvousError, match="node-1 went away"):
            call()


def test_who_went_away_is_not_woken():
    """A withdrawn getter is forgotten; others of the key stay."""
    rendezvous = Rendezvous(StoreLimits(waiting=2))
    rendezvous.get("key", "a")
    rendezvous.get("key", "b")
    rendezvous.withdraw("key", "a")
    rendezvous.withdraw("key", "a")
    rendezvous.get("other", "c")
    rendezvous.withdraw("other", "c")
    assert rendezvous.put("key", b"v") == [Wake("b", value=b"v")]


def test_limits_are_kept():
    """Long keys, large values, many keys and many waiters are refused with the limit."""
    rendezvous = Rendezvous(StoreLimits(key_bytes=4, value_bytes=3, entries=2, waiting=1))
    with pytest.raises(RendezvousError, match="6 bytes; 1 to 4 are allowed"):
        rendezvous.put("ééé", b"")
    with pytest.raises(RendezvousError, match="has 4 bytes; up to 3 are allowed"):
        rendezvous.put("a", b"1234")
    rendezvous.put("a", b"1")
    with pytest.raises(RendezvousError, match="more than 2 keys"):
        rendezvous.fence("f", 0, 1, {"b": b"", "c": b""}, "x")
    rendezvous.put("b", b"2")
    with pytest.raises(RendezvousError, match="more than 2 keys"):
        rendezvous.put("c", b"3")
    rendezvous.get("c", "w")
    with pytest.raises(RendezvousError, match="more than 1 are waiting"):
        rendezvous.get("d", "v")
    with pytest.raises(RendezvousError, match="more than 1 are waiting"):
        rendezvous.fence("f", 0, 2, {}, "v")


@given(st.permutations(range(4)), st.integers(0, 3))
def test_the_order_of_arrival_does_not_matter(order, overlap):
    """Whatever the order, exactly the last arrival wakes all with the same items."""
    rendezvous = Rendezvous()
    items = {rank: {f"k{rank}": b"v", f"k{overlap}": b"v"} for rank in range(4)}
    wakes = [rendezvous.fence("f", rank, 4, items[rank], rank) for rank in order]
    assert wakes[:3] == [[]] * 3
    assert {wake.waiter for wake in wakes[3]} == set(range(4))
    merged = {f"k{rank}": b"v" for rank in range(4)}
    assert all(wake.items == merged for wake in wakes[3])
