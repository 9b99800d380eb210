"""The embedding model that is written with distributed tensors."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

import disco_client
from embedding.plain import PlainModel
from embedding.settings import ModelError, read_settings
from embedding.tensors import TensorEmbedder
from embedding.tokens import make_batches, tokenize

ROOT = Path(__file__).parents[2]


@pytest.fixture
def workers_find_the_examples(monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(ROOT / "examples"))


def test_the_command_gives_the_published_embeddings(reference):
    """On two nodes, to float32's last digits, as the one that is split by hand."""
    env = {name: value for name, value in os.environ.items() if not name.startswith("DISCO_")}
    cluster = [sys.executable, "-m", "disco_server.cli.main", "local", "--nodes", "2"]
    run = subprocess.run(
        [*cluster, "--slots", "2", "--", sys.executable, "examples/embed_dtensor.py", "--json"],
        input="".join(f"{sentence}\n" for sentence in reference.sentences),
        cwd=ROOT,
        env=env,
        capture_output=True,
        text=True,
        timeout=55,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    embeddings = np.array([json.loads(line) for line in run.stdout.splitlines()])
    np.testing.assert_allclose(embeddings, reference.embeddings, atol=2e-6)


@pytest.mark.usefixtures("workers_find_the_examples")
def test_nothing_moves_but_two_allreduces_a_layer(settings, reference):
    """As many collectives as the model has that is split by hand."""
    batches = list(make_batches(tokenize(settings, reference.sentences), 16))
    with disco_client.ProcessSession(3) as session:
        embedder = TensorEmbedder(session)
        moved = Counter()
        session._engine.executor.watchers.append(lambda step: moved.update([step.move]))
        embeddings = embedder.embed(batches)
    assert moved == {"allreduce": 2 * settings.layers * len(batches)}
    np.testing.assert_allclose(embeddings, reference.embeddings, atol=2e-6)


@pytest.mark.usefixtures("workers_find_the_examples")
@pytest.mark.parametrize("pooling", [None, {"pooling_mode_cls_token": True}])
def test_another_model_gives_what_the_plain_forward_gives(make_model, pooling):
    """Whichever way it pools its tokens."""
    folder = make_model(pooling=pooling)
    settings = read_settings(str(folder))
    tokens = tokenize(settings, ["one", "two words", "and three of them"])
    with disco_client.ProcessSession(2) as session:
        found = TensorEmbedder(session, str(folder)).embed(list(make_batches(tokens, 2)))
    plain = PlainModel(settings)
    np.testing.assert_allclose(found, [plain.embed(each) for each in tokens], atol=2e-6)


def test_what_cannot_be_divided_is_refused():
    """Before anything is loaded."""
    with (
        disco_client.ProcessSession(5) as session,
        pytest.raises(ModelError, match="5 workers cannot share this model"),
    ):
        TensorEmbedder(session)
