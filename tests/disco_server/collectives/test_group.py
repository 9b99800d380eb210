"""Which operation of a library a collective ends in; what they do is shown by `test_team`."""

from __future__ import annotations

import numpy as np
import pytest

from disco_server.collectives.agreement import Agreement
from disco_server.collectives.group import ProcessGroup
from disco_server.collectives.types import MismatchError, ReduceOp
from disco_server.collectives.validation import Family


class Noted:
    """Moves nothing and notes what was asked for."""

    def __init__(self):
        self.asked = []

    def __getattr__(self, name):
        return lambda *given: self.asked.append(
            (name, *(each for each in given if not isinstance(each, np.ndarray | None)))
        )


@pytest.fixture
def group():
    """The second of three ranks, which need not meet."""
    agreement = Agreement(7)
    yield ProcessGroup((4, 7, 2), 7, agreement, Noted())
    agreement.close(orderly=False)


SUM = ReduceOp.SUM


def test_equal_parts_take_the_way_of_equal_parts(group):
    """With counts that are equal, and a root that is the first rank, as without."""
    part, whole, dst = np.zeros(2), np.zeros(6), np.zeros(6)
    group.allgather(part, whole, [2, 2, 2])
    group.reduce_scatter(whole, part, SUM, [2, 2, 2])
    group.all_to_all(whole, dst, [[2] * 3] * 3)
    group.scatter(None, part, [2, 2, 2], 0)
    group.gather(part, None, [2, 2, 2], 0)
    group.broadcast(None, part, 0)
    assert group.backend.asked == [
        ("allgather",),
        ("reduce_scatter", SUM, Family.FLOAT),
        ("all_to_all",),
        ("scatter", 0),
        ("gather", 0),
        ("broadcast", 0),
    ]


def test_uneven_parts_and_other_roots_take_their_own(group):
    """With the numbers that the library needs."""
    counts, table = (2, 0, 1), ((1, 0, 1), (0, 0, 2), (1, 1, 1))
    nothing, whole = np.zeros(0), np.zeros(3)
    group.allgather(nothing, whole, [*counts])
    group.all_to_all(np.zeros(2), np.zeros(1), table)
    group.scatter(whole, nothing, counts, 1)
    group.gather(np.zeros(2), None, [2, 2, 2], 2)
    group.broadcast(None, whole, 2)
    assert group.backend.asked == [
        ("allgather", counts),
        ("all_to_all", table),
        ("scatter", counts, 1),
        ("gather", (2, 2, 2), 2),
        ("broadcast", 2),
    ]


def test_what_is_empty_or_wrong_reaches_no_library(group):
    """All parts empty: the ranks only meet."""
    nothing = np.zeros(0)
    group.allgather(nothing, nothing, [0, 0, 0])
    group.allreduce(nothing, nothing, SUM)
    group.barrier()
    with pytest.raises(MismatchError, match="counts"):
        group.allgather(nothing, nothing, [0, 0])
    assert group.backend.asked == []
