"""When a rank tells its peers what it has executed, where commands have a limit."""

from __future__ import annotations

import math

import pytest

from disco_server.rank import time_limits
from disco_server.rank.time_limits import GonePast

LIMIT_S = 10.0
AFTER_S = LIMIT_S + time_limits._BEHIND_S


@pytest.fixture
def clock(monkeypatch):
    """A clock that the test moves."""
    now = [100.0]
    monkeypatch.setattr(time_limits, "monotonic", lambda: now[0])
    return now


@pytest.fixture
def told():
    """The commands that were told."""
    return []


@pytest.fixture
def behind(told):
    """What tells them."""
    return GonePast(told.append, LIMIT_S)


def test_a_rank_that_has_executed_nothing_tells_nothing(behind, told, clock):
    """And need not look again by itself."""
    assert behind.look(0) == math.inf
    clock[0] += 10 * AFTER_S
    assert behind.look(0) == math.inf
    assert told == []


def test_an_idle_rank_tells_once_after_the_limit(behind, told, clock):
    """Its last command, whatever it is asked meanwhile."""
    assert behind.look(5) == AFTER_S
    clock[0] += AFTER_S - 1
    assert behind.look(5) == 1
    clock[0] += 1
    assert behind.look(5) == 0
    assert told == [5]
    assert behind.look(5) == math.inf
    assert behind.look(6) == AFTER_S
    assert told == [5]


def test_a_rank_that_always_has_something_to_do_tells_too(behind, told, clock):
    """Within twice the time, and again within twice that."""
    for seq in range(1, 41):
        behind.look(seq)
        clock[0] += AFTER_S / 4
    assert told == [9, 18, 27, 36]
