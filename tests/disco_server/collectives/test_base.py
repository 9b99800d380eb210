"""What the process groups of all libraries share."""

from __future__ import annotations

import pytest

from disco_client.errors import ConfigError
from disco_client.text import name_workers
from disco_server.collectives.group import LoneBackend
from disco_server.collectives.process_groups import ProcessGroups
from disco_server.collectives.types import (
    AbortedError,
    CollectiveError,
    MismatchError,
    ReduceOp,
)


class Placed(ProcessGroups):
    """Those of a rank that knows its place, and meets nobody."""

    def __init__(self, worker_id, num_workers, num_groups):
        super().__init__(
            worker_id, num_workers, num_groups, lambda *_: Silent(), lambda *_: LoneBackend()
        )


class Silent:
    """Carries no headers."""

    data_bytes = 0


Placed.__abstractmethods__ = frozenset()


def test_reductions_have_the_originals_names_and_numbers():
    """The names users write give the numbers that travel."""
    names = ["sum", "prod", "min", "max", "avg"]
    assert [ReduceOp.from_name(name) for name in names] == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("name", ["mean", "SUM", ""])
def test_an_unknown_reduction_names_the_choices(name):
    """A wrong name is answered with the right ones."""
    with pytest.raises(ConfigError, match="'sum', 'prod', 'min', 'max', 'avg'"):
        ReduceOp.from_name(name)


def test_groups_are_consecutive_slices():
    """Worker 5 of 8 in 4 groups is rank 1 of group 2."""
    place = Placed(5, 8, 4)
    assert (place.world.rank, place.world.size) == (5, 8)
    assert (place.group.rank, place.group.size) == (1, 2)
    assert place.group.members == (4, 5)
    assert place.world.members == tuple(range(8))


@pytest.mark.parametrize("numbers", [(0, 4, 3), (0, 0, 1), (4, 4, 1), (-1, 4, 1), (0, 4, 0)])
def test_impossible_places_are_refused(numbers):
    """Uneven groups and ranks outside the session are found at construction."""
    with pytest.raises(ConfigError):
        Placed(*numbers)


def test_errors_carry_their_ranks():
    """Errors say who, and are told apart by type."""
    aborted = AbortedError([3, 1], 7, "allreduce(sum)")
    assert str(aborted) == (
        "allreduce(sum) of command #7 cannot happen: workers 1 and 3 failed before entering it"
    )
    assert aborted.ranks == (3, 1)
    assert MismatchError([2], "odd").ranks == (2,)
    assert isinstance(aborted, CollectiveError)


def test_workers_are_named_in_words():
    """One, two and more workers read as a sentence does."""
    assert name_workers([4]) == "worker 4"
    assert name_workers([2, 0]) == "workers 0 and 2"
    assert name_workers([3, 1, 2]) == "workers 1, 2 and 3"


def test_leaving_a_block_closes_orderly_only_on_success():
    """After an exception nobody is waited for."""
    closed = []

    class Closing(Placed):
        def close(self, *, orderly=True):
            closed.append(orderly)

    Closing.__abstractmethods__ = frozenset()
    with Closing(0, 1, 1):
        pass
    with pytest.raises(KeyError), Closing(0, 1, 1):
        raise KeyError
    assert closed == [True, False]
