"""Which rows of two versions are worse."""

from __future__ import annotations

import io

import pytest
from disco_bench.comparison import ComparedRow, Comparison, RowOutcome, noise_of
from disco_bench.render import print_comparison
from rich.console import Console


def row(figure, key="sync.all", unit="s", status="measured", what="sync", note=""):
    """A row as `run.py --json` writes it."""
    figures = {"disco": figure, "status": status, "note": note}
    return {"key": key, "what": what, "unit": unit, **figures}


@pytest.mark.parametrize(
    ("unit", "ours", "theirs", "outcome"),
    [
        # The medians 12 and 10 differ by 2, and the runs of one version by 1.
        ("s", [11.5, 12, 12.5], [9.5, 10, 10.5], RowOutcome.WORSE),
        ("1/s", [11.5, 12, 12.5], [9.5, 10, 10.5], RowOutcome.BETTER),
        ("B/s", [9.5, 10, 10.5], [11.5, 12, 12.5], RowOutcome.WORSE),
        ("B", [9.5, 10, 10.5], [11.5, 12, 12.5], RowOutcome.BETTER),
        # The noise of either version counts.
        ("s", [12, 12, 12], [8, 10, 11], RowOutcome.SAME),
        ("s", [11, 12, 14], [10, 10, 10], RowOutcome.SAME),
        # What is counted has no noise.
        ("count", [3, 3], [2, 2], RowOutcome.WORSE),
        ("core", [0.0, 0.0], [0.0, 0.0], RowOutcome.SAME),
        ("core", [0.02, 0.02], [0.0, 0.0], RowOutcome.WORSE),
        # One run says nothing of the noise.
        ("s", [12], [1], RowOutcome.UNKNOWN),
    ],
)
def test_a_row_is_worse_where_versions_differ_by_more_than_runs_do(unit, ours, theirs, outcome):
    """Less is better but for rates, and a difference within the noise says nothing."""
    compared = ComparedRow("a.b", "a row", unit, list(map(float, ours)), list(map(float, theirs)))
    assert compared.outcome is outcome


def test_noise_is_what_two_runs_of_one_version_differ_by():
    """The larger range of the two versions; how far apart the versions are is no part of it."""
    assert noise_of([1.0, 2.0], [10.0, 10.5, 12.5]) == 2.5
    compared = ComparedRow("a.b", "a row", "s", [1.0, 2.0], [10.0, 10.5, 12.5])
    assert compared.noise == 2.5
    assert compared.ratio == pytest.approx(1.5 / 10.5)
    assert ComparedRow("a.b", "a row", "s", [1.0], [0.0]).ratio is None


def test_runs_add_up():
    """Each run of a section adds a figure of each version to its rows."""
    comparison = Comparison()
    comparison.add([row(5.0), row(1.0, "sync.one")], [row(1.0), row(1.0, "sync.one")])
    assert comparison.suspects() == set()
    comparison.add([row(5.5), row(1.5, "sync.one")], [row(1.0), row(1.5, "sync.one")])
    assert comparison.keys(RowOutcome.WORSE) == ["sync.all"]
    assert comparison.suspects() == {"sync"}
    assert comparison.keys(RowOutcome.SAME) == ["sync.one"]
    assert comparison.noises() == pytest.approx([0.5 / 5.25, 0.5 / 1.25])
    assert comparison.to_json()[0] == {
        "key": "sync.all",
        "what": "sync",
        "unit": "s",
        "this": [5.0, 5.5],
        "other": [1.0, 1.0],
        "ratio": 5.25,
        "noise": 0.5,
        "verdict": "worse",
        "note": "",
    }


def test_what_cannot_be_compared_says_why():
    """A row that one version lacks, measures otherwise or has not measured is no worse row."""
    comparison = Comparison()
    for _ in range(2):
        comparison.add(
            [
                row(1.0, "a.new"),
                row(1.0, "a.changed"),
                row(None, "a.peer", status="unavailable", note="torch is not installed"),
                row(1.0, "a.theirs"),
            ],
            [
                row(1.0, "a.changed", what="something else"),
                row(1.0, "a.peer"),
                row(None, "a.theirs", status="failed", note="it hung"),
                row(1.0, "a.old"),
            ],
        )
        comparison.add([row(1.0, "b.all")], (), "the other has no section b")
    assert {each.key: each.note for each in comparison.rows} == {
        "a.new": "the other version has no such row",
        "a.changed": "the other version measures 'something else' in s",
        "a.peer": "torch is not installed",
        "a.theirs": "the other version: it hung",
        "a.old": "this version has no such row",
        "b.all": "the other has no section b",
    }
    assert comparison.keys(RowOutcome.UNKNOWN) == [each.key for each in comparison.rows]


def test_what_fails_in_this_version_is_named():
    """A run that failed counts, whatever the others found; so does a section that cannot be run."""
    comparison = Comparison()
    for _ in range(2):
        comparison.add([row(1.0)], [row(1.0)])
    comparison.add([row(None, status="failed", note="ValueError: no")], [row(1.0)])
    comparison.add((), [row(1.0, "llm.plain")])
    comparison.fail("llm", "ended with -9")
    assert comparison.keys(RowOutcome.FAILED) == ["sync.all", "llm"]
    assert [each.note for each in comparison.rows] == ["ValueError: no", "ended with -9"]


def test_the_table_shows_ratio_and_noise():
    """Both figures, their ratio, the noise as a share, the runs and the verdict stand in a row."""
    comparison = Comparison()
    comparison.add([row(0.012)], [row(0.010)])
    comparison.add([row(0.012)], [row(0.011)])
    comparison.add([row(1.0, "b.new")], [])
    out = io.StringIO()
    print_comparison(comparison, Console(file=out, width=120))
    heading, first, *_ = out.getvalue().splitlines()
    assert heading.split() == ["what", "this", "other", "this/other", "noise", "runs", "verdict"]
    assert first.split() == ["sync", "12", "ms", "10.5", "ms", "1.14", "x", "9.5%", "2", "worse"]
    assert "b.new: the other version has no such row" in out.getvalue()
