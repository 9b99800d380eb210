"""Counts the lines of code by subject: no blanks, comments, docstrings or generated code.

With ``--against FOLDER`` it does so for another checkout too, and prints the difference.
"""

from __future__ import annotations

import argparse
import ast
import io
import tokenize
from collections import Counter
from pathlib import Path

HERE = Path(__file__).resolve().parents[1]

SUBJECTS = {
    "disco_client": "client core",
    "disco_client/arrays": "host arrays",
    "disco_client/bulk_io": "weights, files, checkpoints",
    "disco_client/checkpointing": "weights, files, checkpoints",
    "disco_client/diagnosis": "observing",
    "disco_client/distributed": "distributed tensors",
    "disco_client/forks": "devices, processes, settings",
    "disco_client/modules": "modules and programs",
    "disco_client/program": "modules and programs",
    "disco_client/recovery": "recovery",
    "disco_client/telemetry": "records, traces, spans",
    "disco_client/tracing": "records, traces, spans",
    "disco_client/transport": "carriers",
    "disco_client/weights": "weights, files, checkpoints",
    "disco_client/wire": "wire",
    "disco_server": "devices, processes, settings",
    "disco_server/cli": "command line",
    "disco_server/collectives": "collectives",
    "disco_server/controller": "controller",
    "disco_server/core": "decisions",
    "disco_server/embedded": "embedded sessions",
    "disco_server/ipc": "carriers",
    "disco_server/ipc/arrays": "host arrays",
    "disco_server/ipc/rank_arrays": "host arrays",
    "disco_server/modules": "modules and programs",
    "disco_server/observe": "observing",
    "disco_server/rank": "rank",
    "disco_server/storage": "weights, files, checkpoints",
    "disco_server/worker": "worker daemon",
    "disco_server/worker/array": "host arrays",
    "disco_server/worker/pending_arrays": "host arrays",
}
"""By the beginning of a module's path; the longest one that fits counts."""

_NO_CODE = {
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENDMARKER,
}


def lines_of(source: str) -> int:
    """How many lines of a module hold code."""
    texts: set[int] = set()
    for node in ast.walk(ast.parse(source)):
        match node:  # docstrings, also those of names
            case ast.Expr(value=ast.Constant(value=str())):
                texts.update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
            case _:
                pass
    code: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type not in _NO_CODE:
            code.update(range(token.start[0], token.end[0] + 1))
    return len(code - texts)


def subject_of(path: str) -> str:
    """The subject of a module."""
    return SUBJECTS[max((begin for begin in SUBJECTS if path.startswith(begin)), key=len)]


def count(root: Path) -> Counter[str]:
    """The lines of a checkout, by subject."""
    found: Counter[str] = Counter()
    for package in ("disco_client", "disco_server"):
        for module in (root / package).rglob("*.py"):
            path = str(module.relative_to(root))
            if not path.startswith("disco_client/pb/"):
                found[subject_of(path)] += lines_of(module.read_text())
    return found


def main() -> None:
    """Runs the command."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--against", type=Path, help="another checkout")
    other = parser.parse_args().against
    here, there = count(HERE), count(other) if other else Counter[str]()
    for subject in sorted(here | there, key=lambda name: -here[name]):
        row = f"{here[subject]:7,} {subject:30}"
        difference = here[subject] - there[subject]
        print(f"{row} {there[subject]:7,} {difference:+6,}" if other else row.rstrip())
    total = f"{here.total():7,} in all"
    print(f"{total:38} {there.total():7,} {here.total() - there.total():+6,}" if other else total)


if __name__ == "__main__":
    main()
