"""The functions that cupy lacks, on a worker, against float64 and the standard library."""

from __future__ import annotations

import math

import numpy as np
import pytest

import disco_client as di


@pytest.fixture
def session(gpus):
    """One worker on a GPU, which can import the example's modules as this process can."""
    with di.ProcessSession(1) as opened:
        opened.init_ccl("nccl", 0)
        yield opened


@pytest.fixture
def call(session):
    """Calls one of the functions with host arrays; they come back as the worker has them then."""

    def run(name, *args):
        held = [
            session.copy_to_worker_0(arg) if isinstance(arg, np.ndarray) else arg for arg in args
        ]
        result = session.get_global_func(f"embedding.gpu_numerics.{name}")(*held)
        return held[0].numpy(), result

    return run


def test_gelu_is_exact_to_float32(call):
    """Within a few roundings of the error function, and saturated where that is 0 or 1."""
    points = np.concatenate([np.linspace(-13, 13, 20_001), [-0.0, 1e-30, -1e6, -50.0, 50.0, 1e6]])
    points = points.astype(np.float32)
    result, _ = call("gelu", points)
    exact = np.array([0.5 * x * math.erfc(-x / math.sqrt(2)) for x in points.tolist()])
    assert result.dtype == np.float32
    np.testing.assert_allclose(result, exact, atol=1e-6, rtol=6e-7)


def test_add_and_norm_equals_layer_normalisation(session, call):
    """Residual, bias and the textbook's layer normalisation of the sum, in place."""
    rng = np.random.default_rng(1)
    values, residual = rng.normal(2, 3, (2, 300, 48)).astype(np.float32)
    bias, scale, shift = rng.normal(0, 1, (3, 48)).astype(np.float32)
    total = values.astype(np.float64) + residual + bias
    centred = total - total.mean(axis=1, keepdims=True)
    expected = centred / np.sqrt(centred.var(axis=1, keepdims=True) + 1e-5) * scale + shift
    norm = [session.copy_to_worker_0(scale), session.copy_to_worker_0(shift)]
    result, _ = call("add_and_norm", values, residual, bias, norm, 1e-5)
    np.testing.assert_allclose(result, expected, atol=1e-5)


def test_softmax_leaves_out_what_is_masked(call):
    """Only differences of scores count, and minus infinity counts as nothing."""
    scores = np.array([[[1000.0, 1001.0, -np.inf], [-7.0, -7.0, -7.0]]], np.float32)
    weights, sums = call("softmax_unscaled", scores)
    expected = [[1 / (1 + math.e), math.e / (1 + math.e), 0], [1 / 3, 1 / 3, 1 / 3]]
    np.testing.assert_allclose((weights / sums.numpy())[0], expected, rtol=2e-6)


def test_normalised_rows_have_length_one(call):
    """Each row is scaled to length 1, and a row of zeros stays one of zeros."""
    rows, _ = call("normalise_rows", np.array([[3.0, 4.0], [0.0, 0.0]], np.float32))
    np.testing.assert_allclose(rows, [[0.6, 0.8], [0, 0]], rtol=1e-6)
