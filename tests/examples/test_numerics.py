"""The functions that numpy lacks, against float64 and the standard library."""

from __future__ import annotations

import math

import numpy as np
import pytest

from embedding.numerics import add_and_norm, gelu, normalise_rows, softmax_unscaled


def exact_gelu(value):
    return 0.5 * value * math.erfc(-value / math.sqrt(2))


def test_gelu_is_exact_to_float32():
    """The approximation is within 6e-7 of the error function everywhere, rounding included."""
    points = np.concatenate([np.linspace(-13, 13, 260_001), [-0.0, 1e-30, -1e-30, 5.2, -5.2]])
    points = points.astype(np.float32)
    result = points.copy()
    gelu(result)
    exact = np.array([exact_gelu(float(point)) for point in points])
    assert np.abs(result - exact).max() < 6e-7


def test_gelu_saturates_at_any_size():
    """Huge values come out as themselves or as nothing, and no warning is given."""
    values = np.array([-3e38, -1e6, -50.0, 50.0, 1e6, 3e38], np.float32)
    gelu(values)
    assert values.tolist() == [0, 0, 0, 50, 1e6, np.float32(3e38)]


def test_gelu_takes_any_shape_and_size():
    """Pieces and shapes make no difference."""
    values = np.random.default_rng(0).normal(0, 3, (7, 5, 1001)).astype(np.float32)
    one_by_one = np.array([exact_gelu(float(value)) for value in values.flat])
    gelu(values)
    np.testing.assert_allclose(values.reshape(-1), one_by_one, atol=6e-7)
    gelu(np.empty((0, 4), np.float32))


def test_gelu_refuses_what_it_cannot_change_in_place():
    """A view with gaps would be copied and the result lost, so it is refused."""
    with pytest.raises(ValueError, match="contiguous"):
        gelu(np.ones((4, 4), np.float32)[:, :2])


def test_add_and_norm_equals_layer_normalisation():
    """The pieces add up to the textbook's layer normalisation of the sum."""
    rng = np.random.default_rng(1)
    values, residual = rng.normal(2, 3, (2, 300, 48)).astype(np.float32)
    bias, scale, shift = rng.normal(0, 1, (3, 48)).astype(np.float32)
    total = values.astype(np.float64) + residual + bias
    centred = total - total.mean(axis=1, keepdims=True)
    expected = centred / np.sqrt(centred.var(axis=1, keepdims=True) + 1e-5) * scale + shift
    add_and_norm(values, residual, bias, (scale, shift), 1e-5)
    np.testing.assert_allclose(values, expected, atol=5e-6)


def test_softmax_survives_large_scores():
    """Only differences of scores count, however large they are."""
    scores = np.array([[[1000.0, 1001.0], [-2000.0, -2000.0]]], np.float32)
    sums = softmax_unscaled(scores)
    weights = scores / sums
    np.testing.assert_allclose(weights[0, 0], [1 / (1 + math.e), math.e / (1 + math.e)], rtol=1e-6)
    np.testing.assert_allclose(weights[0, 1], [0.5, 0.5])


def test_normalised_rows_have_length_one():
    """Each row is scaled to length 1, and a row of zeros stays one of zeros."""
    rows = normalise_rows(np.array([[3.0, 4.0], [0.0, 0.0]], np.float32))
    np.testing.assert_allclose(rows, [[0.6, 0.8], [0, 0]], rtol=1e-6)
