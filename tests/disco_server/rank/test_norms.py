"""Softmax and the normalisations, beside their formulas in double precision."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from disco_server.rank.builtins import tensors

LIMITS = {"float16": 1e-3, "bfloat16": 8e-3, "float32": 2e-6, "float64": 1e-14}
SHAPES = [((5, 7), 1), ((5, 7), 0), ((3, 4, 6), 1), ((700, 400), 1), ((0, 4), 1), ((9,), 0)]


def numbers(shape, dtype):
    kind = ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype
    return np.random.default_rng(0).normal(1, 3, shape).astype(kind)


def along(vector, ndim, axis):
    return vector.astype(float).reshape([-1 if place == axis else 1 for place in range(ndim)])


def formula(name, x, axis, weights, epsilon):
    wide = x.astype(float)
    if name == "softmax":
        shares = np.exp(wide - wide.max(axis=axis, keepdims=True))
        return shares / shares.sum(axis=axis, keepdims=True)
    if name == "layer_norm":
        wide = wide - wide.mean(axis=axis, keepdims=True)
    out = wide / np.sqrt(np.square(wide).mean(axis=axis, keepdims=True) + epsilon)
    for number, weight in enumerate(along(each, x.ndim, axis) for each in weights):
        out = out + weight if number else out * weight
    return out


@pytest.mark.parametrize("dtype", LIMITS)
@pytest.mark.parametrize(("shape", "axis"), SHAPES)
@pytest.mark.parametrize("name", ["softmax", "layer_norm", "rms_norm"])
def test_each_computes_its_formula(name, shape, axis, dtype):
    """Along any axis, in one piece or several, with nothing in it, in the dtype it was given."""
    x = numbers(shape, dtype)
    before = x.copy()
    weights = [] if name == "softmax" else [numbers((shape[axis],), dtype) for _ in range(2)]
    options = {} if name == "softmax" else {"epsilon": 1e-3}
    found = getattr(tensors, name)(np, x, *weights, axis=axis, **options)
    assert (found.shape, found.dtype) == (x.shape, x.dtype)
    assert found.flags.c_contiguous
    expected = formula(name, x, axis, weights, 1e-3)
    scale = np.abs(expected).max(initial=1)
    np.testing.assert_allclose(found.astype(float), expected, atol=LIMITS[dtype] * scale)
    np.testing.assert_array_equal(x, before)


@pytest.mark.parametrize("name", ["softmax", "layer_norm", "rms_norm"])
def test_rows_without_elements_stay_so(name):
    """There is no largest among them, and no mean, and nobody is told."""
    options = {} if name == "softmax" else {"epsilon": 1e-6}
    with np.errstate(all="raise"):
        found = getattr(tensors, name)(np, np.zeros((3, 0), np.float32), axis=1, **options)
    assert found.shape == (3, 0)


def test_softmax_takes_what_is_masked_out():
    """Minus infinity is no share, as large numbers are no overflow."""
    x = np.array([[-np.inf, 1000, 1000], [0, -np.inf, -np.inf]], np.float32)
    np.testing.assert_array_equal(tensors.softmax(np, x, axis=1), [[0, 0.5, 0.5], [1, 0, 0]])
