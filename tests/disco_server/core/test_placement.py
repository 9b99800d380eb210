"""Placing ranks on slots."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from disco_server.core.placement import FreeSlots, NodeShare, place


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
