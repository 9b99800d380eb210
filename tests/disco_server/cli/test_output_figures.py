"""Figures for people: short, with units."""

from __future__ import annotations

import pytest

from disco_server.cli.output import count, duration, rate, size


@pytest.mark.parametrize(
    ("value", "text"),
    [
        *((0, "0"), (0.4, "0"), (512, "512 B"), (1024, "1 KiB"), (1536, "1.5 KiB")),
        *((200 << 20, "200 MiB"), (3 << 30, "3 GiB"), (5000 << 40, "5000 TiB")),
    ],
)
def test_sizes_are_of_powers_of_two(value, text):
    """With one digit where it says something."""
    assert size(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        *((0, "0"), (17, "17"), (999, "999"), (1234, "1.2k"), (123_456, "123k")),
        *((4_500_000, "4.5M"), (7_200_000_000, "7.2G")),
    ],
)
def test_counts_are_of_powers_of_ten(value, text):
    """Exact where they are small."""
    assert count(value) == text


def test_rates_are_a_dash_where_they_are_not_known():
    """Of bytes they are sizes, otherwise counts."""
    assert [rate(None), rate(1500.0), rate(2048.0, "B")] == ["-", "1.5k/s", "2 KiB/s"]


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        *((0, "0 s"), (45e-6, "45 us"), (1.23e-3, "1.2 ms"), (0.045, "45 ms"), (3.4, "3.4 s")),
        *((42.4, "42 s"), (125, "2m05s"), (11_520, "3h12m"), (367_200, "4d06h")),
    ],
)
def test_durations_have_two_units_at_most(seconds, text):
    """From microseconds to days."""
    assert duration(seconds) == text
