"""Counts the names of numpy that distributed tensors serve, section by section.

A name counts where a call of it with distributed arguments agrees with numpy: the calls stand in
``tests/support/numpy_examples.py``, and the names, with the sections of Heat's coverage table,
in ``served_names.txt`` beside this file.

With ``--page`` it writes docs/numpy-names.md instead: of each name where the result lies and what
moves, or what to do instead.

Exit code 0; 1 with ``--at-least`` where fewer of the first section are served.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
import warnings
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

from disco_client import ThreadedSession
from disco_client.distributed import DTensor
from disco_client.distributed.numpy_refused import REFUSED

HERE = Path(__file__).parent
PAGE = HERE.parent / "docs" / "numpy-names.md"
sys.path.insert(0, str(HERE.parent / "tests" / "support"))

from numpy_examples import EXAMPLES, example_arrays, outcome  # noqa: E402  (found by the path above)

__all__ = ["main", "page", "sections"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command and returns its exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--workers", type=int, default=3, help="how many compute; 3")
    parser.add_argument("--placement", default="S[0]", help="of the arguments; S[0]")
    parser.add_argument("--names", action="store_true", help="print each name, and why not")
    parser.add_argument("--at-least", type=int, default=0, help="of the first section")
    parser.add_argument("--page", action="store_true", help="write docs/numpy-names.md")
    options = parser.parse_args(arguments)
    warnings.simplefilter("ignore")
    if options.page:
        PAGE.write_text(page())
        return 0
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


INTRODUCTION = """# numpy's names

What `session.numpy` has of numpy ([arrays.md](arrays.md)), and what to do instead of the rest.
The second column says where the result of a call lies whose operands are split along their first
axis, on three workers: `S[0]` is a split, `R` are copies, `P` partial values, and numbers say
which parts are given. The third says what moves for that, where the operands are small: a matrix
has 6 x 4 numbers of 8 bytes. `python benchmarks/served_names.py --page` writes this page.

"""


def page() -> str:
    """The page of all names, as Markdown."""
    rows = ["| name | the result lies | what moves |", "| --- | --- | --- |"]
    with ThreadedSession(3) as session:
        arrays = {
            key: session.distribute(each, placement="S[0]")
            for key, each in example_arrays().items()
        }
        for name in sorted(EXAMPLES):
            with contextlib.suppress(AttributeError):  # which this numpy lacks
                made = EXAMPLES[name](session.numpy, SimpleNamespace(**arrays))
                rows.append(f"| `{name}` | {' | '.join(_lies(made))} |")
    refused = ["| name | instead |", "| --- | --- |"]
    refused += [f"| `{name}` | {_escaped(REFUSED[name])} |" for name in sorted(REFUSED)]
    parts = [INTRODUCTION, "## Served\n\n", "\n".join(rows), "\n\n## Refused\n\n"]
    return "".join([*parts, "\n".join(refused), "\n"])


def _lies(made: Any) -> tuple[str, str]:
    """Where a result lies and what moved for it, as cells of a table."""
    is_several = isinstance(made, (list, tuple))
    results: list[Any] = list(cast("Any", made)) if is_several else [made]
    first, several = results[0] if results else None, len(results)
    if not isinstance(first, DTensor):
        return "at the client", ""
    lies = str(first.placement) + (f", {several} of them" if several > 1 else "")
    kinds = [
        str(step).split(" along ")[0].split(":")[0]
        for _, plan in first.origin.moves
        for step in plan.steps
    ]
    moved = sum(plan.cost for _, plan in first.origin.moves)
    how = ", ".join(dict.fromkeys(kinds))
    return f"`{lies}`", f"{how}: {moved:,} bytes to a worker" if moved else "nothing"


def _escaped(text: str) -> str:
    return text.replace("|", "\\|").replace("*", "\\*")


if __name__ == "__main__":
    sys.exit(main())
