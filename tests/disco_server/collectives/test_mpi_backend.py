"""The data operations that need more than one call of MPI."""

from __future__ import annotations


def test_large_allreduces_go_in_pieces(ranks):
    """Pieces give what one call gives, whatever is left for the last one."""
    assert ranks.run("in_pieces") == [[]] * 4
