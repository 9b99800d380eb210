"""Many requests in a row lose nothing."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.timeout(120)
def test_no_block_of_the_cache_is_lost():
    """Of 400 requests of random lengths, of which one in ten is taken back at some moment."""
    run = subprocess.run(
        [sys.executable, "benchmarks/llm_soak.py", "--requests", "400"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )
    assert run.returncode == 0, run.stdout + run.stderr
    assert "400 requests, Counts(" in run.stdout
