"""The examples that train, data-parallel; that of torch is in tests/interop."""

from __future__ import annotations

import re

import numpy as np
import pytest
import train_and_generate

from disco_client import ThreadedSession
from training_runs import losses_of, train


@pytest.mark.timeout(180)
def test_four_workers_train_as_one_process_does():
    """The same losses to rounding, and they fall."""
    losses = losses_of(train("train_numpy", "--steps", "60"))
    np.testing.assert_allclose([a for a, _ in losses], [b for _, b in losses], atol=1e-11)
    assert losses[-1][0] < losses[0][0]


def test_a_cluster_that_is_not_there_is_one_line_and_a_hint():
    """Which names this example."""
    done = train("train_numpy", "--address", "127.0.0.1:1", "--timeout", "1", cluster=False)
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    assert "disco local --nodes 2 --slots 2 -- python examples/train_numpy.py" in line


@pytest.mark.timeout(180)
def test_what_two_workers_have_learned_two_others_write():
    """Weights arrive as they left, and nothing is sent twice; and they learn."""
    done = train("train_and_generate", "--steps", "120", "--every", "60", "--hidden", "128")
    assert done.returncode == 0, done.stderr
    *rows, direct, by_client = done.stdout.splitlines()
    first, second = (float(row.rpartition(" ")[2]) for row in rows[::2])
    assert second < first
    assert "Twinkle, twinkle, little star" in rows[-1]
    sent, passed = (
        int(re.search(r"([\d,]+) bytes", line)[1].replace(",", "")) for line in (direct, by_client)
    )
    assert passed == 2 * sent
    assert direct.endswith("1.00 times the least")


def test_a_step_moves_the_slopes_and_nothing_else():
    """By an allreduce each; the loss, a partial sum by the size of the batch, stays one."""
    with ThreadedSession(4) as session:
        weights = train_and_generate.first_weights(session, 8)
        steps = []
        session._engine.executor.watchers.append(steps.append)
        step = train_and_generate.capture_step(session, weights)
        moved = [(each.move, tuple(each.after.tensor_sinfo.shape)) for each in steps]
        assert moved == [("allreduce", tuple(weights[name].shape)) for name in ("into", "out")]
        x, y = (
            session.distribute(part, train_and_generate.TRAIN, "S[0]")
            for part in train_and_generate.batch(np.random.default_rng(3))
        )
        *_, loss = step(weights["into"], weights["out"], x, y)
        assert str(loss.placement) == "P[sum]"
