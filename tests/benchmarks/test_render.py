"""The table for people."""

from __future__ import annotations

import io

from disco_bench.bench import Bench
from disco_bench.render import print_report
from disco_bench.running import RowGroup, measure_section
from disco_bench.table import Limit, Measured, Report, Spec, Unavailable
from rich.console import Console


def test_every_row_is_printed():
    """Figures, limits, notes, and the reason of a row that could not be measured."""
    report = Report()
    limit = Limit("ratio", must=4.0, aim=2.5)
    report.announce(
        [Spec("a.one", "first", "s", "raw", limit), Spec("b.two", "second", "B/s", "raw", limit)]
    )
    report.record("a.one", Measured(3e-3, 1e-3, note="remark"))
    report.excuse("b.two", "no library")
    out = io.StringIO()
    print_report(report, Console(file=out, width=150))
    text = out.getvalue()
    for part in ("3 ms", "1 ms", "3 x", "≤ 4 x", "≤ 2.5 x", "must holds", "a.one: remark"):
        assert part in text
    assert "b.two: not measured: no library" in text


def test_each_row_is_printed_as_it_comes(capsys):
    """Before the next one is measured; the reason of one without a figure is said as well."""
    report, seen = Report(), []
    limit = Limit("ratio", must=4.0)
    specs = [Spec("a.one", "first", "s", "raw", limit), Spec("a.two", "second", "s")]

    def measure(bench):
        bench.record("a.one", Measured(3e-3, 1e-3, note="remark"))
        seen.append(capsys.readouterr().err)
        raise Unavailable("no library")

    with Bench(report) as bench:
        measure_section("a", RowGroup(specs, measure), bench, report)
    assert seen[0].splitlines()[1:] == [
        "  first: 3 ms · raw 1 ms · 3 x · ≤ 4 x · must holds · remark"
    ]
    assert capsys.readouterr().err == "  second: not measured: no library\n"


def test_what_holds_for_a_whole_section_is_said_once():
    """Rows without figures for the same reason do not repeat it."""
    report = Report()
    report.announce([Spec(f"{key}.{n}", "row", "s") for key in ("one", "two") for n in range(3)])
    report.excuse_rest(report.specs[:3], Unavailable("no library"))
    for spec in report.specs[3:]:
        report.record(spec.key, Measured(1.0, note="remark" if spec.key == "two.1" else ""))
    out = io.StringIO()
    print_report(report, Console(file=out, width=150))
    notes = [line for line in out.getvalue().splitlines() if ": " in line]
    assert notes == ["one: not measured: no library", "two.1: remark"]


def test_nothing_is_folded_where_there_is_no_terminal(capsys):
    """However wide its figures make the table, a row is one line with its whole name."""
    report = Report()
    what = "(S[0], R) @ (R, S[1]), 64 KiB, one and its wait"
    wide = Limit("excess", must=123.4e-6, aim=123.4e-6)
    report.announce([Spec("a.one", what, "s"), Spec("a.two", "other", "s", "yardstick " * 9, wide)])
    report.record("a.one", Measured(3e-3))
    report.record("a.two", Measured(3e-3, 1e-3))
    print_report(report)
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 3
    assert what in lines[1]
    assert "yardstick " * 9 in lines[2]
