"""Which operation of a library a collective ends in; what they do is shown by `test_team`."""

from __future__ import annotations

import numpy as np
import pytest

from disco_server.collectives.agreement import Agreement
from disco_server.collectives.base import MismatchError, ReduceOp
from disco_server.collectives.circle import Circle


class Noted:
    """Moves nothing and notes what was asked for."""

    def __init__(self):
        self.asked = []

    def __getattr__(self, name):
        return lambda *given: self.asked.append(
            (name, *(each for each in given if not isinstance(each, np.ndarray | None)))
        )


@pytest.fixture
def circle():
    """The second of three ranks, which need not meet."""
    agreement = Agreement(7)
    yield Circle((4, 7, 2), 7, agreement, Noted())
    agreement.close(orderly=False)


SUM = ReduceOp.SUM


def test_equal_parts_take_the_way_of_equal_parts(circle):
    """With counts that are equal, and a root that is the first rank, as without."""
    part, whole, dst = np.zeros(2), np.zeros(6), np.zeros(6)
    circle.allgather(part, whole, [2, 2, 2])
    circle.reduce_scatter(whole, part, SUM, [2, 2, 2])
    circle.all_to_all(whole, dst, [[2] * 3] * 3)
    circle.scatter(None, part, [2, 2, 2], 0)
    circle.gather(part, None, [2, 2, 2], 0)
    circle.broadcast(None, part, 0)
    names = [name for name, *_ in circle.moves.asked]
    assert names == ["allgather", "reduce_scatter", "all_to_all", "scatter", "gather", "broadcast"]


def test_uneven_parts_and_other_roots_take_their_own(circle):
    """With the numbers that the library needs."""
    counts, table = (2, 0, 1), ((1, 0, 1), (0, 0, 2), (1, 1, 1))
    nothing, whole = np.zeros(0), np.zeros(3)
    circle.allgather(nothing, whole, [*counts])
    circle.all_to_all(np.zeros(2), np.zeros(1), table)
    circle.scatter(whole, nothing, counts, 1)
    circle.gather(np.zeros(2), None, [2, 2, 2], 2)
    circle.broadcast(None, whole, 2)
    assert circle.moves.asked == [
        ("allgather_parts", counts),
        ("all_to_all_parts", table),
        ("scatter_parts", counts, 1),
        ("gather_parts", (2, 2, 2), 2),
        ("broadcast_from", 2),
    ]


def test_what_is_empty_or_wrong_reaches_no_library(circle):
    """All parts empty: the ranks only meet."""
    nothing = np.zeros(0)
    circle.allgather(nothing, nothing, [0, 0, 0])
    circle.allreduce(nothing, nothing, SUM)
    circle.barrier()
    with pytest.raises(MismatchError, match="counts"):
        circle.allgather(nothing, nothing, [0, 0])
    assert circle.moves.asked == []
