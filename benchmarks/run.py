"""Measures Disco beside its yardsticks in one run, and prints a table.

Each figure is measured in turn with what it is held against, so that what else
the machine does meets both. Exit code 0; 1 where a row could not be measured
although nothing it needs is missing, or with ``--check`` where a row misses what
it must reach; 2 where the arguments are wrong.

With ``--against`` another installation of Disco is measured in alternation with this one,
and the table says of each row by how much they differ, and by how much two runs of one version do.
Exit code 1 where a row is worse by more than that, or has failed in this version.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from disco_bench.against import Alternation, Installation, NoInstallation
from disco_bench.arrays import ARRAYS, measure_arrays
from disco_bench.bench import Bench
from disco_bench.collectives import COLLECTIVES, measure_collectives
from disco_bench.comparison import LEAST_RUNS
from disco_bench.control import COMMANDS, SYNC, measure_commands, measure_sync
from disco_bench.dtensor import DTENSOR, measure_dtensor
from disco_bench.embedded import EMBEDDED, measure_embedded
from disco_bench.fairness import FAIRNESS, measure_fairness
from disco_bench.files import FILES, measure_files
from disco_bench.idle import IDLE, measure_idle
from disco_bench.interrupts import INTERRUPTS, measure_interrupts
from disco_bench.llama import LLAMA, measure_llama
from disco_bench.llm import LLM, measure_llm
from disco_bench.memory import MEMORY, measure_memory
from disco_bench.meshes import MESHES, measure_meshes
from disco_bench.model import MODEL, measure_model
from disco_bench.nodes import LOST_NODES, measure_nodes
from disco_bench.numpy_names import NUMPY_NAMES, measure_numpy_names
from disco_bench.peers import PEERS, measure_peers
from disco_bench.programs import PROGRAMS, measure_programs
from disco_bench.recovery import RECOVERY, measure_recovery
from disco_bench.running import (
    RowGroup,
    describe_machine,
    exit_code,
    measure_section,
    publish,
    publish_comparison,
)
from disco_bench.saving import SAVING, measure_saving
from disco_bench.secured import SECURED, measure_secured
from disco_bench.service import SERVICE, measure_service
from disco_bench.startup import IMPORTS, SESSIONS, measure_imports, measure_sessions
from disco_bench.table import Report
from disco_bench.torch_steps import TORCH_STEPS, measure_torch_steps
from disco_bench.tracing import TRACING, measure_tracing

__all__ = ["main"]


def _measure_arrays(bench: Bench) -> None:
    """Measures host arrays on their way, and arrays of numpy's names on the workers."""
    measure_arrays(bench)
    measure_numpy_names(bench)


SECTIONS = {
    "commands": RowGroup(COMMANDS, measure_commands),
    "programs": RowGroup(PROGRAMS, measure_programs),
    "tracing": RowGroup(TRACING, measure_tracing),
    "recovery": RowGroup(RECOVERY, measure_recovery),
    "nodes": RowGroup(LOST_NODES, measure_nodes),
    "interrupts": RowGroup(INTERRUPTS, measure_interrupts),
    "sync": RowGroup(SYNC, measure_sync),
    "peers": RowGroup(PEERS, measure_peers),
    "secured": RowGroup(SECURED, measure_secured),
    "fairness": RowGroup(FAIRNESS, measure_fairness),
    "service": RowGroup(SERVICE, measure_service),
    "embedded": RowGroup(EMBEDDED, measure_embedded),
    "arrays": RowGroup((*ARRAYS, *NUMPY_NAMES), _measure_arrays),
    "files": RowGroup(FILES, measure_files),
    "saving": RowGroup(SAVING, measure_saving),
    "collectives": RowGroup(COLLECTIVES, measure_collectives),
    "dtensor": RowGroup(DTENSOR, measure_dtensor),
    "torch_steps": RowGroup(TORCH_STEPS, measure_torch_steps),
    "meshes": RowGroup(MESHES, measure_meshes),
    "model": RowGroup(MODEL, measure_model),
    "llm": RowGroup(LLM, measure_llm),
    "llama": RowGroup(LLAMA, measure_llama),
    "session": RowGroup(SESSIONS, measure_sessions),
    "import": RowGroup(IMPORTS, measure_imports),
    "memory": RowGroup(MEMORY, measure_memory),
    "idle": RowGroup(IDLE, measure_idle),
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command and returns its exit code."""
    options = _parse(arguments)
    if options.against is not None:
        return _compare(options)
    report = Report()
    machine = describe_machine()
    with Bench(report, quick=options.quick) as bench:
        for name in dict.fromkeys(options.only or SECTIONS):
            measure_section(name, SECTIONS[name], bench, report)
    where = (
        f"{machine['cores']} cores, of which {machine['load_before']:.1f} were busy before; what "
        "has no ratio is slower on a busy machine"
    )
    publish(report, machine, quick=options.quick, file=options.json, where=where)
    return exit_code(report, check=options.check)


def _compare(options: argparse.Namespace) -> int:
    """Measures this installation and another one, and returns the exit code."""
    try:
        this, other = Installation.this(), Installation.at(options.against)
    except NoInstallation as error:
        print(f"run.py: {error}", file=sys.stderr)
        return 2
    machine = describe_machine()
    versions = {"this": this.version, "other": other.version}
    print("".join(f"{name}: Disco {version}\n" for name, version in versions.items()), flush=True)
    runs = Alternation(this, other, quick=options.quick, minutes=options.minutes)
    try:
        runs.measure(list(dict.fromkeys(options.only or SECTIONS)), options.rounds)
    except KeyboardInterrupt:
        print("interrupted; what was measured until then:", file=sys.stderr)
    return publish_comparison(runs, {**machine, **versions}, quick=options.quick, file=options.json)


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
    parser.add_argument(
        "--against",
        type=Path,
        metavar="PATH",
        help="another checkout, or a Python that has another Disco: measure both in alternation",
    )
    parser.add_argument(
        "--rounds",
        type=int,
        default=3,
        help="with --against, runs of each version (3); sections with worse rows get as many more",
    )
    parser.add_argument(
        "--minutes", type=float, help="with --against, leave out runs that would end later"
    )
    options = parser.parse_args(arguments)
    if options.rounds < LEAST_RUNS:
        parser.error(f"expected at least {LEAST_RUNS} rounds, or no noise is known")
    if options.against is not None and options.check:
        parser.error("--check is about yardsticks; --against compares two versions without it")
    return options


if __name__ == "__main__":
    sys.exit(main())
