"""The yardstick without Disco, on real MPI ranks."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"
MPIEXEC = Path(sys.prefix) / "bin" / "mpiexec"


def run_ranks(count, *arguments):
    env = os.environ | {
        "PYTHONPATH": str(EXAMPLES),
        "OPENBLAS_NUM_THREADS": "1",
        "OMP_NUM_THREADS": "1",
    }
    command = [MPIEXEC, "-n", str(count), sys.executable, "-m", "embedding.parallel_mpi"]
    return subprocess.run(
        [*command, *arguments], env=env, capture_output=True, timeout=50, check=False
    )


@pytest.mark.parametrize("ranks", [1, 3])
def test_mpi_ranks_give_the_published_embeddings(tmp_path, reference, ranks):
    """The same shares on MPI ranks give the same result, and say how the time divides."""
    # A line is a sentence there, so those with other signs for line ends stay out.
    chosen = [i for i, text in enumerate(reference.sentences) if len(text.splitlines()) == 1]
    sentences = tmp_path / "sentences.txt"
    sentences.write_text("\n".join(reference.sentences[i] for i in chosen), encoding="utf-8")
    run = run_ranks(ranks, "--json", "--sentences", str(sentences), "--repeat", "2")
    assert run.returncode == 0, run.stderr.decode()
    embeddings = [json.loads(line) for line in run.stdout.splitlines()]
    np.testing.assert_allclose(embeddings, reference.embeddings[chosen], atol=2e-6)
    figures = json.loads(run.stderr)
    parts = figures["compute"] + figures["collectives"] + figures["control"]
    assert (figures["ranks"], figures["runs"]) == (ranks, 2)
    assert parts == pytest.approx(figures["seconds"])


def test_ranks_that_cannot_share_the_model_are_refused():
    """Five ranks are told the numbers that would work."""
    run = run_ranks(5)
    assert run.returncode == 2
    assert run.stderr.decode().count("Use 1, 2, 3, 4, 6 or 12 workers.") == 1
