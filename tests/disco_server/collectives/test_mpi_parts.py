"""The data operations of uneven parts that need more than one call of MPI."""

from __future__ import annotations


def test_uneven_parts_go_in_pieces(ranks):
    """Messages and reductions that are cut give what whole ones give."""
    assert ranks.run("parts_in_pieces") == [[]] * 4
