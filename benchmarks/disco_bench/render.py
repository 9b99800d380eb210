"""The table as a person reads it."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import TYPE_CHECKING

from rich.table import Table
from rich.text import Text

from disco_bench.table import LimitOutcome, Report, Spec, Status, describe_figure
from disco_server.cli import output

if TYPE_CHECKING:
    from rich.console import Console

__all__ = ["print_report"]

_STYLES = {
    LimitOutcome.AIM: "bold green",
    LimitOutcome.MUST: "green",
    LimitOutcome.MISSED: "bold red",
    LimitOutcome.NONE: "dim",
    LimitOutcome.UNKNOWN: "yellow",
}


def print_report(report: Report, console: Console | None = None) -> None:
    """Prints one line a row, and below it what must be known about some of them.

    Only a terminal has an edge: written anywhere else, no line is folded.
    """
    out = console or output.console()
    table = Table(box=None, pad_edge=False, header_style="bold")
    for heading in ("what", "Disco", "yardstick", "its figure", "ratio", "must", "aim", "verdict"):
        right = heading in ("Disco", "its figure", "ratio", "must", "aim")
        table.add_column(heading, justify="right" if right else "left", no_wrap=right)
    section = ""
    for spec in report.specs:
        current = _section(spec)
        if section and current != section:
            table.add_section()
        section = current
        table.add_row(*_cells(report, spec))
    out.print(table)
    for keys, note in _notes(report):
        out.print(Text.assemble((f"{keys}: ", "bold"), note), soft_wrap=True)


def _notes(report: Report) -> Iterator[tuple[str, str]]:
    """What must be known about rows; once where all rows of a section have the same."""
    for section, group in itertools.groupby(report.specs, key=_section):
        notes: dict[str, str] = {}
        for spec in group:
            measured = report.measured(spec.key)
            reason = "" if measured else f"not measured: {report.reason(spec.key)}"
            notes[spec.key] = measured.note if measured else reason
        if len(notes) > 1 and len(set(notes.values())) == 1:
            notes = {section: next(iter(notes.values()))}
        yield from ((key, note) for key, note in notes.items() if note)


def _section(spec: Spec) -> str:
    return spec.key.partition(".")[0]


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
