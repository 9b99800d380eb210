"""Runs the command of the benchmarks."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

__all__ = ["run_benchmarks"]

_ROOT = Path(__file__).parents[2]


def run_benchmarks(*arguments: object, **environ: str) -> subprocess.CompletedProcess[str]:
    """Runs ``benchmarks/run.py`` of this checkout to its end.

    Args:
        *arguments: Its arguments.
        **environ: Variables of its environment, beside those of this process.
    """
    path = os.pathsep.join(filter(None, (str(_ROOT), os.environ.get("PYTHONPATH"))))
    return subprocess.run(
        [sys.executable, _ROOT / "benchmarks" / "run.py", *map(str, arguments)],
        env={**os.environ, "PYTHONPATH": path, **environ},
        capture_output=True,
        text=True,
        check=False,
    )
