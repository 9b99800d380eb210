"""Runs an example that trains, on two nodes of two workers, and reads what it prints."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
CLUSTER = [sys.executable, "-m", "disco_server.cli.main", "local", "--nodes", "2", "--slots", "2"]


def train(name: str, *arguments: str, cluster: bool = True) -> subprocess.CompletedProcess[str]:
    """Runs the example of a name, inside a cluster."""
    env = {key: value for key, value in os.environ.items() if not key.startswith("DISCO_")}
    command = [*(CLUSTER if cluster else ()), *(["--"] if cluster else ()), sys.executable]
    command += [f"examples/{name}.py", *arguments]
    return subprocess.run(
        command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=290, check=False
    )


def losses_of(done: subprocess.CompletedProcess[str]) -> list[tuple[float, float]]:
    """The losses of four workers and of one process, beside one another, of a run that passed."""
    assert done.returncode == 0, done.stderr
    head, *rows, last = done.stdout.splitlines()
    assert head.split() == ["step", "4", "workers", "one", "process"]
    assert float(last.rpartition(": ")[2]) < 1e-12
    return [(float(row.split()[1]), float(row.split()[2])) for row in rows]
