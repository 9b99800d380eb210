"""The examples of arrays: programs for numpy, but for two lines."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ARRAYS = Path(__file__).parents[2] / "examples" / "arrays"
OURS = ["from disco_client import ProcessSession", "xp = ProcessSession(4).numpy"]
NUMPYS = ["import numpy", "xp = numpy"]


def run(program: Path) -> list[str]:
    """What a program prints, alone and from another folder."""
    env = {key: value for key, value in os.environ.items() if not key.startswith("DISCO_")}
    done = subprocess.run(
        [sys.executable, program],
        cwd=program.parent.parent,
        env=env,
        capture_output=True,
        text=True,
        timeout=150,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert not done.stderr
    return done.stdout.splitlines()


def with_numpy(name: str, folder: Path) -> Path:
    """The same program of numpy's: two lines are others."""
    lines = (ARRAYS / name).read_text(encoding="utf-8").splitlines()
    assert len(lines) < 40
    for ours, numpys in zip(OURS, NUMPYS, strict=True):
        lines[lines.index(ours)] = numpys
    assert not any("disco" in line for line in lines if not line.startswith("    python"))
    program = folder / name
    program.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return program


@pytest.mark.timeout(200)
@pytest.mark.parametrize("name", ["heat_equation.py", "kmeans.py"])
def test_a_program_prints_what_it_prints_with_numpy(name, tmp_path):
    """To the last digit that it prints."""
    printed = run(ARRAYS / name)
    assert len(printed) > 2
    assert printed == run(with_numpy(name, tmp_path))


@pytest.mark.timeout(200)
def test_an_integral_is_numpys_within_its_error(tmp_path):
    """The points are others, so the digits are; both are near what the integral is."""
    true = 0.7468241328124271**3  # of exp(-x * x) over [0, 1], sqrt(pi) / 2 * erf(1), for each axis
    for program in (ARRAYS / "monte_carlo.py", with_numpy("monte_carlo.py", tmp_path)):
        mean, error = (float(line.rpartition(" ")[2]) for line in run(program))
        assert 0 < error < 0.001
        assert abs(mean - true) < 5 * error
