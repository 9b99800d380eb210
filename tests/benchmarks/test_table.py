"""Limits, verdicts, and rows that could not be measured."""

from __future__ import annotations

import json

import pytest
from disco_bench.table import (
    Limit,
    LimitOutcome,
    Measured,
    Report,
    Spec,
    Status,
    Unavailable,
    describe_figure,
    judge,
)

AT_MOST = Limit("ratio", must=4.0, aim=2.5)
AT_LEAST = Limit("figure", must=60e3, aim=150e3, least=True)
EXCESS = Limit("excess", must=40e-6, aim=10e-6)


@pytest.mark.parametrize(
    ("limit", "measured", "verdict"),
    [
        (AT_MOST, Measured(2.0, 1.0), LimitOutcome.AIM),
        (AT_MOST, Measured(2.5, 1.0), LimitOutcome.AIM),
        (AT_MOST, Measured(4.0, 1.0), LimitOutcome.MUST),
        (AT_MOST, Measured(4.1, 1.0), LimitOutcome.MISSED),
        (AT_MOST, Measured(9.0, 1.0, ratio=3.0), LimitOutcome.MUST),
        (AT_LEAST, Measured(150e3), LimitOutcome.AIM),
        (AT_LEAST, Measured(60e3), LimitOutcome.MUST),
        (AT_LEAST, Measured(59e3), LimitOutcome.MISSED),
        (EXCESS, Measured(55e-6, 50e-6), LimitOutcome.AIM),
        (EXCESS, Measured(90e-6, 50e-6), LimitOutcome.MUST),
        (EXCESS, Measured(91e-6, 50e-6), LimitOutcome.MISSED),
        (Limit("figure", must=0), Measured(0), LimitOutcome.MUST),
        (Limit("figure", must=0), Measured(1), LimitOutcome.MISSED),
        (None, Measured(1.0), LimitOutcome.NONE),
        (None, None, LimitOutcome.UNKNOWN),
        (AT_MOST, None, LimitOutcome.UNKNOWN),
        (AT_MOST, Measured(2.0), LimitOutcome.UNKNOWN),
    ],
)
def test_a_figure_is_held_against_its_limit(limit, measured, verdict):
    """The aim is checked before the must, a bound that is met holds, no figure is no verdict."""
    assert judge(limit, measured) is verdict


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (0.0123, "s", "12.3 ms"),
        (4.5e-5, "s", "45 µs"),
        (2.0, "s", "2 s"),
        (0.0, "s", "0 µs"),
        (-2e-3, "s", "-2 ms"),
        (2.5e9, "B/s", "2.5 GB/s"),
        (6e7, "B/s", "60 MB/s"),
        (60_000, "1/s", "60 k/s"),
        (45 << 20, "B", "45 MiB"),
        (3, "count", "3"),
    ],
)
def test_a_figure_is_written_in_the_unit_that_fits(value, unit, text):
    """Three digits, and the largest unit in which the figure is at least one."""
    assert describe_figure(value, unit) == text


@pytest.mark.parametrize(
    ("limit", "unit", "must", "aim"),
    [
        (AT_MOST, "s", "≤ 4 x", "≤ 2.5 x"),
        (AT_LEAST, "1/s", "≥ 60 k/s", "≥ 150 k/s"),
        (EXCESS, "s", "≤ +40 µs", "≤ +10 µs"),
        (Limit("figure", must=1.0), "s", "≤ 1 s", ""),
    ],
)
def test_a_limit_says_what_it_compares(limit, unit, must, aim):
    """Ratios have an x, an excess has a plus, and a missing aim is empty."""
    assert (limit.describe(limit.must, unit), limit.describe(limit.aim, unit)) == (must, aim)


def test_a_ratio_is_computed_where_rounds_were_not_paired():
    """The figure to the yardstick, unless the median of the rounds' ratios is given."""
    assert Measured(6.0, 3.0).quotient == 2.0
    assert Measured(6.0, 3.0, ratio=2.1).quotient == 2.1
    assert Measured(6.0).quotient is None
    assert Measured(6.0, 0.0).quotient is None


SPECS = [
    Spec("part.good", "good", "s", "raw", AT_MOST),
    Spec("part.slow", "slow", "s", "raw", AT_MOST),
    Spec("part.lost", "lost", "s", "raw", AT_MOST),
]


@pytest.fixture
def report():
    made = Report()
    made.announce(SPECS)
    made.record("part.good", Measured(2.0, 1.0))
    made.record("part.slow", Measured(5.0, 1.0, note="slow today", spread=(4.9, 5.2)))
    return made


def test_an_error_becomes_the_reason_of_what_was_not_measured(report):
    """What was measured before the error stands, the rest has failed and says why."""
    report.excuse_rest(SPECS, ValueError("broken"))
    assert report.keys(Status.FAILED) == ["part.lost"]
    assert report.reason("part.lost") == "ValueError: broken"
    assert report.missed() == ["part.slow"]


def test_a_missing_part_is_no_failure(report):
    """A row whose yardstick is not installed is unavailable, in the words of the error."""
    report.excuse_rest(SPECS, Unavailable("apache-tvm is not installed"))
    assert report.keys(Status.FAILED) == []
    assert report.keys(Status.UNAVAILABLE) == ["part.lost"]
    assert report.reason("part.lost") == "apache-tvm is not installed"


def test_a_reason_that_was_given_stands(report):
    """An error after an excuse does not replace it."""
    report.excuse("part.lost", "it hangs")
    report.excuse_rest(SPECS, ValueError("later"))
    assert report.status("part.lost") is Status.UNAVAILABLE
    assert report.reason("part.lost") == "it hangs"


def test_a_row_that_nobody_came_to_has_failed(report):
    """Rows never vanish: without figure and reason they count as failed."""
    assert report.keys(Status.FAILED) == ["part.lost"]


def test_rows_are_plain_data(report):
    """Each row survives JSON with figures, ratio, limit, verdict and note."""
    rows = json.loads(json.dumps(report.to_json()))
    assert [row["key"] for row in rows] == ["part.good", "part.slow", "part.lost"]
    assert rows[1] == {
        "key": "part.slow",
        "what": "slow",
        "unit": "s",
        "status": "measured",
        "disco": 5.0,
        "yardstick": {"name": "raw", "figure": 1.0},
        "ratio": 5.0,
        "spread": [4.9, 5.2],
        "limit": {"of": "ratio", "must": 4.0, "aim": 2.5, "at": "most"},
        "verdict": "must missed",
        "note": "slow today",
    }
    assert rows[2]["disco"] is None


def test_keys_are_unique(report):
    """A row announced twice or never is an error of the program."""
    with pytest.raises(ValueError, match=r"part\.good"):
        report.announce(SPECS[:1])
    with pytest.raises(KeyError):
        report.record("part.other", Measured(1.0))
