"""Distributed tensors on every kind of session, GPUs of a stand-in among them."""

from __future__ import annotations

import copy
import math

import numpy as np
import pytest

import disco_client as di
from disco_client.distributed import DeviceMesh

pytestmark = pytest.mark.layouts((4, 1))

GRID = DeviceMesh((2, 2), [2, 0, 3, 1], ("dp", "tp"))
LINE = DeviceMesh((3,), [1, 3, 0])


def numbers(shape, dtype="float32", seed=0):
    """Small whole numbers, of which sums are exact."""
    return np.random.default_rng(seed).integers(-3, 4, shape).astype(dtype)


MOVES = {
    "slice": ("R, R", "S[0], S[1]"),
    "allgather": ("S[0], S[1]", "R, R"),
    "all-to-all": ("S[0], R", "S[1], R"),
    "allreduce": ("P, R", "R, R"),
    "allreduce-max": ("P[max], R", "R, R"),
    "reduce-scatter": ("S[0], P", "S[0], S[1]"),
    "keep": ("R, S[1]", "P, S[1]"),
}


@pytest.mark.parametrize("name", MOVES)
def test_every_move(session, name):
    """Each with uneven and empty parts, and back again; every part where it belongs."""
    for shape in ((5, 7), (1, 3), (0, 2)):
        check_move(session, name, numbers(shape))


def check_move(session, name, array):
    before, after = MOVES[name]
    x = session.distribute(array, GRID, before)
    assert name.partition("-max")[0] in {step.move for step in x.plan(after).steps}
    moved = x.redistribute(after)
    np.testing.assert_array_equal(moved.numpy(), array)
    np.testing.assert_array_equal(moved.redistribute(before).numpy(), array)
    if "P" not in after:
        for place, worker in enumerate(GRID.device_ids):
            part = tuple(slice(*bounds) for bounds in moved.info.bounds(place))
            np.testing.assert_array_equal(moved.shard(worker), array[part])


JOURNEYS = {
    "parts": ("S[0], S[1]", "S[1]"),
    "copies": ("R, R", "S[0]"),
    "to copies": ("S[1], R", "R"),
    "sums": ("P, S[0]", "R"),
    "sums and copies": ("R, P", "S[1]"),
    "largest": ("P[max], P[max]", "R"),
    "to sums": ("S[0], R", "P"),
    "given parts": ("S[0: 0-1, 1-5], R", "S[0: 2-5, -, 0-3]"),
}


@pytest.mark.parametrize("name", JOURNEYS)
def test_to_another_mesh_and_back(session, name):
    """With other workers and another shape; every part where it belongs, nothing sent twice."""
    before, after = JOURNEYS[name]
    for shape in ((5, 7), (5, 1)):
        array = numbers(shape)
        x = session.distribute(array, GRID, before)
        plan, at_first = x.plan(LINE, after), received(session)
        moved = x.redistribute(LINE, after)
        assert received(session) - at_first == plan.nbytes == plan.bound
        np.testing.assert_array_equal(moved.numpy(), array)
        for place, worker in enumerate(LINE.device_ids if "P" not in after else ()):
            axes = [[i for a, b in each for i in range(a, b)] for each in moved.info.pieces(place)]
            np.testing.assert_array_equal(moved.shard(worker), array[np.ix_(*axes)])
        np.testing.assert_array_equal(moved.redistribute(GRID, before).numpy(), array)


def received(session):
    """How many bytes all workers together have brought to each other."""
    return sum(session.get_global_func("runtime.disco._received_bytes")().get_all())


def test_dtypes_between_meshes(session):
    """Combined or only moved, bit for bit."""
    for dtype in ("float64", "float16", "int32", "int8", "bool", "complex64"):
        array = numbers((4, 6)) > 0 if dtype == "bool" else numbers((4, 6), dtype)
        for before in ("S[0], P", "R, S[1]"):
            moved = session.distribute(array, GRID, before).redistribute(LINE, "R")
            for worker in LINE.device_ids:
                assert moved.shard(worker).dtype == array.dtype
                np.testing.assert_array_equal(moved.shard(worker), array)


def test_assigning(session):
    """Values go from mesh to mesh, into tensors that stay; twice, as what is there fits then."""
    for seed in (1, 2):
        arrays = {name: numbers(shape, seed=seed) for name, shape in (("w", (5, 7)), ("b", (3,)))}
        sources = {name: session.distribute(a, GRID, "S[0], P") for name, a in arrays.items()}
        if seed == 1:
            targets = {name: session.distribute(0 * a, LINE, "S[0]") for name, a in arrays.items()}
        session.assign(targets, sources)
        for name, array in arrays.items():
            np.testing.assert_array_equal(targets[name].numpy(), array)


def test_what_stays_where_it_is(session):
    """Slices, joined and shifted parts; what moves not is right where it lies, also captured."""
    array = numbers((9, 4))
    x = session.distribute(array, GRID, "S[0], R")
    made = {
        "slice": lambda m, x: x[1:7:2],
        "backwards": lambda m, x: x[::-2, 1:],
        "row": lambda m, x: x[4],
        "gather": lambda m, x: x[[3, -1, 3]],
        "concatenate": lambda m, x: m.concatenate([x[5:], x, x[:2]]),
        "roll": lambda m, x: m.roll(x, 2, axis=0) + x,
        "diff": lambda m, x: m.diff(x, axis=0),
        "tril": lambda m, x: m.tril(x, 1),
    }
    for make in made.values():
        y, want = make(np, x), make(np, array)
        np.testing.assert_array_equal(y.numpy(), want)
        for worker in GRID.device_ids:
            assert y.shard(worker).shape == y.shape_on(worker)
    with session.capture() as program:
        program.output(sum(make(np, x).sum() for make in made.values()))
    want = sum(make(np, array).sum() for make in made.values())
    for _ in range(2):
        np.testing.assert_array_equal(program().numpy(), want)


def test_what_is_made_on_the_workers(session):
    """By its positions, in every part where it belongs."""
    xp = session.numpy(mesh=GRID, placement="S[0], S[1]")
    made = {
        "zeros": lambda m: m.zeros((5, 3), "int16"),
        "full": lambda m: m.full((5, 3), -1.5, "float32"),
        "arange": lambda m: m.arange(3, 17, 2),
        "arange of floats": lambda m: m.arange(0.5, 3, 0.25, dtype="float32"),
        "linspace": lambda m: m.linspace(0, 3, 7),
        "eye": lambda m: m.eye(4, 6, 1),
        "tri": lambda m: m.tri(5),
        "indices": lambda m: m.indices((3, 4)),
        "like": lambda m: m.full_like(m.zeros((3, 2)), 4),
    }
    for make in made.values():
        x, want = make(xp), make(np)
        assert x.dtype == want.dtype
        np.testing.assert_array_equal(x.numpy(), want)
        for place, worker in enumerate(GRID.device_ids):
            part = tuple(slice(*bounds) for bounds in x.info.bounds(place))
            np.testing.assert_array_equal(x.shard(worker), want[part])


def test_what_is_assigned_is_no_other_tensors(session):
    """Those that were made of one without a change keep its values, and it keeps theirs."""
    array = numbers((5, 7), "int32")
    for make in (lambda x: x.redistribute("S[0], R"), np.round, copy.copy, lambda x: x[...]):
        for turned in (False, True):
            x = session.distribute(array, GRID, "S[0], R")
            target, kept = (x, make(x))[:: -1 if turned else 1]
            session.assign({"x": target}, {"x": session.distribute(array + 1, GRID, "R, S[1]")})
            np.testing.assert_array_equal(target.numpy(), array + 1)
            np.testing.assert_array_equal(kept.numpy(), array)


@pytest.mark.usefixtures("settled")
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_sums_by_zero_and_what_is_not_finite(session):
    """As numpy gives them, also where parts of a sum would be infinite each."""
    for dtype in ("float32", "float16", "complex64"):
        parts = np.array([[5, 3, 1, 0], [-8, -3, 1, 0], [0, 0, 2, 0]], dtype)
        for number in (0, math.inf, -math.inf, math.nan, np.float32(0), np.array(0, dtype), 0j, 4):
            total = session.distribute(parts, LINE, "S[0]").sum(axis=0)
            assert str(total.placement) == "P[sum]"
            host = parts.sum(axis=0)
            np.testing.assert_array_equal((total / number).numpy(), host / number)
            np.testing.assert_array_equal((number * total).numpy(), number * host)
        x = session.distribute(np.abs(parts), LINE, "S[0]")
        np.testing.assert_array_equal(x.var(axis=0, ddof=3).numpy(), np.abs(parts).var(0, ddof=3))


def test_dtypes(session):
    """Those that numpy and cupy share."""
    for dtype in ("float64", "float16", "int32", "int8", "bool", "complex64"):
        array = numbers((4, 6)) > 0 if dtype == "bool" else numbers((4, 6), dtype)
        x = session.distribute(array, GRID, "S[0], P")
        for placement in ("R, S[1]", "S[1], S[0]"):
            got = x.redistribute(placement).numpy()
            np.testing.assert_array_equal(got, array)
            assert got.dtype == array.dtype


def test_a_large_array_comes_and_goes(session):
    """As host arrays, with copies made among the workers."""
    array = numbers((300, 128))
    for placement in ("R, R", "S[0], R", "S[1], S[0]", "P, R"):
        np.testing.assert_array_equal(session.distribute(array, GRID, placement).numpy(), array)
    y = session.distribute(array, GRID, "S[0], R") * array
    np.testing.assert_array_equal(y.numpy(), array * array)


FUNCTIONS = {
    "arithmetic": lambda x, y, m: (x + y) * 2 - x / 4,
    "power": lambda x, y, m: x**2,
    "comparison": lambda x, y, m: x > y,
    "ufuncs": lambda x, y, m: m.exp(x) + m.maximum(x, y),
    "broadcast": lambda x, y, m: x + y[0],
    "where": lambda x, y, m: m.where(x > y, x, 0.5),
    "clip": lambda x, y, m: m.clip(x, -1, 1),
    "sum": lambda x, y, m: x.sum(axis=0, keepdims=True),
    "all": lambda x, y, m: (x * y).sum(),
    "mean": lambda x, y, m: m.mean(x, axis=-1),
    "max": lambda x, y, m: x.max(axis=1),
    "prod": lambda x, y, m: m.prod(x, axis=0),
    "any": lambda x, y, m: m.any(x > 2, axis=1),
    "argmax": lambda x, y, m: m.argmax(x, axis=1),
    "matmul": lambda x, y, m: x @ y.T,
    "einsum": lambda x, y, m: m.einsum("ij,kj->ik", x, y),
    "transpose": lambda x, y, m: x.T,
    "reshape": lambda x, y, m: x.reshape(4, 3, 2),
    "slices": lambda x, y, m: x[1:, ::2],
    "one row": lambda x, y, m: x[-1],
    "concatenate": lambda x, y, m: m.concatenate([x, y], axis=1),
    "stack": lambda x, y, m: m.stack([x, y]),
    "take": lambda x, y, m: m.take(x, np.array([[3, 0], [-1, 2]]), axis=0),
    "cast": lambda x, y, m: x.astype("int32"),
    "round": lambda x, y, m: m.round(x / 3, 1),
    "var": lambda x, y, m: m.var(x, axis=0, ddof=1),
    "std": lambda x, y, m: m.std(x),
    "norm": lambda x, y, m: m.linalg.norm(x, axis=1),
    "cumsum": lambda x, y, m: m.cumsum(x, axis=0) + m.cumsum(y, axis=1),
    "split": lambda x, y, m: m.split(x, 3, axis=1)[1] * m.split(x, [2], axis=0)[1][0, 0],
    "stacks": lambda x, y, m: m.dstack([m.vstack([x, y]), m.vstack([y, x])]),
    "rows and columns": lambda x, y, m: m.hstack([m.column_stack([x[:, 0], y]), x]),
    "tensordot": lambda x, y, m: m.tensordot(x, y, (1, 1)),
    "tile": lambda x, y, m: m.tile(x, (2, 3)),
    "repeat": lambda x, y, m: m.repeat(x, 2, axis=0) * m.repeat(y, [0, 3, 1, 4], axis=0),
    "pad": lambda x, y, m: m.pad(x, ((1, 0), (0, 2)), constant_values=7),
    "pad by wrapping": lambda x, y, m: m.pad(x, 2, mode="wrap"),
    "zeros_like": lambda x, y, m: m.zeros_like(x, dtype="int32"),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions(session, name):
    """As numpy computes them, wherever the operands lie; one of them is a host array, too."""
    one, other = numbers((4, 6)), numbers((4, 6), seed=1)
    expected = FUNCTIONS[name](one, other, np)
    for placement in ("S[0], R", "S[1], S[0]", "P, S[0]"):
        x = session.distribute(one, GRID, placement)
        for y in (session.distribute(other, GRID, "S[0], S[1]"), other):
            got = FUNCTIONS[name](x, y, np)
            assert got.dtype == expected.dtype
            np.testing.assert_allclose(got.numpy(), expected, rtol=1e-5, atol=1e-6)


def test_functions_that_numpy_lacks(session):
    """Normalisations and activations, against what they are defined by."""
    array = numbers((6, 5))
    x = session.distribute(array, LINE, "S[0]")
    shifted = np.exp(array - array.max(axis=-1, keepdims=True))
    expected = {
        "softmax": shifted / shifted.sum(axis=-1, keepdims=True),
        "relu": np.maximum(array, 0),
        "sigmoid": 1 / (1 + np.exp(-array)),
        "erf": np.vectorize(math.erf)(array),
        "std": array.std(),
        "variance": array.var(),
        "silu": array / (1 + np.exp(-array)),
        "rms_norm": array / np.sqrt((array * array).mean(axis=-1, keepdims=True) + 1e-6),
        "layer_norm": (array - array.mean(axis=-1, keepdims=True))
        / np.sqrt(array.var(axis=-1, keepdims=True) + 1e-5),
        "gelu": 0.5 * array * (1 + np.tanh(np.sqrt(2 / np.pi) * (array + 0.044715 * array**3))),
    }
    for name, want in expected.items():
        got = session.apply(name, x).numpy()
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5, err_msg=name)
    root = session.apply("rsqrt", np.abs(x) + 1).numpy()
    np.testing.assert_allclose(root, 1 / np.sqrt(np.abs(array) + 1), rtol=1e-6)
    weighted = session.apply("layer_norm", x, numbers(5), numbers(5, seed=2))
    want = expected["layer_norm"] * numbers(5) + numbers(5, seed=2)
    np.testing.assert_allclose(weighted.numpy(), want, rtol=1e-4, atol=1e-5)


def test_a_row_of_a_split_table(session):
    """Its worker gives it, and the others zeros."""
    table = numbers((7, 3))
    x = session.distribute(table, LINE, "S[0]")
    rows = np.take(x, np.array([6, 0, -7, 3]), axis=0)
    assert str(rows.placement) == "P[sum]"
    np.testing.assert_array_equal(rows.numpy(), table[[6, 0, -7, 3]])


def test_what_is_fetched_is_the_programs_own(session):
    """Changing it changes nothing on the workers, also where they share its memory."""
    for placement in ("R, R", "S[0], R"):
        x = session.distribute(np.arange(8.0), GRID, placement)
        x.numpy()[:] = -1
        x.shard(GRID.device_ids[0])[:] = -1
        np.testing.assert_array_equal(x.numpy(), np.arange(8.0))


def test_what_is_distributed_may_be_changed_afterwards(session):
    """The workers have their own, whatever its size."""
    for size in (8, 100_000):
        array = np.ones(size)
        x = session.distribute(array, GRID, "S[0], R")
        y = x + array
        array[:] = 7
        np.testing.assert_array_equal(y.numpy(), np.full(size, 2.0))
        np.testing.assert_array_equal(x.numpy(), np.ones(size))


def test_positions_out_of_bounds_are_an_error_wherever_they_lie(session):
    """Found here where they are known here, else by each worker that has them; nothing hangs."""
    array = numbers((5, 3))
    for placement in ("R, R", "S[0], R", "S[0], S[0]", "P, R", "S[1], S[0]"):
        x = session.distribute(array, GRID, placement)
        for ids in ([0, 5], [-6, 0], np.array([2, 2**63 + 4], "uint64")):
            with pytest.raises(IndexError, match="out of bounds for an axis of 5"):
                x.take(ids, axis=0)
            on_workers = session.distribute(np.asarray(ids), GRID, "S[0], R")
            for use in (lambda y: y.numpy(), lambda y: y.redistribute("R, R").numpy(), np.sum):
                with pytest.raises(di.RemoteError, match=r"IndexError: position .* is out"):
                    np.asarray(use(x.take(on_workers, axis=0)))
        start = session.distribute(np.array(-1, "int8"), GRID, "R, R")
        with pytest.raises(di.RemoteError, match="IndexError: update: 2 elements from -1 on"):
            session.apply("update", x, array[:2], start).numpy()
        np.testing.assert_array_equal((x + 0).numpy(), array)


def test_positions_of_any_dtype_count_in_64_bits(session):
    """Also where the extent of the table does not fit their dtype; negative ones from the end."""
    array = np.arange(300, dtype="float32")
    for placement in ("R, R", "S[0], R", "S[0], S[0]", "P, R"):
        x = session.distribute(array, GRID, placement)
        for dtype in ("int8", "uint8", "int16", "uint16", "int64", "uint64"):
            ids = np.array([[0, 127], [100, 3]], dtype)
            if np.dtype(dtype).kind == "i":
                ids[1] = [-1, -128]
            for given in (ids, session.distribute(ids, GRID, "R, S[1]")):
                np.testing.assert_array_equal(x.take(given).numpy(), array.take(ids))


def test_a_failure_names_the_function(session):
    """And the session computes on."""
    x = session.distribute(np.arange(4.0), GRID, "R, R")
    with pytest.raises(di.RemoteError, match="position 9 is out of bounds for an axis of 4"):
        np.take(x, session.distribute(np.array([9]), GRID, "R, R"), axis=0).numpy()
    np.testing.assert_array_equal((x + 1).numpy(), np.arange(4.0) + 1)
