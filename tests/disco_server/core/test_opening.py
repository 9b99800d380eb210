"""Who hangs while ranks open their communicator, and when that may be said at all."""

from __future__ import annotations

import math

import pytest

from disco_client.errors import ConfigError
from disco_server.core.opening import Opening
from disco_server.settings import INIT_TIMEOUT_S


def test_the_limit_begins_when_all_have_begun():
    """A rank may come as late as its program lets it; then the clock starts, once."""
    ranks = Opening(5.0)
    assert [ranks.begins(0), ranks.begins(1)] == [1, 1]
    assert ranks.ends_at == math.inf
    ranks.all_begin(1, 10.0)
    ranks.all_begin(1, 12.0)  # told again after a lost connection
    assert ranks.ends_at == 15.0
    assert ranks.ended(14.9) == []
    assert ranks.ended(15.0) == [1]
    assert ranks.ended(15.0) == []
    assert ranks.ends_at == math.inf


def test_a_second_attempt_has_a_limit_of_its_own():
    """After another library was wanted, all begin again, and are counted again."""
    ranks = Opening(5.0)
    for attempt, now in ((1, 0.0), (2, 3.0)):
        assert [ranks.begins(0), ranks.begins(1)] == [attempt, attempt]
        ranks.all_begin(attempt, now)
    for worker in (0, 1):
        ranks.done(worker)
    assert ranks.ended(9.0) == [1, 2]
    assert ranks.missing(1, [0, 1]) == []
    assert ranks.missing(2, [0, 1]) == [0, 1]


def test_ranks_of_this_machine_are_counted_and_those_of_others_told():
    """How often each here has begun can be told again, to a controller that came back."""
    ranks = Opening(5.0)
    assert [ranks.begins(0), ranks.begins(1), ranks.begins(0)] == [1, 1, 2]
    assert ranks.begun == {0: 2, 1: 1}


def test_who_is_not_done_is_named():
    """As text that follows the name of a rank."""
    blamed, why = Opening(5.0).blame([2], [])
    assert blamed == [2]
    assert why == (
        "was ended because the ranks did not meet within 5 s (DISCO_INIT_TIMEOUT_S) to open "
        "their communicator: not there is worker 2"
    )


def test_nobody_is_blamed_where_nobody_is_missing():
    """All are done, or wait for another machine's ranks, which its daemon knows."""
    assert Opening(5.0).blame([], [1]) == ([], "")


def test_a_stopped_process_is_blamed_before_those_that_run():
    """Others may spin inside MPI for it, and cannot be told from it otherwise."""
    blamed, why = Opening(5.0).blame([2, 0, 1], [1])
    assert blamed == [1]
    assert "not there are workers 0, 1 and 2; worker 1 did not run at all (stopped)" in why


def test_without_a_limit_nobody_is_watched():
    """0 is for ever."""
    assert INIT_TIMEOUT_S.value({"DISCO_INIT_TIMEOUT_S": "0"}) == 0
    endless = Opening(0.0)
    endless.all_begin(1, 0.0)
    assert endless.ends_at == math.inf


def test_a_malformed_limit_is_refused():
    """With its name and what was expected."""
    assert INIT_TIMEOUT_S.value({}) == 120.0
    with pytest.raises(ConfigError, match="DISCO_INIT_TIMEOUT_S"):
        INIT_TIMEOUT_S.value({"DISCO_INIT_TIMEOUT_S": "soon"})
