"""The example that compiles a sharded module, as a person runs it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
EXAMPLE = str(ROOT / "examples" / "tvm_sharded_mlp.py")
CLUSTER = [sys.executable, "-m", "disco_server.cli.main", "local", "--nodes", "2", "--slots", "2"]


def run(*arguments, cluster=(), **variables):
    """Runs the example, inside a cluster where one is given."""
    env = {name: value for name, value in os.environ.items() if not name.startswith("DISCO_")}
    command = [*cluster, *(["--"] if cluster else []), sys.executable, EXAMPLE, *arguments]
    return subprocess.run(
        command, env=env | variables, capture_output=True, text=True, timeout=110, check=False
    )


@pytest.mark.timeout(120)
@pytest.mark.parametrize("workers", [2, 4])
def test_the_shards_together_equal_the_whole(workers):
    """Compiled, loaded and run on two nodes; each step is one line, and the check passes."""
    done = run("--workers", str(workers), "--check", cluster=CLUSTER)
    assert done.returncode == 0, done.stderr
    steps = [line.split()[0] for line in done.stdout.splitlines()]
    assert steps == ["compiled", "loaded", "ran", "result"]
    assert re.search(r"^check +passed: the largest difference", done.stderr, re.MULTILINE)


def complaint(done, code):
    """The one line of a run that was refused."""
    assert done.returncode == code
    (line,) = done.stderr.splitlines()
    assert line.startswith("tvm_sharded_mlp: ")
    return line


@pytest.mark.parametrize("workers", ["3", "0"])
def test_columns_that_cannot_be_shared_are_refused_first(workers):
    """Before anything is compiled or connected."""
    line = complaint(run("--workers", workers, "--address", "127.0.0.1:1"), 2)
    assert f"{workers} workers cannot share 1024 inner columns" in line


def test_without_tvm_the_extra_is_named(tmp_path):
    """One line and no traceback."""
    (tmp_path / "tvm.py").write_text("raise ImportError('no tvm here')")
    line = complaint(run("--workers", "2", PYTHONPATH=str(tmp_path)), 2)
    assert "pip install 'disco-runtime[server,tvm]'" in line


@pytest.mark.timeout(120)
def test_a_cluster_that_is_not_there_is_one_line_and_a_hint():
    """After the module was compiled, which needs no cluster."""
    done = run("--workers", "2", "--address", "127.0.0.1:1", "--timeout", "1")
    line = complaint(done, 1)
    assert "disco local --nodes 2 --slots 2" in line


@pytest.mark.timeout(120)
def test_a_daemon_that_loads_nothing_is_one_line_and_a_hint():
    """The flag that would allow it is named."""
    done = run("--workers", "2", cluster=[*CLUSTER, "--allow-module", "numpy"])
    assert done.returncode == 1
    (line,) = [line for line in done.stderr.splitlines() if line.startswith("tvm_sharded_mlp")]
    assert "--allow-load" in line
