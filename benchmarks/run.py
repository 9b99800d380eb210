"""Measures Disco beside its yardsticks in one run, and prints a table.

Each figure is measured in turn with what it is held against, so that what else
the machine does meets both. Exit code 0; 1 where a row could not be measured
although nothing it needs is missing, or with ``--check`` where a row misses what
it must reach; 2 where the arguments are wrong.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from disco_bench.arrays import ARRAYS, measure_arrays
from disco_bench.bench import Bench
from disco_bench.collectives import COLLECTIVES, measure_collectives
from disco_bench.control import COMMANDS, SYNC, measure_commands, measure_sync
from disco_bench.embedded import EMBEDDED, measure_embedded
from disco_bench.memory import MEMORY, measure_memory
from disco_bench.model import MODEL, measure_model
from disco_bench.programs import PROGRAMS, measure_programs
from disco_bench.render import print_report
from disco_bench.startup import IMPORTS, SESSIONS, measure_imports, measure_sessions
from disco_bench.table import Report, Spec, Status

from disco_client import __version__
from disco_server.settings import cpu_cores

__all__ = ["main"]


class Section(NamedTuple):
    """Rows that are measured together.

    Attributes:
        specs: The rows.
        measure: Measures and records them.
    """

    specs: Sequence[Spec]
    measure: Callable[[Bench], None]


SECTIONS = {
    "commands": Section(COMMANDS, measure_commands),
    "programs": Section(PROGRAMS, measure_programs),
    "sync": Section(SYNC, measure_sync),
    "embedded": Section(EMBEDDED, measure_embedded),
    "arrays": Section(ARRAYS, measure_arrays),
    "collectives": Section(COLLECTIVES, measure_collectives),
    "model": Section(MODEL, measure_model),
    "session": Section(SESSIONS, measure_sessions),
    "import": Section(IMPORTS, measure_imports),
    "memory": Section(MEMORY, measure_memory),
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command and returns its exit code."""
    options = _parse(arguments)
    report = Report()
    machine = _machine()
    with Bench(report, quick=options.quick) as bench:
        for name in dict.fromkeys(options.only or SECTIONS):
            _measure(name, bench, report)
    print_report(report)
    print(
        f"{machine['cores']} cores, of which {machine['load_before']:.1f} were busy before; what "
        "has no ratio is slower on a busy machine"
    )
    if options.quick:
        print("measured with --quick: the figures only show that everything works")
    if options.json is not None:
        content = {**machine, "quick": options.quick, "rows": report.to_json()}
        options.json.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
    return _exit_code(report, check=options.check)


def _measure(name: str, bench: Bench, report: Report) -> None:
    section = SECTIONS[name]
    report.announce(section.specs)
    print(f"measuring {name} ...", file=sys.stderr, flush=True)
    try:
        section.measure(bench)
    except Exception as error:  # noqa: BLE001  (one section's trouble is not that of the others)
        report.excuse_rest(section.specs, error)
        if any(report.status(spec.key) is Status.FAILED for spec in section.specs):
            traceback.print_exc()


def _exit_code(report: Report, *, check: bool) -> int:
    failed, missed = report.keys(Status.FAILED), report.missed()
    if failed:
        print(f"not measured: {', '.join(failed)}", file=sys.stderr)
    if missed:
        print(f"missed: {', '.join(missed)}", file=sys.stderr)
    return 1 if failed or (check and missed) else 0


def _machine() -> dict[str, Any]:
    """Where and with what is measured, and how many processes run there already."""
    return {
        "disco": __version__,
        "python": platform.python_version(),
        "system": platform.platform(),
        "cores": cpu_cores(),
        "load_before": os.getloadavg()[0],
    }


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="benchmarks/run.py", description="Measures Disco beside its yardsticks."
    )
    parser.add_argument(
        "--only", action="append", choices=list(SECTIONS), help="a part of it; repeatable"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the table there as JSON")
    parser.add_argument("--quick", action="store_true", help="only show that everything works")
    parser.add_argument(
        "--check", action="store_true", help="exit with 1 where a must does not hold"
    )
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
