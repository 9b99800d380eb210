"""The clock of sessions, beside those that programs see."""

from __future__ import annotations

import time

from disco_client import clock


def test_it_is_the_clock_of_time_monotonic():
    """Times that a session tells, such as its expiry, can be compared with a program's."""
    readings = [time.monotonic(), clock.monotonic(), clock.monotonic_ns() / 1e9, time.monotonic()]
    assert readings == sorted(readings)
