"""The program that measures GPUs: on the stand-in, whose figures mean nothing, and on none."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
STANDIN = ROOT / "tests" / "standin"


def run(*arguments, gpus):
    path = os.pathsep.join(filter(None, (str(STANDIN), str(ROOT), os.environ.get("PYTHONPATH"))))
    hidden = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES")
    environ = {name: value for name, value in os.environ.items() if name not in hidden}
    return subprocess.run(
        [sys.executable, str(ROOT / "benchmarks" / "gpu.py"), *arguments],
        env={**environ, "PYTHONPATH": path, "STANDIN_GPUS": str(gpus)},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_quick_run_on_the_standin_measures_every_row(tmp_path):
    """With two GPUs every row has figures, in the table and as JSON."""
    file = tmp_path / "figures.json"
    done = run("--quick", "--json", str(file), gpus=2)
    assert done.returncode == 0, done.stdout + done.stderr
    content = json.loads(file.read_text())
    assert content["gpus"]["number"] == 2
    rows = content["rows"]
    assert len({row["key"] for row in rows}) == len(rows) > 20
    for row in rows:
        assert row["what"] in done.stdout
        assert row["status"] == "measured", row
        assert row["disco"] > 0
        assert row["yardstick"]["figure"] > 0


@pytest.mark.timeout(120)
def test_one_gpu_of_the_standin_has_no_peers(tmp_path):
    """What needs several GPUs says so, and is no failure."""
    file = tmp_path / "figures.json"
    done = run("--quick", "--only", "together", "--json", str(file), gpus=1)
    assert done.returncode == 0, done.stdout + done.stderr
    rows = json.loads(file.read_text())["rows"]
    assert {row["status"] for row in rows} == {"unavailable"}
    assert all("several GPUs" in row["note"] for row in rows)


def test_a_standin_without_gpus_is_one_sentence_about_what_is_missing():
    """The exit code is 2, and there is no traceback."""
    done = run("--quick", gpus=0)
    assert done.returncode == 2
    assert done.stdout == ""
    (line,) = done.stderr.splitlines()
    assert "cudaErrorInsufficientDriver" in line
    assert "disco doctor --gpu" in line


def test_a_section_that_does_not_exist_is_refused():
    """The error lists the sections there are."""
    done = run("--only", "weather", gpus=0)
    assert done.returncode == 2
    assert "together" in done.stderr
