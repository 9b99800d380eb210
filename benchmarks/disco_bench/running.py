"""What the programs that measure have in common: sections, where they run, how they end."""

from __future__ import annotations

import json
import os
import platform
import statistics
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from disco_bench.comparison import RowOutcome
from disco_bench.render import print_comparison, print_report, print_row
from disco_bench.table import Report, Spec, Status
from disco_client import __version__
from disco_server.settings import cpu_cores

if TYPE_CHECKING:
    from pathlib import Path

    from disco_bench.against import Alternation
    from disco_bench.bench import Bench

__all__ = [
    "RowGroup",
    "describe_machine",
    "exit_code",
    "measure_section",
    "publish",
    "publish_comparison",
    "save",
]


class RowGroup(NamedTuple):
    """Rows that are measured together.

    Attributes:
        specs: The rows.
        measure: Measures and records them.
    """

    specs: Sequence[Spec]
    measure: Callable[[Bench], None]


def measure_section(name: str, section: RowGroup, bench: Bench, report: Report) -> None:
    """Measures a section, and prints its rows as they come; an error is noted at its rows."""
    report.announce(section.specs)
    report.on_row = partial(print_row, report)
    print(f"measuring {name} ...", file=sys.stderr, flush=True)
    try:
        section.measure(bench)
    except Exception as error:  # noqa: BLE001  (an error of one section does not affect the others)
        report.excuse_rest(section.specs, error)
        if any(report.status(spec.key) is Status.FAILED for spec in section.specs):
            traceback.print_exc()


def describe_machine() -> dict[str, Any]:
    """Where and with what is measured, and how many processes run there already."""
    return {
        "disco": __version__,
        "python": platform.python_version(),
        "system": platform.platform(),
        "cores": cpu_cores(),
        "load_before": os.getloadavg()[0],
    }


def publish(
    report: Report, machine: Mapping[str, Any], *, quick: bool, file: Path | None, where: str
) -> None:
    """Prints the table and writes it as data.

    Args:
        report: The rows.
        machine: Where they were measured; goes into the data.
        quick: Whether they only show that everything works.
        file: Where to write the data; None for nowhere.
        where: What a reader must know about the machine.
    """
    print_report(report)
    print(where)
    if quick:
        print("measured with --quick: the figures only show that everything works")
    save(report, machine, quick=quick, file=file)


def save(report: Report, machine: Mapping[str, Any], *, quick: bool, file: Path | None) -> None:
    """Writes the rows as data; see `publish`."""
    if file is not None:
        content = {**machine, "quick": quick, "rows": report.to_json()}
        file.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


def exit_code(report: Report, *, check: bool) -> int:
    """0, or 1 where a row has failed or, with ``check``, misses what it must reach."""
    failed, missed = report.keys(Status.FAILED), report.missed()
    if failed:
        print(f"not measured: {', '.join(failed)}", file=sys.stderr)
    if missed:
        print(f"missed: {', '.join(missed)}", file=sys.stderr)
    return 1 if failed or (check and missed) else 0


def publish_comparison(
    runs: Alternation, machine: Mapping[str, Any], *, quick: bool, file: Path | None
) -> int:
    """Prints and writes how two versions compare, and returns the exit code.

    Args:
        runs: Those of the two.
        machine: Where and of what they were; goes into the data.
        quick: Whether they were short.
        file: Where to write the data; None for nowhere.

    Returns:
        0, or 1 where a row is worse than in the other version, or has failed in this one.
    """
    comparison = runs.comparison
    print_comparison(comparison)
    if noises := comparison.noises():
        half, most = statistics.median(noises), noises[-1]
        print(f"two runs of one version differ by up to {half:.0%} in half of the rows", end=", ")
        print(f"and by up to {most:.0%} in the others; what is smaller cannot be seen")
    if quick:
        print("short runs (--quick): what is not within noise is worth a full one")
    if runs.left_out:
        left_out = ", ".join(f"{name} {count}" for name, count in runs.left_out.items())
        print(f"rounds for which there was no time: {left_out}")
    if file is not None:
        content = {**machine, "quick": quick, "rows": comparison.to_json()}
        file.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
    worse, failed = comparison.keys(RowOutcome.WORSE), comparison.keys(RowOutcome.FAILED)
    if worse:
        print(f"worse: {', '.join(worse)}", file=sys.stderr)
    if failed:
        print(f"not measured: {', '.join(failed)}", file=sys.stderr)
    return 1 if worse or failed else 0
