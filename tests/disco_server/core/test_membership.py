"""Nodes: who may join, what they offer, who fell silent."""

from __future__ import annotations

import pytest

from disco_server.core.nodes import Membership, Node, NodeRefused


def node(name="a", devices=("cpu", "cpu"), heard=0.0):
    return Node(name, tuple(devices), 1, "0.1", "elsewhere", heard)


@pytest.fixture
def members():
    made = Membership()
    made.join(node("a"))
    return made


def test_a_node_without_slots_is_refused(members):
    """It says which options are wrong."""
    with pytest.raises(NodeRefused, match="--slots"):
        members.join(node("b", ()))


def test_a_name_is_taken_once(members):
    """Who has it is in the message; after that one left it is free."""
    with pytest.raises(NodeRefused, match=r"'a' is connected already \(from elsewhere\)"):
        members.join(node("a"))
    assert members.leave("a").name == "a"
    assert members.leave("a") is None
    members.join(node("a"))


def test_slots_are_taken_and_given_back_by_session(members):
    """Only those of that session, and only where the node is still here."""
    members.join(node("b", ("cuda:0",)))
    members.take(7, "a", (1,))
    members.take(8, "b", (0,))
    assert (members.total_slots, members.free_slots) == (3, 1)
    assert members.nodes["a"].free.slots == ((0, "cpu"),)
    members.give_back(7, "b")
    assert members.free_slots == 1
    members.give_back(7, "a")
    members.give_back(7, "nobody")
    assert members.free_slots == 2


def test_a_draining_node_offers_nothing(members):
    """Its slots do not count any more."""
    members.nodes["a"].cordoned = True
    assert members.nodes["a"].free.slots == ()
    assert (members.total_slots, members.free_slots) == (0, 0)


def test_a_node_is_found_by_a_beginning_that_no_other_has(members):
    """A whole name comes first; where several begin so, or none, the text lists names."""
    for name in ("node-1", "node-10", "node-2"):
        members.join(node(name))
    members.drained.update({"rack-7": "ops", "rack-8": ""})
    assert [members.find(name) for name in ("a", "node-2", "node-1", "r")] == [
        *("a", "node-2", "node-1", "rack-7")
    ]
    with pytest.raises(LookupError, match="several begin: node-1, node-2, node-10"):
        members.find("node")
    for absent in ("", "b", "rack-8"):
        with pytest.raises(LookupError, match="there are: a, node-1, node-2, node-10, rack-7"):
            members.find(absent)


def test_silence_is_counted_from_the_last_word(members):
    """Exactly the lease is still in time."""
    members.join(node("b", heard=5.0))
    assert members.silent(10.0, 10.0) == []
    assert members.silent(10.5, 10.0) == ["a"]
    members.heard("a", 10.0)
    members.heard("nobody", 10.0)
    assert members.silent(16.0, 10.0) == ["b"]


def test_a_node_must_offer_what_each_node_is_asked_for():
    """Where every node has as many workers; the numbers are in the message."""
    members = Membership(min_slots=3)
    with pytest.raises(NodeRefused, match="at least 3 slots, got 2"):
        members.join(node("a"))
    members.join(node("a", ("cpu",) * 3))
