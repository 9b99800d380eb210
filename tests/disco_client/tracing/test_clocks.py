"""What questions and answers tell of the difference of two clocks."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from disco_client.tracing.clocks import Clock, ClockSample, clock_offset

DELAYS = st.integers(0, 10**7)


def test_the_difference_is_taken_from_the_midpoints():
    """As in NTP; what the way took says how wrong it may be."""
    assert clock_offset(100, 1150, 1250, 400) == (-950, 100)
    assert clock_offset(100, 220, 260, 400) == (10, 130)


@given(DELAYS, DELAYS, DELAYS, st.integers(-(10**15), 10**15))
def test_the_true_difference_is_never_farther_than_the_error(there, looking, back, true):
    """However long each way takes."""
    asked = 10**16
    received = asked + there - true
    sent = received + looking
    offset, error = clock_offset(asked, received, sent, sent + true + back)
    assert abs(offset - true) <= error + 1


def test_one_difference_that_explains_all_comparisons_is_taken():
    """The more there are, the better it is known."""
    clock = Clock([ClockSample(0, 1000, 300), ClockSample(50, 1400, 200)])
    assert (clock.offset_ns, clock.error_ns, clock.samples) == (1250, 50, 2)
    assert clock.correct(10) == clock.correct(10**9) - 10**9 + 10 == 1260


def test_a_difference_that_cannot_be_told_from_none_is_none():
    """Two programs of one machine have the same clock."""
    clock = Clock([ClockSample(0, 100, 130), ClockSample(5, -20, 40)])
    assert clock.same
    assert (clock.offset_ns, clock.error_ns) == (0, 30)
    assert clock.correct(77) == 77
    assert Clock().same
    assert Clock().error_ns == 0


def test_a_clock_that_is_faster_is_followed():
    """The difference changes evenly from each comparison to the next, and stays beyond."""
    clock = Clock([ClockSample(1000, 100, 5), ClockSample(2000, 300, 7)])
    corrected = [clock.correct(at) - at for at in (500, 1000, 1500, 2000, 5000)]
    assert corrected == [100, 100, 200, 300, 300]
    assert clock.error_ns == 7


@pytest.mark.parametrize("samples", [[], [ClockSample(5, 50, 1)]])
def test_a_time_that_was_not_taken_stays_so(samples):
    """It is 0, which no clock of a machine that runs shows."""
    assert Clock(samples).correct(0) == 0
