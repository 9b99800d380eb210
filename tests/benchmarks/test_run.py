"""The command itself."""

from __future__ import annotations

import json

import pytest
from benching import run_benchmarks


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_quick_run_measures_every_row(tmp_path):
    """Every row has figures or lacks only what is not installed, in the table and as JSON."""
    file = tmp_path / "figures.json"
    # What has an environment of its own has tests of its own.
    peers = ("TORCH", "RAY", "DASK", "MONARCH", "HEAT", "INTEROP")
    none = dict.fromkeys((f"DISCO_BENCH_{peer}" for peer in peers), str(tmp_path / "none"))
    done = run_benchmarks("--quick", "--json", str(file), **none)
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
    done = run_benchmarks("--only", "weather")
    assert done.returncode == 2
    assert "collectives" in done.stderr
