"""Distributed tensors beside torch's, where torch is and where it is not."""

from __future__ import annotations

import json

import numpy as np
import pytest
from benching import run_benchmarks
from disco_bench.child import peer_python
from disco_bench.dtensor import DTENSOR, TORCH
from disco_bench.dtensor_cases import CASES, NOTHING, expected, inputs, result_of
from disco_bench.table import Unavailable


def run(file, **environ):
    return run_benchmarks("--quick", "--only", "dtensor", "--json", file, **environ)


def test_without_torch_the_rows_say_how_to_get_it(tmp_path):
    """They are no failure, and what is to be done is said once."""
    file = tmp_path / "figures.json"
    done = run(file, DISCO_BENCH_TORCH=str(tmp_path / "python"))
    assert done.returncode == 0, done.stdout + done.stderr
    rows = json.loads(file.read_text())["rows"]
    assert [row["key"] for row in rows] == [spec.key for spec in DTENSOR]
    assert {row["status"] for row in rows} == {"unavailable"}
    assert done.stdout.count("make bench-torch") == 1


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_with_torch_every_row_is_measured(tmp_path):
    """Both sides give the results of numpy, and figures."""
    try:
        peer_python(*TORCH)
    except Unavailable as error:
        pytest.skip(str(error))
    file = tmp_path / "figures.json"
    done = run(file)
    assert done.returncode == 0, done.stdout + done.stderr
    for row in json.loads(file.read_text())["rows"]:
        assert row["status"] == "measured", row
        assert row["disco"] > 0
        assert row["yardstick"]["figure"] > 0


@pytest.mark.parametrize("case", CASES.values(), ids=list(CASES))
def test_a_case_is_a_product_or_a_move(case):
    """Done with whole arrays, it gives what is expected of it, exactly."""
    if case is NOTHING:
        assert result_of(inputs(case, 0), None)() is None
        return
    arrays = inputs(case, 1 << 10)
    assert {(array.nbytes, array.dtype.name) for array in arrays} == {(1 << 10, "float32")}
    result = result_of(arrays, (lambda x: x) if case.after else None)()
    wide = [array.astype(np.float64) for array in arrays]
    assert np.array_equal(result, wide[0] @ wide[1] if len(wide) > 1 else wide[0])
    assert np.array_equal(result, expected(case, 1 << 10))
