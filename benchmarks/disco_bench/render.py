"""The table as a person reads it."""

from __future__ import annotations

import itertools
import statistics
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from rich.table import Table
from rich.text import Text

from disco_bench.comparison import ComparedRow, Comparison, RowOutcome
from disco_bench.table import LimitOutcome, Report, Spec, Status, describe_figure
from disco_server.cli import output

if TYPE_CHECKING:
    from rich.console import Console

__all__ = ["print_comparison", "print_report", "print_row"]

_STYLES = {
    LimitOutcome.AIM: "bold green",
    LimitOutcome.MUST: "green",
    LimitOutcome.MISSED: "bold red",
    LimitOutcome.NONE: "dim",
    LimitOutcome.UNKNOWN: "yellow",
}
_COMPARED_STYLES = {
    RowOutcome.WORSE: "bold red",
    RowOutcome.BETTER: "bold green",
    RowOutcome.SAME: "green",
    RowOutcome.FAILED: "bold red",
    RowOutcome.UNKNOWN: "yellow",
}


def print_report(report: Report, console: Console | None = None) -> None:
    """Prints one line a row, and below it what must be known about some of them.

    Only a terminal has an edge: written anywhere else, no line is folded.
    """
    out = console or output.console()
    headings = ("what", "Disco", "yardstick", "its figure", "ratio", "must", "aim", "verdict")
    table = _table(headings, ("what", "yardstick", "verdict"))
    _fill(table, ((spec.key, _cells(report, spec)) for spec in report.specs))
    out.print(table)
    found = {spec.key: _note(report, spec) for spec in report.specs}
    _print_notes(out, found)


def print_row(report: Report, key: str) -> None:
    """Prints on standard error what is known of one row, for those who wait for the others."""
    spec = next(each for each in report.specs if each.key == key)
    what, figure, yardstick, its_figure, ratio, must, _, verdict = map(str, _cells(report, spec))
    beside = f"{yardstick} {its_figure}" if its_figure else ""
    judged = (must, verdict) if spec.limit and figure else ()
    found = (figure, beside, ratio, *judged, _note(report, spec))
    print(f"  {what}: {' · '.join(filter(None, found))}", file=sys.stderr, flush=True)


def print_comparison(comparison: Comparison, console: Console | None = None) -> None:
    """Prints one line a row of two versions, and below it why some could not be compared."""
    out = console or output.console()
    headings = ("what", "this", "other", "this/other", "noise", "runs", "verdict")
    table = _table(headings, ("what", "verdict"))
    _fill(table, ((row.key, _compared_cells(row)) for row in comparison.rows))
    out.print(table)
    _print_notes(out, {row.key: row.note for row in comparison.rows})


def _table(headings: Iterable[str], left: Iterable[str]) -> Table:
    """A table without rows yet; columns of figures are set to the right."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for heading in headings:
        right = heading not in left
        table.add_column(heading, justify="right" if right else "left", no_wrap=right)
    return table


def _fill(table: Table, rows: Iterable[tuple[str, Sequence[str | Text]]]) -> None:
    """Adds rows, with a space between two sections."""
    for number, (_, group) in enumerate(itertools.groupby(rows, key=lambda row: _section(row[0]))):
        if number:
            table.add_section()
        for _, cells in group:
            table.add_row(*cells)


def _note(report: Report, spec: Spec) -> str:
    measured = report.measured(spec.key)
    reason = "" if measured else f"not measured: {report.reason(spec.key)}"
    return measured.note if measured else reason


def _print_notes(out: Console, notes: Mapping[str, str]) -> None:
    """Prints what must be known about rows; once where all rows of a section have the same."""
    for section, group in itertools.groupby(notes, key=_section):
        keys = list(group)
        found = {key: notes[key] for key in keys}
        if len(keys) > 1 and len(set(found.values())) == 1:
            found = {section: notes[keys[0]]}
        for key, note in found.items():
            if note:
                out.print(Text.assemble((f"{key}: ", "bold"), note), soft_wrap=True)


def _section(key: str) -> str:
    return key.partition(".")[0]


def _cells(report: Report, spec: Spec) -> list[str | Text]:
    measured, limit, outcome = report.measured(spec.key), spec.limit, report.outcome(spec.key)
    figure = yardstick = ratio = ""
    if measured is not None:
        figure = describe_figure(measured.figure, spec.unit)
        if measured.yardstick is not None:
            yardstick = describe_figure(measured.yardstick, spec.unit)
        if measured.quotient is not None:
            ratio = f"{measured.quotient:.3g} x"
    said = "FAILED" if report.status(spec.key) is Status.FAILED else outcome.value
    must = limit.describe(limit.must, spec.unit) if limit else ""
    aim = limit.describe(limit.aim, spec.unit) if limit else ""
    return [
        spec.what,
        figure,
        spec.yardstick,
        yardstick,
        ratio,
        must,
        aim,
        Text(said, style=_STYLES[outcome]),
    ]


def _compared_cells(row: ComparedRow) -> list[str | Text]:
    ours, theirs = (
        describe_figure(statistics.median(figures), row.unit) if figures else ""
        for figures in (row.ours, row.theirs)
    )
    ratio = "" if row.ratio is None else f"{row.ratio:.3g} x"
    outcome = row.outcome
    said = Text(outcome.value, style=_COMPARED_STYLES[outcome])
    return [row.what, ours, theirs, ratio, _noise(row), str(len(row.ours)), said]


def _noise(row: ComparedRow) -> str:
    """The noise as a share of the other's figure, or as it is where that is zero."""
    if row.noise is None:
        return ""
    theirs = statistics.median(row.theirs)
    return f"{row.noise / theirs:.1%}" if theirs else describe_figure(row.noise, row.unit)
