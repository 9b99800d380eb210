"""Measures how the cost of a cluster grows with its nodes and its sessions.

A real controller and a real client work with pretended nodes, which answer as a worker daemon
does and run no ranks: so a thousand of them fit on a machine, and what is measured is what the
controller and the client do. Times are those of the processor, each the least of several.

Exit code 0; 1 with ``--check`` where a quantity has grown by more than its law; 2 where the
arguments are wrong.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from disco_bench.running import describe_machine
from disco_scale import recording
from disco_scale.measure import (
    NODE_QUANTITIES,
    SESSION_QUANTITIES,
    WAITING_QUANTITIES,
    Figures,
    Quantity,
    grown,
    measure_nodes,
    measure_sessions,
    measure_waiting,
)

__all__ = ["main"]

_NODES = (1, 4, 16, 64, 256, 1024)
_SESSIONS = (1, 10, 100, 1000)
_QUICK_NODES = (16, 64)
_SLOTS = (1, 32)
_QUANTITIES = {
    "nodes": NODE_QUANTITIES,
    "sessions": SESSION_QUANTITIES,
    "waiting": WAITING_QUANTITIES,
}
"""By the first word of a table's name."""

TOLERANCE = {True: 0.05, False: 0.2}
"""By how much an exponent may exceed its law: of what is counted, and of times and memory."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command and returns its exit code."""
    options = _parse(arguments)
    if options.record:
        recording.write(asyncio.run(recording.record_real()))
        return 0
    machine = describe_machine()
    frames = options.frames == "on"
    tables: dict[str, dict[int, Figures]] = {}
    for slots in _SLOTS if options.slots is None else options.slots:
        chosen = _QUICK_NODES if options.quick else _NODES
        sizes = [size for size in chosen if size <= options.most]
        tables[f"nodes of {slots}"] = _measure(
            f"nodes of {slots}",
            sizes,
            lambda size, slots=slots: measure_nodes(size, slots, frames=frames),
        )
    if not options.quick and not options.no_sessions:
        sizes = [size for size in _SESSIONS if size <= options.most]
        tables["sessions"] = _measure(
            "sessions", sizes, lambda size: measure_sessions(size, frames=frames)
        )
        for name, held_back in (("waiting for slots", False), ("waiting for a quota", True)):
            tables[name] = _measure(
                name,
                sizes,
                lambda size, held_back=held_back: measure_waiting(
                    size, held_back=held_back, frames=frames
                ),
            )
    broken: list[tuple[Quantity, str]] = []
    for name, figures in tables.items():
        quantities = _QUANTITIES[name.partition(" ")[0]]
        _print_table(name, figures, quantities)
        broken += _broken(name, figures, quantities)
    if options.json is not None:
        data = {"frames": options.frames, **_as_data(machine, tables)}
        options.json.write_text(json.dumps(data, indent=1) + "\n", "utf-8")
    carried = "frames, as by default" if frames else "gRPC alone"
    print(f"all streams were carried by {carried}")
    print(f"{machine['cores']} cores, of which {machine['load_before']:.1f} were busy before")
    for _, line in broken:
        print(line, file=sys.stderr)
    # Between two small sizes, times depend on what else the machine does.
    deciding = [each for each, _ in broken if each.counted or not options.quick]
    return 1 if deciding and options.check else 0


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="scale.py", description=__doc__)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures as data")
    parser.add_argument(
        "--quick", action="store_true", help="16 and 64 nodes alone, for their exponents"
    )
    parser.add_argument(
        "--check", action="store_true", help="exit code 1 where an exponent leaves its law"
    )
    parser.add_argument(
        "--slots", type=int, action="append", metavar="N", help="slots a node; 1 and 32"
    )
    parser.add_argument(
        "--most", type=int, default=1024, metavar="N", help="leave out what is larger"
    )
    parser.add_argument(
        "--record", action="store_true", help="only record anew what a real worker daemon says"
    )
    parser.add_argument(
        "--frames",
        choices=("on", "off"),
        default="on",
        help="off: the controller takes none, so that gRPC carries all streams",
    )
    parser.add_argument("--no-sessions", action="store_true", help="measure nodes alone")
    return parser.parse_args(arguments)


def _measure(
    name: str, sizes: Sequence[int], measure: Callable[[int], Figures]
) -> dict[int, Figures]:
    found: dict[int, Figures] = {}
    for size in sizes:
        print(f"measuring {name}: {size} ...", file=sys.stderr, flush=True)
        found[size] = measure(size)
    return found


def _print_table(name: str, figures: Mapping[int, Figures], quantities: Sequence[Quantity]) -> None:
    sizes = sorted(figures)
    wide = max(len(f"{each.what}, {each.unit}") for each in quantities)
    heads = "".join(f"{size:>10}" for size in sizes)
    print(f"\n{name:<{wide}}{heads}{'exponent':>10}{'law':>6}")
    for each in quantities:
        cells = "".join(f"{figures[size][each.key]:>10.3g}" for size in sizes)
        power = f"{grown(figures, each):>10.2f}" if len(sizes) > 1 else " " * 10
        print(f"{f'{each.what}, {each.unit}':<{wide}}{cells}{power}{each.law:>6.1f}")


def _broken(
    name: str, figures: Mapping[int, Figures], quantities: Sequence[Quantity]
) -> list[tuple[Quantity, str]]:
    """The quantities that have grown by more than their law, each with a line that says so."""
    if len(figures) < 2:  # noqa: PLR2004  (an exponent is between two sizes)
        return []
    found: list[tuple[Quantity, str]] = []
    for each in quantities:
        if (power := grown(figures, each)) > each.law + TOLERANCE[each.counted]:
            line = (
                f"{name}: {each.what} grows with the power {power:.2f} of the size; "
                f"expected at most {each.law:g}"
            )
            found.append((each, line))
    return found


def _as_data(
    machine: Mapping[str, Any], tables: Mapping[str, Mapping[int, Figures]]
) -> dict[str, Any]:
    return {
        **machine,
        "tables": {
            name: {str(size): figures[size] for size in sorted(figures)}
            for name, figures in tables.items()
        },
    }


if __name__ == "__main__":
    sys.exit(main())
