"""The example that trains a model of torch."""

from __future__ import annotations

import numpy as np
import pytest

from training_runs import losses_of, train


@pytest.mark.timeout(300)
def test_four_workers_train_as_one_process_does():
    """With torch's autograd and optimiser; the same losses to rounding."""
    pytest.importorskip("torch", reason="needs torch: `make interop`")
    losses = losses_of(train("train_torch", "--steps", "30"))
    np.testing.assert_allclose([a for a, _ in losses], [b for _, b in losses], atol=1e-11)
    assert len({loss for loss, _ in losses}) == len(losses)
