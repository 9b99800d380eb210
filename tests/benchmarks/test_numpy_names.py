"""``session.numpy`` beside Heat and dask.array, where they are and where they are not."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from disco_bench.array_cases import CASES, action_of, expected, make_data, numpy_kit
from disco_bench.arrays import ARRAYS
from disco_bench.child import peer_python
from disco_bench.numpy_names import NUMPY_NAMES
from disco_bench.table import Unavailable

ROOT = Path(__file__).parents[2]


def rows_of(file, **environ):
    """The rows of a quick run, but for those of arrays on their way."""
    path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    command = [sys.executable, str(ROOT / "benchmarks" / "run.py"), "--quick", "--only", "arrays"]
    done = subprocess.run(
        [*command, "--json", str(file)],
        env={**os.environ, "PYTHONPATH": path, **environ},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    rows = json.loads(file.read_text())["rows"]
    assert [row["key"] for row in rows] == [spec.key for spec in (*ARRAYS, *NUMPY_NAMES)]
    return rows[len(ARRAYS) :]


@pytest.mark.timeout(180)
def test_without_peers_the_rows_say_how_to_get_them(tmp_path):
    """Numpy is there, and each case gives what it gives."""
    none = str(tmp_path / "none")
    for row in rows_of(tmp_path / "figures", DISCO_BENCH_HEAT=none, DISCO_BENCH_DASK=none):
        name = row["key"].rpartition(".")[2]
        if name.startswith("numpy"):
            assert row["status"] == "measured"
            assert row["yardstick"]["figure"] > 0
        else:
            peer = "dask" if name == "dask" else "heat"
            target = "bench-peers" if name == "dask" else "bench-heat"
            assert row["status"] == "unavailable"
            assert row["note"].startswith(f"{peer} is not installed")
            assert f"make {target}" in row["note"]


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_with_peers_every_row_is_measured(tmp_path):
    """All give the results of numpy, and figures; the last rows are about all others."""
    try:
        peer_python("heat", "bench-heat")
        peer_python("dask", "bench-peers")
    except Unavailable as error:
        pytest.skip(str(error))
    rows = rows_of(tmp_path / "figures")
    assert {row["status"] for row in rows} == {"measured"}
    found = {row["key"]: row for row in rows}
    ratios = [row["ratio"] for key, row in found.items() if key.endswith(".heat")]
    assert found["arrays.behind"]["disco"] == sum(ratio > 1 for ratio in ratios)
    assert found["arrays.mean"]["disco"] == pytest.approx(np.exp(np.mean(np.log(ratios))))


@pytest.mark.parametrize("name", CASES)
def test_a_case_is_what_numpy_says(name):
    """Done twice, it leaves its arrays as they are."""
    data = make_data(60)
    before = [array.copy() for array in data]
    first = expected(name, data)
    again = action_of(name, numpy_kit(data))()
    np.testing.assert_array_equal(again, first)
    for array, whole in zip(data, before, strict=True):
        np.testing.assert_array_equal(array, whole)
