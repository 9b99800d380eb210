"""Distributed tensors give what numpy gives, wherever and however they lie."""

from __future__ import annotations

import functools
import math

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from disco_client import ConfigError, DtypeError, EncodingError, RemoteError
from disco_client.distributed import DeviceMesh, DTensor, Placement

MESHES = [
    DeviceMesh((2,), [3, 1]),
    DeviceMesh((3,), range(3)),
    DeviceMesh((4,), range(4)),
    DeviceMesh((2, 2), range(4)),
]
DTYPES = ["float32", "float64", "int32", "int64", "complex64", "bool", "float16", "bfloat16"]

meshes = st.sampled_from(MESHES)
extents = st.integers(1, 7)
some = st.lists(extents, min_size=1, max_size=3)


def numbers(shape, dtype, seed):
    """Small whole numbers, of which sums are exact in every dtype and order."""
    values = np.random.default_rng(seed).integers(-3, 4, shape)
    if dtype == "bool":
        return values > 0
    return values.astype(ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype)


def placements(ndim, mesh, *, partial=True):
    """Any placement of a tensor of so many axes."""
    choices = ["R", *(f"S[{axis}]" for axis in range(ndim)), *(["P"] if partial else [])]
    return st.tuples(*[st.sampled_from(choices)] * mesh.ndim).map(", ".join)


@st.composite
def tensors(draw, count, shapes, dtypes=("float32", "int64")):
    """A mesh, and for each shape a host array with a placement."""
    mesh = draw(meshes)
    seed = draw(st.integers(0, 1 << 16))
    made = []
    for number, shape in enumerate(draw(shapes)):
        array = numbers(shape, draw(st.sampled_from(dtypes)), seed + number)
        made.append((array, draw(placements(array.ndim, mesh))))
    assert len(made) == count
    return mesh, made


def same(result, expected):
    """The result has the shape, the dtype and the values of what numpy gives."""
    expected = np.asarray(expected)
    assert tuple(result.shape) == expected.shape
    assert result.dtype == expected.dtype
    got = result.numpy()
    assert got.dtype == expected.dtype
    exact = expected.dtype.kind in "biu"
    tolerance = 0 if exact else 1e-2 if expected.dtype.itemsize == 2 else 2e-5
    wide = [
        np.asarray(each).astype(complex if each.dtype.kind == "c" else float)
        for each in (got, expected)
    ]
    np.testing.assert_allclose(*wide, rtol=tolerance, atol=tolerance)


def examples(count):
    return settings(max_examples=count, print_blob=True)


# In and out -------------------------------------------------------------------------


@examples(60)
@given(tensors(1, st.tuples(st.lists(st.integers(0, 5), max_size=3)), DTYPES), st.data())
def test_what_is_distributed_comes_back(workers, made, data):
    """After any redistribution, each part lying where the placement says."""
    mesh, ((array, placement),) = made
    x = workers.distribute(array, mesh, placement)
    same(x, array)
    moved = x.redistribute(data.draw(placements(array.ndim, mesh)))
    same(moved, array)
    if not any(spec.is_partial for spec in moved.placement.dim_specs):
        for place, worker in enumerate(mesh.device_ids):
            part = array[tuple(slice(*each) for each in moved.info.bounds(place))]
            np.testing.assert_array_equal(moved.shard(worker), part)


# Computing --------------------------------------------------------------------------

BINARY = {
    "add": lambda x, y: x + y,
    "subtract": lambda x, y: x - y,
    "multiply": lambda x, y: x * y,
    "maximum": np.maximum,
    "less": lambda x, y: x < y,
    "where": lambda x, y: np.where(x > y, x, y),
    "hypot": np.hypot,
}

UNARY = {
    "exp": np.exp,
    "negative": lambda x: -x,
    "absolute": abs,
    "scaled": lambda x: 3 * x + 2,
    "halved": lambda x: x / 2,
    "cast": lambda x: x.astype("float64"),
    "clip": lambda x: np.clip(x, -1, 2),
    "transpose": lambda x: x.T,
    "swapaxes": lambda x: np.swapaxes(x, 0, -1),
    "flat": lambda x: x.reshape(-1),
    "expand": lambda x: x[None, ..., None],
    "reversed": lambda x: x[::-1],
    "first": lambda x: x[0],
    "middle": lambda x: x[..., 1:],
    "stack": lambda x: np.stack([x, x], axis=1),
    "square": lambda x: x**2,
    "cumsum": lambda x: np.cumsum(x, axis=0),
    "cumsum of the last": lambda x: np.cumsum(x, axis=-1),
    "cumsum of all": np.cumsum,
    "zeros_like": np.zeros_like,
    "tile": lambda x: np.tile(x, (2, 1)),
    "repeat": lambda x: np.repeat(x, 2, axis=0),
    "repeat by counts": lambda x: np.repeat(x, np.arange(x.shape[0]), axis=0),
    "pad": lambda x: np.pad(x, 1, constant_values=2),
    "pad the last": lambda x: np.pad(x, [(0, 0)] * (x.ndim - 1) + [(2, 1)], mode="wrap"),
    "hstack": lambda x: np.hstack([x, x]),
    "dstack": lambda x: np.dstack([x, x]),
    "part": lambda x: np.array_split(x, 3, axis=-1)[1],
    "norm": np.linalg.norm,
    "norms": lambda x: np.linalg.norm(x, 1, axis=0),
    "tensordot": lambda x: np.tensordot(x, x, (0, 0)),
}


def broadcastable(draw):
    """Two shapes that numpy broadcasts."""
    whole = draw(st.lists(extents, min_size=1, max_size=3))
    shapes = []
    for _ in range(2):
        kept = whole[draw(st.integers(0, len(whole) - 1)) :]
        shapes.append([extent if draw(st.booleans()) else 1 for extent in kept])
    return shapes


@pytest.mark.parametrize("name", BINARY)
@examples(12)
@given(made=tensors(2, st.composite(broadcastable)()))
def test_functions_of_two_tensors(workers, name, made):
    """With broadcasting, and operands that lie differently."""
    mesh, ((one, here), (other, there)) = made
    x, y = workers.distribute(one, mesh, here), workers.distribute(other, mesh, there)
    same(BINARY[name](x, y), BINARY[name](one, other))


@pytest.mark.parametrize("name", UNARY)
@examples(10)
@given(made=tensors(1, st.tuples(some)))
def test_functions_of_one_tensor(workers, name, made):
    """Element by element, and those that only move elements."""
    mesh, ((array, placement),) = made
    x = workers.distribute(array, mesh, placement)
    same(UNARY[name](x), UNARY[name](array))


@pytest.mark.parametrize("name", ["sum", "prod", "max", "min", "mean", "any", "all", "var", "std"])
@examples(12)
@given(
    made=tensors(1, st.tuples(some)),
    keepdims=st.booleans(),
    data=st.data(),
)
def test_reductions(workers, name, made, keepdims, data):
    """Along one axis, several, or all."""
    mesh, ((array, placement),) = made
    axes = st.one_of(
        st.none(),
        st.integers(-array.ndim, array.ndim - 1),
        st.sets(st.integers(0, array.ndim - 1), min_size=1).map(tuple),
    )
    axis = data.draw(axes)
    x = workers.distribute(array, mesh, placement)
    reduce = functools.partial(getattr(np, name), axis=axis, keepdims=keepdims)
    same(reduce(x), reduce(array))


@examples(20)
@given(made=tensors(1, st.tuples(some)), data=st.data())
def test_where_the_largest_is(workers, made, data):
    """The first of equals, as numpy says."""
    mesh, ((array, placement),) = made
    axis = data.draw(st.integers(-array.ndim, array.ndim - 1))
    x = workers.distribute(array, mesh, placement)
    same(np.argmax(x, axis), np.argmax(array, axis))
    same(np.argmin(x, axis=axis), np.argmin(array, axis=axis))


def factors(draw):
    """Shapes of two tensors that can be multiplied, batches and vectors among them."""
    rows, inner, columns = draw(extents), draw(extents), draw(extents)
    batch = draw(st.lists(extents, max_size=2))
    one = draw(st.sampled_from([[inner], [rows, inner], [*batch, rows, inner]]))
    other = draw(st.sampled_from([[inner], [inner, columns], [*batch, inner, columns]]))
    return one, other


@examples(60)
@given(made=tensors(2, st.composite(factors)(), ["float32", "int64", "complex64"]))
def test_products(workers, made):
    """By operator and by numpy's function."""
    mesh, ((one, here), (other, there)) = made
    x, y = workers.distribute(one, mesh, here), workers.distribute(other, mesh, there)
    same(x @ y, one @ other)
    same(np.matmul(x, other), one @ other)


@pytest.mark.parametrize(
    "subscripts",
    [
        "ij,jk->ik",
        "ij,jk",
        "bij,bkj->bik",
        "ij->j",
        "i,j->ij",
        "ii->i",
        "ij,j,i->",
        "bhid,bhjd->bhij",
    ],
)
@examples(10)
@given(mesh=meshes, data=st.data())
def test_einsum(workers, subscripts, mesh, data):
    """Contractions, sums, outer products, and diagonals, which no axis of a mesh can split."""
    sizes = {letter: data.draw(extents) for letter in "bhidjk"}
    arrays, placed = [], []
    for number, letters in enumerate(subscripts.partition("->")[0].split(",")):
        array = numbers([sizes[letter] for letter in letters], "float32", number)
        arrays.append(array)
        where = data.draw(placements(array.ndim, mesh))
        placed.append(workers.distribute(array, mesh, where))
    same(np.einsum(subscripts, *placed), np.einsum(subscripts, *arrays))


@examples(20)
@given(
    mesh=meshes,
    shape=st.lists(extents, min_size=1, max_size=3),
    counts=st.lists(st.integers(0, 4), min_size=1, max_size=3),
    data=st.data(),
)
def test_concatenate(workers, mesh, shape, counts, data):
    """Along any axis, also of tensors without elements."""
    axis = data.draw(st.integers(0, len(shape) - 1))
    arrays = []
    for number, count in enumerate(counts):
        arrays.append(numbers([*shape[:axis], count, *shape[axis + 1 :]], "float32", number))
    placed = [workers.distribute(a, mesh, data.draw(placements(a.ndim, mesh))) for a in arrays]
    same(np.concatenate(placed, axis=axis), np.concatenate(arrays, axis=axis))


@examples(30)
@given(
    made=tensors(1, st.tuples(some)),
    count=st.lists(st.integers(0, 4), max_size=2),
    data=st.data(),
)
def test_rows_by_their_numbers(workers, made, count, data):
    """From a table that is split along its rows as from one that is not."""
    mesh, ((table, placement),) = made
    axis = data.draw(st.integers(0, table.ndim - 1))
    extent = table.shape[axis]
    ids = np.random.default_rng(1).integers(-extent, extent, count)
    x = workers.distribute(table, mesh, placement)
    where = workers.distribute(ids, mesh, data.draw(placements(ids.ndim, mesh)))
    same(workers.apply("take", x, where, axis=axis), np.take(table, ids, axis=axis))


@examples(30)
@given(st.lists(st.sampled_from([1, 2, 3, 4, 6]), min_size=1, max_size=4), meshes, st.data())
def test_reshape(workers, shape, mesh, data):
    """To any other shape of as many elements, keeping parts whole where they can be."""
    array = numbers(shape, "float32", 3)
    size = array.size
    target = []
    while size > 1:
        target.append(data.draw(st.sampled_from([n for n in range(2, size + 1) if not size % n])))
        size //= target[-1]
    if data.draw(st.booleans()):
        target.insert(data.draw(st.integers(0, len(target))), 1)
    x = workers.distribute(array, mesh, data.draw(placements(array.ndim, mesh)))
    same(x.reshape(target), array.reshape(target))


@pytest.mark.parametrize(
    "dtype", ["float32", "float64", "complex64", "int32", "float16", "bfloat16"]
)
def test_a_large_mean_costs_the_variance_no_digits(workers, dtype):
    """Of a split axis, in parts of different sizes; it is as exact as numpy's own two passes."""
    mesh = DeviceMesh((2, 2), range(4))
    kind = np.dtype(getattr(ml_dtypes, dtype, dtype))
    half = kind.itemsize == 2
    array = (numbers((1031, 3), "float64", 5) * 8 + (256 if half else 1e6)).astype(kind)
    exact = array.astype("complex128" if kind.kind == "c" else "float64").var(axis=0)
    # Numpy adds up halves in halves.
    numpys = array.astype("float32" if half else kind).var(axis=0)
    error = 2 * np.abs(numpys - exact) + exact * (1e-2 if half else 1e-5)
    real = (
        array.real.dtype if kind.kind == "c" else np.dtype("float64") if kind.kind == "i" else kind
    )
    for placement in ("S[0], S[0]", "S[0], P", "S[1], S[0]"):
        x = workers.distribute(array, mesh, placement)
        for name in ("var", "variance"):
            got = workers.apply(name, x, axis=0)
            assert got.dtype == real
            assert (np.abs(got.numpy().astype("float64") - exact) <= error).all()
        got = x.std(0, ddof=1).numpy().astype("float64")
        assert (np.abs(got**2 * 1030 / 1031 - exact) <= 3 * error).all()


def test_only_sums_move_for_what_is_computed_along_a_split_axis(workers):
    """Totals for a running sum, means for a variance; and for the pieces of a split nothing."""
    mesh = DeviceMesh((4,), range(4))
    x = workers.distribute(numbers((4000, 2), "float64", 1), mesh, "S[0]")
    row = 2 * 8
    assert x.cumsum(0).explain().startswith(f"cumsum -> S[0]: {3 * row} bytes")
    assert str(x.var(0).placement) == "P[sum]"
    # An allreduce of one row, or what takes its place.
    moved = sum(plan.cost for _, plan in x.var(0).origin.moves)
    assert moved <= 4 * row
    for made in (np.linalg.norm(x), np.zeros_like(x), np.repeat(x, 3, axis=0), np.tile(x, (1, 2))):
        assert sum(plan.cost for _, plan in made.origin.moves) <= 2 * row
    pieces = np.split(x, 4)
    assert not any(piece.origin.moves for piece in pieces)
    for piece, expected in zip(pieces, np.split(numbers((4000, 2), "float64", 1), 4), strict=True):
        same(piece, expected)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_the_error_function_and_the_reciprocal_root(workers, dtype):
    """To the last digits of each dtype."""
    kind = np.dtype(getattr(ml_dtypes, dtype, dtype))
    ends = [0.0, -0.0, np.inf, -np.inf, 1e-30, 0.5, -0.5]
    array = np.concatenate([np.linspace(-7, 7, 501), ends]).astype(kind)
    wide = array.astype("float64")
    mesh = workers.mesh()
    got = workers.apply("erf", workers.distribute(array, mesh, "S[0]"))
    assert got.dtype == kind
    expected = [math.erf(each) for each in wide]
    tolerance = {1: 1e-15, 2: 8e-3, 4: 3e-7, 8: 3e-15}[kind.itemsize]
    np.testing.assert_allclose(
        got.numpy().astype("float64"), expected, rtol=tolerance, atol=tolerance / 1e3
    )
    positive = np.abs(array[1:500]) + kind.type(0.25)
    root = workers.apply("rsqrt", workers.distribute(positive, mesh, "S[0]")).numpy()
    assert root.dtype == kind
    exact = 1 / np.sqrt(positive.astype("float64"))
    np.testing.assert_allclose(root.astype("float64"), exact, rtol=2 * tolerance)


def softmax(x, axis):
    shifted = np.exp(x - x.max(axis=axis, keepdims=True))
    return shifted / shifted.sum(axis=axis, keepdims=True)


def normed(x, axis, epsilon, *, centred):
    x = x - x.mean(axis=axis, keepdims=True) if centred else x
    return x / np.sqrt((x * x).mean(axis=axis, keepdims=True) + epsilon)


@examples(20)
@given(
    made=tensors(1, st.tuples(some), ["float32", "float64"]),
    data=st.data(),
)
def test_normalisations(workers, made, data):
    """Along any axis, with weights and without."""
    mesh, ((array, placement),) = made
    axis = data.draw(st.integers(0, array.ndim - 1))
    x = workers.distribute(array, mesh, placement)
    same(workers.apply("softmax", x, axis=axis), softmax(array, axis))
    weight, bias = (numbers(array.shape[axis], array.dtype, seed) for seed in (5, 6))
    along = [-1 if each == axis else 1 for each in range(array.ndim)]
    expected = normed(array, axis, 1e-5, centred=True) * weight.reshape(along)
    result = workers.apply("layer_norm", x, weight, bias, axis=axis)
    same(result, (expected + bias.reshape(along)).astype(array.dtype))
    expected = normed(array, axis, 1e-6, centred=False).astype(array.dtype)
    same(workers.apply("rms_norm", x, axis=axis), expected)


def erf_free_gelu(x):
    return 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


ACTIVATIONS = {
    "relu": lambda x: np.maximum(x, 0),
    "silu": lambda x: x / (1 + np.exp(-x)),
    "sigmoid": lambda x: 1 / (1 + np.exp(-x)),
    "gelu": erf_free_gelu,
}


@pytest.mark.parametrize("name", ACTIVATIONS)
@examples(10)
@given(made=tensors(1, st.tuples(some), ["float32", "float64"]))
def test_activations(workers, name, made):
    """By their usual definitions."""
    mesh, ((array, placement),) = made
    x = workers.distribute(array, mesh, placement)
    same(workers.apply(name, x), ACTIVATIONS[name](array).astype(array.dtype))


def test_a_program_as_one_writes_it(workers):
    """Two layers, split as people split them, and nothing moves but the partial sums."""
    mesh = workers.mesh((4,), ("tp",))
    rng = np.random.default_rng(0)
    x, up, down, bias = (
        rng.standard_normal(shape).astype("float32") for shape in ((6, 8), (8, 16), (16, 8), (8,))
    )
    split = workers.distribute(up, mesh, "S[1]"), workers.distribute(down, mesh, "S[0]")
    hidden = workers.apply("relu", workers.distribute(x, mesh, "R") @ split[0])
    assert str(hidden.placement) == "S[1]"
    partial = hidden @ split[1]
    assert str(partial.placement) == "P[sum]"
    assert partial.explain() == "matmul -> P[sum]: 0 bytes to a worker\n  nothing moved"
    result = partial + bias
    # Of the bias the first worker keeps what it has, so that the sum has it once.
    assert "keep along mesh axis 0 (tp): R -> P[sum], 0 bytes" in result.explain()
    assert str(result.redistribute("R").plan("S[0]")).startswith("R -> S[0]: 0 bytes")
    np.testing.assert_allclose(
        result.numpy(), np.maximum(x @ up, 0) @ down + bias, rtol=1e-4, atol=1e-5
    )


def test_a_captured_program_computes_with_functions_of_several_steps(workers):
    """Variances, running sums, parts and norms; what they need is made when it is captured."""
    mesh = DeviceMesh((2, 2), range(4))

    def compute(x):
        half, rest = np.split(np.cumsum(x, axis=0), [2])
        return np.pad(half, 1), np.tile(rest, 2), np.var(x, axis=0), np.linalg.norm(x)

    first, second = (numbers((5, 6), "float64", seed) for seed in (0, 1))
    x = workers.distribute(first, mesh, "S[0], S[1]")
    with workers.capture() as program:
        program.output(*compute(program.input("x", like=x)))
    for array in (first, second):
        made = program(workers.distribute(array, mesh, "S[0], S[1]"))
        for got, expected in zip(made, compute(array), strict=True):
            same(got, expected)


def test_a_captured_program_computes_with_them(workers):
    """Recorded once, redistributions included, and run with other inputs."""
    mesh = workers.mesh((4,))
    weight = workers.distribute(np.arange(16.0).reshape(8, 2), mesh, "S[0]")
    rows = workers.distribute(np.ones((3, 8)), mesh, "S[1]")
    (rows @ weight).redistribute("R")  # the team of this mesh's axis is there
    with workers.capture() as program:
        total = (rows @ weight).redistribute("R")
        program.output(total.ref)
    np.testing.assert_allclose(program().numpy(), np.ones((3, 8)) @ np.arange(16.0).reshape(8, 2))


FAR = DeviceMesh((1,), [7])

# What cannot be ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("wrong", "error", "text"),
    [
        (lambda x, s: x @ np.ones((3, 3)), ConfigError, r"matmul: \(4, 6\) and \(3, 3\)"),
        (lambda x, s: x + np.ones(5), ConfigError, "add: shapes"),
        (lambda x, s: x.reshape(5, 5), ConfigError, "cannot be reshaped"),
        (lambda x, s: x.sum(axis=2), ConfigError, "no axis 2"),
        (lambda x, s: np.sort(x), ConfigError, "no rule by which numpy.sort"),
        (lambda x, s: np.add.reduceat(x, [0]), ConfigError, "numpy.add.reduceat has no rule"),
        (lambda x, s: s.apply("nonsense", x), ConfigError, "register_rule"),
        (lambda x, s: x + "text", TypeError, "unsupported operand"),
        (
            lambda x, s: x + s.broadcast(np.ones(6)),
            EncodingError,
            r"session.distribute\(ref",
        ),
        (
            lambda x, s: s.broadcast(np.ones(6)) + x,
            EncodingError,
            "stands for a value on each",
        ),
        (lambda x, s: s.distribute(s.broadcast(np.ones(6))), EncodingError, r"ref.numpy\(\), mesh"),
        (
            lambda x, s: np.where(x > 0, x, s.broadcast(np.ones(6))),
            EncodingError,
            "tensor of worker 0's",
        ),
        (lambda x, s: x[9], IndexError, "out of bounds"),
        (lambda x, s: x.shard(9), ConfigError, "worker 9 is none of"),
        (lambda x, s: x.redistribute("S[2]"), ConfigError, "splits an axis"),
        (
            lambda x, s: s.distribute(np.ones(2), DeviceMesh((1,), [7]), "R"),
            ConfigError,
            "names worker 7",
        ),
        (lambda x, s: s.mesh((5,)), ConfigError, "names worker 4"),
        (lambda x, s: s.mesh((10**12,)), ConfigError, "of at most 65536 workers"),
        (lambda x, s: s.mesh(-1), ConfigError, "extents of at least 1"),
        (lambda x, s: s.mesh(2.5), DtypeError, "an integer for an extent of the mesh, got 2.5"),
        (lambda x, s: s.mesh((2, 2.0)), DtypeError, "an integer for an extent of the mesh"),
        (lambda x, s: x.reshape(6, 2.0), DtypeError, r"expected integers, got \(6, 2.0\)"),
        (lambda x, s: x.reshape("ab"), DtypeError, "expected integers, got "),
        (lambda x, s: s.apply("reshape", x, shape=4), DtypeError, "expected a shape such as"),
        (lambda x, s: x.reshape(10**30), ConfigError, r"be reshaped to \(10000"),
        (lambda x, s: np.tile(x, 1.5), DtypeError, "tile: expected integers, got "),
        (lambda x, s: np.split(x, [1.5]), DtypeError, "split: expected integers, got "),
        (lambda x, s: s.apply("repeat", x, repeats=1.5, axis=0), DtypeError, "expected integers"),
        (lambda x, s: x + s.distribute(np.ones(6), s.mesh((2,)), "R"), ConfigError, "on one mesh"),
        (lambda x, s: s.apply("softmax", x.astype("int32")), ConfigError, "floating-point"),
    ],
)
def test_what_cannot_be_is_refused_here(workers, wrong, error, text):
    """Before anything is sent, with what to do."""
    x = workers.distribute(np.ones((4, 6), "float32"), workers.mesh(), "S[0]")
    with pytest.raises(error, match=text):
        wrong(x, workers)
    same(x, np.ones((4, 6), "float32"))


def test_a_failure_on_the_workers_is_an_error_of_the_result(workers):
    """Positions on the workers that there are not, in a table that every worker has whole."""
    x = workers.distribute(np.arange(4.0), workers.mesh(), "R")
    result = workers.apply("take", x, workers.distribute(np.array([9]), workers.mesh(), "R"))
    with pytest.raises(RemoteError, match="out of bounds"):
        result.numpy()
    same(x, np.arange(4.0))


def test_a_tensor_says_what_it_is(workers):
    """Its shape, dtype, placement, mesh, and the sizes of its parts."""
    x = workers.distribute(np.ones((5, 2), "int8"), workers.mesh((2, 2), ("a", "b")), "S[0], R")
    assert repr(x) == (
        "DTensor((5, 2), int8, 'S[0], R' on DeviceMesh((2, 2), range(0, 4), names=('a', 'b')),"
        " parts of (3, 2) or (2, 2))"
    )
    assert (x.ndim, x.size, len(x), x.placement) == (2, 10, 5, Placement.from_text("S[0]R"))
    with pytest.raises(TypeError, match="no length"):
        len(x.sum())


def test_the_class_has_no_public_names_of_the_inside():
    """Beside numpy's names there are those of the reference alone, which a person may call."""
    public = {name for name in dir(DTensor) if not name.startswith("_")}
    assert public - set(dir(np.ndarray)) == {
        *("at", "debug_get_from_remote", "explain", "info", "mesh", "name", "origin"),
        *("placement", "plan", "redistribute", "ref", "reg_id", "session", "shape_on", "shard"),
        *("numpy", "split"),
    }
