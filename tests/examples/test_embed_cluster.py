"""The command on a real cluster: a controller, two worker daemons, four ranks."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

pytestmark = pytest.mark.timeout(180)

ROOT = Path(__file__).parents[2]
CLUSTER = [sys.executable, "-m", "disco_server.cli.main", "local", "--nodes", "2", "--slots"]


def embed(slots, *arguments, text, timeout=170):
    """Runs the command inside a cluster of two nodes."""
    env = {name: value for name, value in os.environ.items() if not name.startswith("DISCO_")}
    command = [*CLUSTER, str(slots), "--", sys.executable, "examples/embed.py", *arguments]
    return subprocess.run(
        command,
        input=text.encode(),
        env=env,
        cwd=ROOT,
        capture_output=True,
        timeout=timeout,
        check=False,
    )


def as_lines(reference):
    return "".join(f"{sentence}\n" for sentence in reference.sentences)


def test_four_workers_give_the_published_embeddings(reference):
    """In order, one JSON list a line, to float32's last digits; timings go to stderr."""
    run = embed(2, "--workers", "4", "--json", text=as_lines(reference))
    assert run.returncode == 0, run.stderr.decode()
    embeddings = np.array([json.loads(line) for line in run.stdout.splitlines()])
    assert embeddings.shape == reference.embeddings.shape
    cosines = np.sum(embeddings * reference.embeddings, axis=1)
    assert cosines.min() > 0.999999
    np.testing.assert_allclose(embeddings, reference.embeddings, atol=2e-6)
    for part in ("compute", "collectives", "control"):
        assert part in run.stderr.decode()


@pytest.mark.parametrize("workers", [1, 2, 3, 6])
def test_other_worker_counts_give_the_same(reference, workers):
    """The result does not depend on how many workers share the model."""
    run = embed(3, "--workers", str(workers), "--json", text=as_lines(reference))
    assert run.returncode == 0, run.stderr.decode()
    embeddings = np.array([json.loads(line) for line in run.stdout.splitlines()])
    np.testing.assert_allclose(embeddings, reference.embeddings, atol=2e-6)


def test_many_batches_keep_their_order():
    """More sentences than batches under way come back in the order they were given."""
    sentences = [f"{'very ' * (number % 23)}long sentence {number}" for number in range(400)]
    run = embed(1, "--workers", "2", "--json", "--check", text="\n".join(sentences))
    assert run.returncode == 0, run.stderr.decode()
    assert len(run.stdout.splitlines()) == 400
    assert "passed" in run.stderr.decode()


def test_the_table_and_the_check_are_for_people():
    """Without --json there is a table, the division of the time, and the check's verdict."""
    text = (ROOT / "examples" / "sentences.txt").read_text(encoding="utf-8")
    run = embed(2, "--workers", "4", "--check", text=text)
    assert run.returncode == 0, run.stderr.decode()
    table = run.stdout.decode()
    assert "The cat sleeps" in table
    assert "control" in table
    assert "check         passed" in run.stderr.decode()


def test_too_few_slots_are_one_sentence_and_a_hint():
    """A cluster that is too small is said so after the timeout, without a traceback."""
    run = embed(1, "--workers", "4", "--timeout", "1", text="One sentence.\n")
    assert run.returncode == 1
    assert run.stdout == b""
    stderr = run.stderr.decode()
    (complaint,) = [line for line in stderr.splitlines() if line.startswith("embed: ")]
    assert "Use fewer --workers" in complaint
    assert "Traceback" not in stderr


def test_a_failure_on_the_workers_is_one_sentence_and_a_hint(make_model):
    """A model that only its readers can find fault with is refused by rank and reason."""
    folder = make_model(drop=["encoder.layer.1.output.dense.bias"])
    run = embed(1, "--workers", "2", "--model", str(folder), text="One sentence.\n")
    assert run.returncode == 1
    assert run.stdout == b""
    stderr = run.stderr.decode()
    (complaint,) = [line for line in stderr.splitlines() if line.startswith("embed: ")]
    assert "encoder.layer.1.output.dense.bias" in complaint
    assert "on worker" in complaint


@pytest.mark.parametrize("workers", [2, 3])
def test_another_model_can_be_named(make_model, workers):
    """Any BERT-style folder will do, and the check compares with it."""
    folder = make_model(prefix="bert.", pooling={"pooling_mode": "cls"})
    run = embed(
        2, "--workers", str(workers), "--model", str(folder), "--check", "--json", text="a\n\nb c\n"
    )
    assert run.returncode == 0, run.stderr.decode()
    assert len(run.stdout.splitlines()) == 3
    assert "passed" in run.stderr.decode()
