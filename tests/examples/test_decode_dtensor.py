"""The decoder that is written with distributed tensors."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import disco_client
from decoder.model import Decoder
from decoder.plain import generate
from decoder.settings import DecoderSettings, SettingsError, random_weights, refuse_workers

ROOT = Path(__file__).parents[2]
SMALL = DecoderSettings(
    layers=2, width=48, heads=8, kv_heads=4, head=8, inner=56, vocabulary=61, context=24
)
PROMPT = [7, 60, 0, 7, 33]


def decode(*arguments, cluster=()):
    env = {name: value for name, value in os.environ.items() if not name.startswith("DISCO_")}
    return subprocess.run(
        [*cluster, sys.executable, "examples/decode_dtensor.py", *arguments],
        cwd=ROOT,
        env=env,
        capture_output=True,
        text=True,
        timeout=55,
        check=False,
    )


@pytest.mark.parametrize("workers", [1, 2, 4])
def test_any_number_of_workers_generates_the_same_tokens(workers):
    """Those of plain numpy, which has no cache, no captured step and complex numbers."""
    weights = random_weights(SMALL, 3)
    with disco_client.ProcessSession(workers) as session:
        model = Decoder(session, session.mesh(), SMALL, weights)
        state = model.prefill(PROMPT)
        tokens = [state.token]
        for _ in range(12):
            state = model.step(state)
            tokens.append(state.token)
        found = [int(token.numpy()[0]) for token in tokens]
        assert found == generate(SMALL, weights, PROMPT, 13)
        assert int(state.start.numpy()) == len(PROMPT) + 12
        assert [cache.placement for cache in state.caches] == [state.caches[0].placement] * 4
        assert str(state.caches[0].placement) == "S[0]"


def test_a_step_moves_twice_a_layer():
    """The sums after attention and feed-forward, and what first and last come to."""
    with disco_client.ProcessSession(2) as session:
        model = Decoder(session, session.mesh(), SMALL, random_weights(SMALL, 0))
        state = model.prefill(PROMPT)
        moved = []
        session._engine.executor.watchers.append(lambda step: moved.append(step.move))
        model.step(state)
    assert moved == ["allreduce"] * (1 + 2 * SMALL.layers) + ["allgather"]


def test_weights_come_from_the_seed():
    """The same ones for the same seed, others for another."""
    one, same, other = (random_weights(SMALL, seed) for seed in (1, 1, 2))
    assert one.keys() == other.keys()
    assert all(np.array_equal(array, same[name]) for name, array in one.items())
    assert not np.array_equal(one["words"], other["words"])


@pytest.mark.parametrize("workers", [0, 3, 8])
def test_what_cannot_be_divided_is_refused(workers):
    """With the numbers of workers that can be used."""
    with pytest.raises(SettingsError, match=f"over {workers} workers. Use 1, 2, 4."):
        refuse_workers(DecoderSettings(), workers)


def test_the_command_generates_on_a_cluster():
    """Tokens on standard output, and what the step is on standard error."""
    cluster = [sys.executable, "-m", "disco_server.cli.main", "local", "--nodes", "2"]
    run = decode("--tokens", "5", "--check", cluster=[*cluster, "--slots", "2", "--"])
    assert run.returncode == 0, run.stderr
    assert len(run.stdout.split()) == 5
    assert "commands is one" in run.stderr
    assert "check passed" in run.stderr


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("--workers", "3"), "Use 1, 2, 4."),
        (("--tokens", "300"), "Choose --tokens from 1 to 240."),
        (("--prompt", ""), "Give a --prompt"),
    ],
)
def test_what_the_command_refuses_is_one_sentence(arguments, text):
    """Before it looks for a cluster, with exit code 2."""
    run = decode(*arguments, "--address", "127.0.0.1:1")
    assert run.returncode == 2
    (line,) = run.stderr.splitlines()
    assert line.startswith("decode_dtensor: ")
    assert text in line
