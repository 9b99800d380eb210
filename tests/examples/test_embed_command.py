"""The command, as far as it gets without a cluster."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

COMMAND = Path(__file__).parents[2] / "examples" / "embed.py"


def embed(*arguments, text="One sentence.\n"):
    env = {name: value for name, value in os.environ.items() if not name.startswith("DISCO_")}
    return subprocess.run(
        [sys.executable, COMMAND, *arguments],
        input=text if isinstance(text, bytes) else text.encode(),
        env=env,
        capture_output=True,
        timeout=50,
        check=False,
    )


def complaint(run):
    """The one line that a refused command prints, and nothing on standard output."""
    assert run.stdout == b""
    (line,) = run.stderr.decode().splitlines()
    return line


@pytest.mark.parametrize("workers", ["5", "7", "8", "0"])
def test_worker_counts_are_refused_before_a_session_is_opened(workers):
    """The address answers nobody, and yet the refusal is about the number of workers."""
    run = embed("--workers", workers, "--address", "127.0.0.1:1")
    assert run.returncode == 2
    assert f"{workers} workers cannot share this model" in complaint(run)
    assert "Use 1, 2, 3, 4, 6 or 12 workers." in complaint(run)


def test_empty_input_is_refused():
    """Without a sentence there is nothing to do, and the command says how to give one."""
    run = embed(text="")
    assert run.returncode == 2
    assert "standard input is empty" in complaint(run)


def test_input_must_be_utf8():
    """The line that cannot be read is named."""
    run = embed(text=b"fine\nna\xefve\n")
    assert run.returncode == 2
    assert "Line 2 of the input is not UTF-8" in complaint(run)


def test_a_model_that_is_not_there_is_named(tmp_path):
    """A folder without a model says what it lacks."""
    run = embed("--model", str(tmp_path))
    assert run.returncode == 2
    assert "lacks config.json, model.safetensors, tokenizer.json" in complaint(run)


def test_a_cluster_out_of_reach_is_explained():
    """Where no controller answers, there is no traceback but how to start a cluster."""
    run = embed("--address", "127.0.0.1:1", "--timeout", "1")
    assert run.returncode == 1
    assert "127.0.0.1:1" in complaint(run)
    assert "disco local" in complaint(run)
