"""numpy's products that are no ufuncs, and diagonals: as numpy's, of any placement."""

import numpy as np
import pytest

from disco_client import ConfigError, ThreadedSession

PLACEMENTS = ("R", "S[0]", "S[1]", "P")

CALLS = {
    "outer": lambda m, x, y: m.outer(x, y[0]),
    "outer, a list": lambda m, x, y: m.outer(x, [1, 2, 3]),
    "inner": lambda m, x, y: m.inner(x, y),
    "inner, vectors": lambda m, x, y: m.inner(x[0], y[1]),
    "inner, a number": lambda m, x, y: m.inner(x, 2.0),
    "vdot": lambda m, x, y: m.vdot(x, y),
    "kron": lambda m, x, y: m.kron(x, y[:2]),
    "kron, a vector": lambda m, x, y: m.kron(x, y[0]),
    "cross": lambda m, x, y: m.cross(x, y),
    "cross, an axis": lambda m, x, y: m.cross(x[:3], y[:3], axis=0),
    "cross, three axes": lambda m, x, y: m.cross(x[:3], y[:3], axisa=0, axisb=1, axisc=0),
    "diagonal": lambda m, x, y: m.diagonal(x),
    "diagonal, above": lambda m, x, y: m.diagonal(x, 1),
    "diagonal, below": lambda m, x, y: m.diagonal(x, -2),
    "diagonal, none": lambda m, x, y: m.diagonal(x, 7),
    "diagonal, of three axes": lambda m, x, y: m.diagonal(x[:, :, None] * y[0], 0, 2, 0),
    "trace": lambda m, x, y: m.trace(x),
    "trace, below": lambda m, x, y: m.trace(x, -1),
    "linalg.outer": lambda m, x, y: m.linalg.outer(x[0], y[:, 0]),
    "linalg.vecdot": lambda m, x, y: m.linalg.vecdot(x, y),
    "linalg.vecdot, an axis": lambda m, x, y: m.linalg.vecdot(x, y[:, :1], axis=0),
    "linalg.cross": lambda m, x, y: m.linalg.cross(x, y),
    "linalg.diagonal": lambda m, x, y: m.linalg.diagonal(x, offset=1),
    "linalg.trace": lambda m, x, y: m.linalg.trace(x),
    "linalg.matmul": lambda m, x, y: m.linalg.matmul(x, y[:3]),
    "linalg.tensordot": lambda m, x, y: m.linalg.tensordot(x, y, axes=2),
}


@pytest.fixture(scope="module")
def threads():
    with ThreadedSession(3) as session:
        yield session


def numbers(dtype):
    """Two matrices of small whole numbers, so that sums are exact in any order."""
    random = np.random.default_rng(0)
    parts = [random.integers(-5, 6, (5, 3)).astype(dtype) for _ in range(4)]
    if np.dtype(dtype).kind == "c":
        return parts[0] + 1j * parts[1], parts[2] + 1j * parts[3]
    return parts[0], parts[2]


def same(got, want):
    assert got.shape == np.shape(want)
    assert got.dtype == np.asarray(want).dtype
    np.testing.assert_array_equal(got.numpy(), want)


@pytest.mark.parametrize("dtype", ["float64", "int8", "complex64"])
@pytest.mark.parametrize("placement", PLACEMENTS)
@pytest.mark.parametrize("name", CALLS)
def test_the_product_is_numpys(threads, name, placement, dtype):
    """Values, shape and dtype."""
    a, b = numbers(dtype)
    x, y = (threads.distribute(each, placement=placement) for each in (a, b))
    same(CALLS[name](np, x, y), CALLS[name](np, a, b))


@pytest.mark.parametrize("order", [2, 1, 3, np.inf, -np.inf, 0])
@pytest.mark.parametrize("axis", [None, 0, -1, (0, 1), (1,)])
@pytest.mark.parametrize("keepdims", [False, True])
def test_the_norm_of_vectors_is_numpys(threads, order, axis, keepdims):
    """Of all elements, along an axis or along several."""
    a, _ = numbers("float64")
    x = threads.distribute(a, placement="S[0]")
    got, want = (
        np.linalg.vector_norm(each, axis=axis, keepdims=keepdims, ord=order) for each in (x, a)
    )
    assert got.shape == np.shape(want)
    np.testing.assert_allclose(got.numpy(), want, rtol=1e-14)


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda x: np.inner(x, x[:, :2]), "the last axes of"),
        (lambda x: np.vdot(x, x[:2]), "vdot: 15 and 6 elements do not fit"),
        (lambda x: np.cross(x[:, :2], x[:, :2]), "expected vectors of 3 along axis -1"),
        (lambda x: np.diagonal(x[0]), "needs at least two axes"),
        (lambda x: np.diagonal(x, 0, 1, 1), "named twice"),
        (lambda x: np.linalg.outer(x, x[0]), "linalg.outer needs vectors"),
        (lambda x: np.linalg.vecdot(x, x[:, :2]), "is not equally long"),
        (lambda x: np.outer(x, x, out=x), "cannot write distributed tensors into out"),
    ],
)
def test_what_does_not_fit_is_refused(threads, call, text):
    """With the shapes that came."""
    x = threads.distribute(numbers("float64")[0], placement="S[0]")
    with pytest.raises(ConfigError, match=text):
        call(x)
