"""The data operations that need more than one call of MPI."""

from __future__ import annotations

import pytest


@pytest.mark.parametrize("scenario", ["in_pieces", "parts_in_pieces"], ids=["whole", "uneven"])
def test_what_is_cut_into_pieces_is_as_in_one_call(ranks, scenario):
    """Reductions and messages, equal and uneven parts, whatever is left for the last piece."""
    assert ranks.run(scenario) == [[]] * 4
