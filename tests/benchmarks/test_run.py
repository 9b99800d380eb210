"""The command itself."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def run(*arguments, **environ):
    path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    return subprocess.run(
        [sys.executable, str(ROOT / "benchmarks" / "run.py"), *arguments],
        env={**os.environ, "PYTHONPATH": path, **environ},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_quick_run_measures_every_row(tmp_path):
    """Every row has figures or lacks only what is not installed, in the table and as JSON."""
    file = tmp_path / "figures.json"
    # What has an environment of its own has tests of its own.
    peers = ("TORCH", "RAY", "DASK", "MONARCH", "HEAT", "INTEROP")
    none = dict.fromkeys((f"DISCO_BENCH_{peer}" for peer in peers), str(tmp_path / "none"))
    done = run("--quick", "--json", str(file), **none)
    assert done.returncode == 0, done.stdout + done.stderr
    content = json.loads(file.read_text())
    rows = {row["key"]: row for row in content["rows"]}
    assert content["quick"]
    assert len(rows) == len(content["rows"]) > 20
    for row in rows.values():
        assert row["what"] in done.stdout
        if row["status"] != "measured":
            assert row["status"] == "unavailable"
            assert "not installed" in row["note"] or "gave no answer" in row["note"], row
        elif row["unit"] == "core":
            assert 0 <= row["disco"] < 1
        elif row["unit"] != "count":
            assert row["disco"] > 0
            assert row["ratio"] is None or row["ratio"] > 0
    assert rows["import.server_modules"]["disco"] == 0
    assert rows["sync.worker"]["yardstick"]["figure"] > 0


def test_a_section_that_does_not_exist_is_refused():
    """The error lists the sections there are."""
    done = run("--only", "weather")
    assert done.returncode == 2
    assert "collectives" in done.stderr
