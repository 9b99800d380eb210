"""Steps of small torch tensors beside gloo's, where torch is and where it is not."""

from __future__ import annotations

import json
import sys

import pytest
from benching import run_benchmarks
from disco_bench.table import Unavailable
from disco_bench.torch_steps import TORCH_STEPS, python_with_torch


def run(file, **environ):
    return run_benchmarks("--quick", "--only", "torch_steps", "--json", file, **environ)


def test_without_torch_the_rows_say_what_is_missing(tmp_path):
    """Where there is no such Python, and where it has no torch; neither is a failure."""
    file = tmp_path / "figures.json"
    bare = tmp_path / "bare"
    bare.write_text(f'#!/bin/sh\nexec "{sys.executable}" -S -I "$@"\n')
    bare.chmod(0o755)
    for python, reason in ((tmp_path / "nothing", "make interop"), (bare, "No module named")):
        done = run(file, DISCO_BENCH_INTEROP=str(python))
        assert done.returncode == 0, done.stdout + done.stderr
        rows = json.loads(file.read_text())["rows"]
        assert [row["key"] for row in rows] == [spec.key for spec in TORCH_STEPS]
        assert {row["status"] for row in rows} == {"unavailable"}
        assert reason in done.stdout


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_with_torch_both_rows_are_measured(tmp_path):
    """Both sides have the same losses, and figures."""
    try:
        python_with_torch()
    except Unavailable as error:
        pytest.skip(str(error))
    file = tmp_path / "figures.json"
    done = run(file)
    assert done.returncode == 0, done.stdout + done.stderr
    for row in json.loads(file.read_text())["rows"]:
        assert row["status"] == "measured", row
        assert row["disco"] > 0
        assert row["yardstick"]["figure"] > 0
