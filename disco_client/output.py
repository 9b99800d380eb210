"""Where the output of the workers goes at the client."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TypeAlias

from disco_client.text import harmless

__all__ = ["LogSink", "drop_logs", "print_logs"]

LogSink: TypeAlias = Callable[[int, str, bool, list[str]], None]
"""Takes a worker, its node, whether it wrote to standard error, and the lines."""


def drop_logs(worker: int, node: str, stderr: bool, lines: list[str]) -> None:
    """Discards workers' output."""


def print_logs(worker: int, node: str, stderr: bool, lines: list[str]) -> None:
    """Writes workers' output to this process's standard error, each line with its rank.

    On a terminal a line cannot do more than be coloured (see `disco_client.text.harmless`).
    """
    del stderr
    if sys.stderr.isatty():
        lines = [harmless(line, colours=True) for line in lines]
    sys.stderr.write("".join(f"[worker {worker} {node}] {line}\n" for line in lines))
    sys.stderr.flush()
