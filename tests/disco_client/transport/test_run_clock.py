"""The time in which a process ran."""

from __future__ import annotations

import threading

import pytest

from disco_client.transport.run_clock import RunClock


class Real:
    """A real time that goes on as it is told."""

    def __init__(self):
        self.now = 100.0

    def __call__(self):
        return self.now


@pytest.fixture
def real():
    return Real()


def test_it_goes_as_the_real_time_while_turns_come(real):
    """Nothing is left out of turns that take less than the longest, nor counted twice."""
    clock = RunClock(1.0, real)
    for _ in range(20):
        real.now += 0.75
        assert clock() == clock.turn() == clock() == real.now


def test_of_a_turn_that_comes_late_no_more_counts_than_a_turn_takes(real):
    """Whoever asks, before the turn or after it, gets the same time, which never goes back."""
    clock = RunClock(1.0, real)
    real.now += 12.0
    assert clock() == 101.0
    real.now += 12.0
    assert clock() == clock.turn() == clock() == 101.0
    real.now += 0.5
    assert clock.turn() == 101.5


def test_a_block_may_wait_in_one_call_for_long(real, eventually):
    """A thread turns meanwhile, and ends with the block; after it turns are missed again."""
    clock = RunClock(0.1, real)
    with clock.turning():
        for _ in range(6):
            real.now += 0.1
            eventually(lambda: clock._turned[0] == real.now, what="a turn")
        assert clock() == pytest.approx(100.6)
    eventually(lambda: "disco-clock" not in {each.name for each in threading.enumerate()})
    real.now += 0.6
    assert clock() == pytest.approx(100.7)
