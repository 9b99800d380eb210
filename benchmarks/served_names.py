"""Counts the names of numpy that distributed tensors serve, section by section.

A name counts where a call of it with distributed arguments agrees with numpy: the calls stand in
``tests/support/numpy_examples.py``, and the names, with the sections of Heat's coverage table,
in ``served_names.txt`` beside this file.

Exit code 0; 1 with ``--at-least`` where fewer of the first section are served.
"""

from __future__ import annotations

import argparse
import sys
import warnings
from collections.abc import Sequence
from pathlib import Path

from disco_client import ThreadedSession

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent / "tests" / "support"))

from numpy_examples import outcome  # noqa: E402  (found by the path above)

__all__ = ["main", "sections"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command and returns its exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--workers", type=int, default=3, help="how many compute; 3")
    parser.add_argument("--placement", default="S[0]", help="of the arguments; S[0]")
    parser.add_argument("--names", action="store_true", help="print each name, and why not")
    parser.add_argument("--at-least", type=int, default=0, help="of the first section")
    options = parser.parse_args(arguments)
    warnings.simplefilter("ignore")
    served: list[int] = []
    with ThreadedSession(options.workers) as session:
        for section, names in sections().items():
            found = {name: outcome(name, session, options.placement) for name in names}
            served.append(sum(said is None for said in found.values()))
            print(f"{section}: {served[-1]} of {len(names)}")
            for name, said in found.items() if options.names else ():
                print(f"  {'-' if said else '+'} {name}{f': {said}' if said else ''}")
    return int(served[0] < options.at_least)


def sections() -> dict[str, list[str]]:
    """The names by their sections."""
    found: dict[str, list[str]] = {}
    names: list[str] = []
    for line in (HERE / "served_names.txt").read_text().splitlines():
        if line.startswith("## "):
            names = found.setdefault(line.removeprefix("## "), [])
        elif line and not line.startswith("#"):
            names.append(line)
    return found


if __name__ == "__main__":
    sys.exit(main())
