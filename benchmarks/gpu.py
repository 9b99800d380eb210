"""Measures Disco on GPUs beside cupy and NCCL in one run, and prints a table.

For machines with a GPU; `run.py` measures all that needs none. Exit code 0; 1 where
a row could not be measured although nothing it needs is missing, or with ``--check``
where a row misses what it must reach; 2 where there is no GPU to measure, or the
arguments are wrong.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from disco_bench.bench import Bench
from disco_bench.gpu import (
    COPIES,
    LAUNCHES,
    MODEL,
    Gpus,
    find_gpus,
    measure_copies,
    measure_launches,
    measure_model,
)
from disco_bench.gpu_collectives import ALONE, TOGETHER, measure_alone, measure_together
from disco_bench.running import (
    RowGroup,
    describe_machine,
    exit_code,
    measure_section,
    publish,
    save,
)
from disco_bench.table import Report, Unavailable

__all__ = ["main"]

_NAMES = ("launch", "copy", "alone", "together", "model")


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command and returns its exit code."""
    options = _parse(arguments)
    try:
        gpus = find_gpus()
    except Unavailable as error:
        print(f"gpu.py: {error} (`disco doctor --gpu` says more)", file=sys.stderr)
        return 2
    report, sections = Report(), _sections(gpus)
    machine = {**describe_machine(), "gpus": gpus._asdict()}
    with Bench(report, quick=options.quick) as bench:
        for name in dict.fromkeys(options.only or _NAMES):
            measure_section(name, sections[name], bench, report)
            # Whoever ends this program has the sections that were measured.
            save(report, machine, quick=options.quick, file=options.json)
    where = f"{gpus.number} of {gpus.name}, cupy {gpus.cupy}, {machine['cores']} cores"
    publish(report, machine, quick=options.quick, file=options.json, where=where)
    return exit_code(report, check=options.check)


def _sections(gpus: Gpus) -> dict[str, RowGroup]:
    """What there is to measure, by the names in `_NAMES`."""
    plan = (
        (LAUNCHES, measure_launches),
        (COPIES, measure_copies),
        (ALONE, measure_alone),
        (TOGETHER, measure_together),
        (MODEL, measure_model),
    )
    return {
        name: RowGroup(specs, partial(measure, gpus))
        for name, (specs, measure) in zip(_NAMES, plan, strict=True)
    }


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="benchmarks/gpu.py", description="Measures Disco on GPUs beside cupy and NCCL."
    )
    parser.add_argument("--only", action="append", choices=_NAMES, help="a part of it; repeatable")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the table there as JSON")
    parser.add_argument("--quick", action="store_true", help="only show that everything works")
    parser.add_argument(
        "--check", action="store_true", help="exit with 1 where a must does not hold"
    )
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
