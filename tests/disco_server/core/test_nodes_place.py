"""Placing ranks on slots."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from disco_server.core.nodes import EvenLayout, FreeSlots, NodeShare, place


def free(*counts):
    return [
        FreeSlots(f"n{i}", tuple((slot * 2, f"cuda:{slot * 2}") for slot in range(count)))
        for i, count in enumerate(counts)
    ]


def test_a_session_stays_on_one_node_where_it_fits():
    """Even if an earlier node has some room."""
    (share,) = place(3, free(2, 4))
    assert share == NodeShare("n1", (0, 1, 2), (0, 2, 4), ("cuda:0", "cuda:2", "cuda:4"))


def test_a_larger_session_fills_a_node_before_the_next():
    """Consecutive ranks, in the nodes' order of arrival; empty nodes have no share."""
    shares = place(5, free(2, 0, 4))
    assert [(s.node, s.workers) for s in shares] == [("n0", (0, 1)), ("n2", (2, 3, 4))]


def test_there_is_no_half_placement():
    """One slot too few is no room."""
    assert place(7, free(2, 4)) is None
    assert place(1, []) is None


@given(st.integers(1, 20), st.lists(st.integers(0, 6), max_size=6))
def test_every_placement_is_whole_and_uses_free_slots(workers, counts):
    """All ranks once and in order, each on a free slot of its own with that slot's device."""
    nodes = free(*counts)
    shares = place(workers, nodes)
    if shares is None:
        assert sum(counts) < workers
        return
    assert [w for share in shares for w in share.workers] == list(range(workers))
    offered = {node.node: dict(node.slots) for node in nodes}
    assert len({share.node for share in shares}) == len(shares)
    for share in shares:
        assert len(set(share.slots)) == len(share.workers) > 0
        assert [offered[share.node][slot] for slot in share.slots] == list(share.devices)
    assert len(shares) == 1 or max(counts) < workers


def test_an_even_layout_gives_each_node_the_same_number():
    """Node by node, the first one first whenever it came; surplus slots stay empty."""
    shares = EvenLayout("n1", nodes=2, per_node=2).place(4, free(3, 2, 2))
    assert [(s.node, s.workers, s.slots) for s in shares] == [
        ("n1", (0, 1), (0, 2)),
        ("n0", (2, 3), (0, 2)),
    ]
    alone = EvenLayout("n0", nodes=1, per_node=1).place(1, free(1))
    assert [(s.node, s.workers) for s in alone] == [("n0", (0,))]


def test_a_layout_may_go_by_the_numbers_of_the_nodes():
    """Whatever their hosts are called, and in whichever order they came."""
    nodes = [FreeSlots(name, ((0, "cpu"),)) for name in ("b-10", "a-2", "c-0", "d-1")]
    shares = EvenLayout("c-0", nodes=4, per_node=1, numbered=True).place(4, nodes)
    assert [share.node for share in shares] == ["c-0", "d-1", "a-2", "b-10"]


@pytest.mark.parametrize("counts", [(), (2,), (2, 1), (1, 2, 2), (4, 1)])
def test_an_even_layout_waits_for_all_its_nodes(counts):
    """A node with too little room does not count, and the first one must be there."""
    assert EvenLayout("n0", nodes=2, per_node=2).place(4, free(*counts)) is None
