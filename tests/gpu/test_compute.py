"""Computing, copying and reducing on GPUs, in float32 and float16, beside numpy.

Each test runs on the stand-in for cupy, and on the machine's GPUs where it has some; those of
collectives also where oneCCL carries what the stand-in sends.
"""

from __future__ import annotations

import numpy as np
import pytest

# What rounding makes of numbers about 1, after sums of some hundred of them.
TOLERANCES = {"float32": 1e-5, "float16": 1e-2}

with_oneccl = pytest.mark.parametrize(
    "gpus",
    ["standin", "oneccl", pytest.param("real_gpus", id="gpu", marks=pytest.mark.gpu)],
    indirect=True,
)
dtypes = pytest.mark.parametrize("dtype", TOLERANCES)
workers = pytest.mark.parametrize("count", [1, 2, 4])


def numbers(dtype, *shape, seed=3):
    """Normal numbers, exact in the dtype, and what they are in double precision."""
    host = np.random.default_rng(seed).normal(0, 1, shape).astype(dtype)
    return host, host.astype(np.float64)


def close(got, expected, dtype):
    assert got.dtype == np.dtype(dtype)
    scale = max(1.0, float(np.abs(expected).max()))
    np.testing.assert_allclose(got, expected, atol=TOLERANCES[dtype] * scale)


@dtypes
def test_layers_compute_as_numpy_does(open_session, dtype):
    """A matrix product, a broadcast addition and a function of each element."""
    session = open_session(1)
    x, wide = numbers(dtype, 33, 96)
    weight, wide_weight = numbers(dtype, 96, 65, seed=4)
    bias, wide_bias = numbers(dtype, 65, seed=5)
    weight, wide_weight = weight / np.dtype(dtype).type(8), wide_weight / 8
    result = session.get_global_func("tests.gpu.layer")(x, weight, bias)
    close(result.numpy(), np.tanh(wide @ wide_weight + wide_bias), dtype)
    kind = session.get_global_func("tests.gpu.library")(result)
    assert kind.debug_get_from_remote(0) == "cupy"


@dtypes
def test_softmax_computes_as_numpy_does(open_session, dtype):
    """Reductions along an axis, and arithmetic with what they leave."""
    session = open_session(1)
    scores, wide = numbers(dtype, 4, 7, 129)
    result = session.get_global_func("tests.gpu.softmax")(scores)
    weights = np.exp(wide - wide.max(axis=-1, keepdims=True))
    close(result.numpy(), weights / weights.sum(axis=-1, keepdims=True), dtype)


@dtypes
def test_functions_of_numpy_take_arrays_on_gpus(open_session, dtype):
    """A name of numpy's runs on the device where its arguments are there."""
    session = open_session(1)
    x, wide = numbers(dtype, 40, 50)
    held = session.copy_to_worker_0(x)
    result = session.get_global_func("numpy.add")(held, held)
    close(result.numpy(), wide + wide, dtype)


@with_oneccl
@workers
@dtypes
def test_a_share_of_a_model_with_an_allreduce_inside(open_session, dtype, count):
    """What is computed before and after an allreduce is in order, without a wait by anybody."""
    session = open_session(count)
    x, wide = numbers(dtype, 16, 32)
    up, wide_up = numbers(dtype, count, 32, 24, seed=4)
    down, wide_down = numbers(dtype, count, 24, 8, seed=5)
    small = np.dtype(dtype).type(16)
    up, wide_up, down, wide_down = up / small, wide_up / 16, down / small, wide_down / 16
    result = session.get_global_func("tests.gpu.mlp")(x, session.scatter(up), session.scatter(down))
    total = sum(
        np.maximum(wide @ first, 0) @ second
        for first, second in zip(wide_up, wide_down, strict=True)
    )
    expected = total - total.mean(axis=1, keepdims=True)
    for worker in range(count):
        close(result.numpy(worker), expected, dtype)


@dtypes
def test_copies_are_exact(open_session, dtype):
    """What goes to a GPU and comes back is bit for bit the same, in whatever size."""
    session = open_session(1)
    for shape in ((), (1,), (0, 3), (5, 7), (1100, 1024)):
        host, _ = numbers(dtype, *shape)
        remote = session.empty(shape, dtype)
        session.copy_to_worker_0(host, remote)
        back = np.zeros(shape, dtype)
        session.copy_from_worker_0(back, remote)
        np.testing.assert_array_equal(back, host)
        np.testing.assert_array_equal(session.copy_to_worker_0(host).numpy(), host)


@with_oneccl
@workers
@dtypes
def test_moving_collectives_are_exact(open_session, dtype, count):
    """What only moves arrives bit for bit, on every worker."""
    session = open_session(count)
    rows, _ = numbers(dtype, count, 6, 5)
    mine = session.scatter(rows)
    everywhere = session.broadcast(rows)
    gathered = session.empty(rows.shape, dtype)
    session.allgather(mine, gathered)
    collected = session.empty(rows.shape, dtype)
    session.gather_to_worker0(mine, collected)
    np.testing.assert_array_equal(collected.numpy(), rows)
    for worker in range(count):
        np.testing.assert_array_equal(mine.numpy(worker), rows[worker])
        np.testing.assert_array_equal(everywhere.numpy(worker), rows)
        np.testing.assert_array_equal(gathered.numpy(worker), rows)


@with_oneccl
@workers
@dtypes
def test_reducing_collectives_compute_as_numpy_does(open_session, dtype, count):
    """Sums, means and extremes over the workers, in full and in parts."""
    session = open_session(count)
    rows, wide = numbers(dtype, count, count, 300)
    mine = session.scatter(rows)
    for op, expected in (
        ("sum", wide.sum(axis=0)),
        ("avg", wide.mean(axis=0)),
        ("max", wide.max(axis=0)),
        ("min", wide.min(axis=0)),
    ):
        total = session.empty((count, 300), dtype)
        session.allreduce(mine, total, op=op)
        for worker in range(count):
            close(total.numpy(worker), expected, dtype)
    part = session.empty((300,), dtype)
    session.reduce_scatter(mine, part, op="sum")
    for worker in range(count):
        close(part.numpy(worker), wide.sum(axis=0)[worker], dtype)
