"""Distributed tensors where Python and numpy expect an array."""

from __future__ import annotations

import math

import numpy as np
import pytest

from disco_client import ConfigError

ARRAY = np.arange(6.0).reshape(2, 3) - 2


@pytest.fixture
def x(workers):
    """A tensor whose rows are split."""
    return workers.distribute(ARRAY, workers.mesh(), "S[0]")


def test_numpy_fetches_where_it_needs_an_array(x):
    """Also to another dtype, and in functions that compute on the host."""
    for got in (np.asarray(x), np.array(x), np.asarray(x, "int8"), np.array([x, x])[1]):
        np.testing.assert_array_equal(got, ARRAY)
    assert np.asarray(x, "int8").dtype == np.int8
    np.testing.assert_allclose(x, ARRAY)
    with pytest.raises(ValueError, match="always a copy"):
        np.array(x, copy=False)


def test_what_has_one_element_is_a_number(x):
    """Where Python asks for one; ``item`` takes it also where there are axes."""
    total = x.sum()
    assert (float(total), int(total), complex(total), bool(total)) == (3.0, 3, 3 + 0j, True)
    assert x[:1, :1].item() == -2.0
    assert type(x[:1, :1].item()) is float
    assert not x[0, 2]
    assert math.isclose(math.exp(x[1, 0]), math.e)
    assert f"{total:.2f}" == "3.00"
    assert f"{total}" == repr(total)
    assert x.tolist() == ARRAY.tolist()


def test_an_integer_counts_positions(workers):
    """Other dtypes do not."""
    n = workers.distribute(np.array(2), workers.mesh(), "R")
    assert [10, 11, 12][n] == 12
    assert list(range(n)) == [0, 1]
    with pytest.raises(TypeError, match="only integers count positions, got a tensor of float64"):
        range(n * 1.0)


@pytest.mark.parametrize(
    ("wrong", "error", "text"),
    [
        (bool, ValueError, r"\(2, 3\) is neither true nor false: use .any\(\) or .all\(\)"),
        (lambda x: 0 < x < 3, ValueError, "chains of comparisons"),
        (lambda x: bool(x[:0]), ValueError, r"\(0, 3\) is neither true nor false"),
        (float, TypeError, r"without axes is a number, got one of shape \(2, 3\)"),
        (int, TypeError, "without axes"),
        (lambda x: x.item(), ValueError, "only a tensor of one element"),
        (lambda x: f"{x:.2f}", ValueError, r"a number, got one of shape \(2, 3\)"),
        (lambda x: iter(x.sum()), TypeError, "cannot be iterated over"),
        (lambda x: len(x.sum()), TypeError, "no length"),
        (hash, TypeError, "unhashable"),
    ],
)
def test_what_is_no_number_says_so(x, wrong, error, text):
    """As numpy does, with what to do."""
    with pytest.raises(error, match=text):
        wrong(x)


def test_iterating_gives_rows(x):
    """Each a tensor; unpacking, too."""
    first, second = x
    np.testing.assert_array_equal(second.numpy(), ARRAY[1])
    assert [row.shape for row in x] == [(3,), (3,)]
    assert first.mesh == x.mesh
    assert 3.0 in x
    assert 7.0 not in x


def test_operators_with_equals_make_another_tensor(x):
    """Which gets the name; the one of before stays as it was."""
    before = x
    x += 1
    np.testing.assert_array_equal(before.numpy(), ARRAY)
    np.testing.assert_array_equal(x.numpy(), ARRAY + 1)
    x @= np.ones((3, 3))
    x **= 2
    assert x.shape == (2, 3)
    host = np.ones((2, 3))
    with pytest.raises(ConfigError, match=r"numpy\.add with out"):
        host += x


def test_sizes(x):
    """Of the whole, copies not counted."""
    assert (x.ndim, x.size, x.itemsize, x.nbytes, len(x)) == (2, 6, 8, 48, 2)
    assert (np.ndim(x), np.size(x), np.size(x, 1), np.shape(x)) == (2, 6, 3, (2, 3))


METHODS = {
    "any": lambda x: (x > 2).any(axis=1),
    "all": lambda x: (x > -9).all(keepdims=True),
    "clip": lambda x: x.clip(-1, 1),
    "clip below": lambda x: x.clip(0),
    "round": lambda x: (x / 3).round(1),
    "take": lambda x: x.take([[2, -1], [0, 1]], axis=1),
    "take of all": lambda x: x.take(np.array([5, 0])),
    "argmax": lambda x: x.argmax(),
    "argmin": lambda x: x.argmin(axis=-1),
    "var": lambda x: x.var(),
    "std": lambda x: x.std(axis=0, ddof=1, keepdims=True),
    "cumsum": lambda x: x.cumsum(1),
    "cumsum of all": lambda x: x.cumsum(),
    "repeat": lambda x: x.repeat(2, axis=1),
    "transpose": lambda x: x.transpose(1, 0),
    "transpose all": lambda x: x.transpose(None),
    "transpose in one": lambda x: x.transpose((0, 1)),
    "reshape": lambda x: x.reshape(3, 2),
    "reshape to one": lambda x: x.reshape(np.int64(6)),
    "reshape in one": lambda x: x.reshape([-1, 2]),
    "T": lambda x: x.T,
    "abs": abs,
    "positive": lambda x: +x,
    "divmod's halves": lambda x: (x // 2) * 2 + x % 2,
    "reflected": lambda x: 2 ** (7 - x),
    "shift": lambda x: (x.astype("int64") << 2) >> 1,
    "invert": lambda x: ~(x > 0) | (x > 2) & (x < 5) ^ (x == 1),
    "numpy scalar first": lambda x: np.float32(2) * x,
    "array first": lambda x: np.ones(3) - x,
    "complex": lambda x: x * 1j + (2 - 1j),
    "negative steps": lambda x: x[::-1, 2:0:-1],
    "dots and new axes": lambda x: x[None, ..., -1, None],
    "numpy's integers": lambda x: x[np.int64(1), np.int8(-1)],
    "nothing": lambda x: x[:, 3:],
}


@pytest.mark.parametrize("name", METHODS)
def test_methods_and_operators_are_those_of_arrays(x, name):
    """The same call on both gives the same."""
    got, want = METHODS[name](x), np.asarray(METHODS[name](ARRAY))
    assert (tuple(got.shape), got.dtype) == (want.shape, want.dtype)
    np.testing.assert_allclose(got.numpy(), want)


def test_rounding(x, workers):
    """Python's function too, which numpy has for its numbers only; integers stay."""
    np.testing.assert_array_equal(round(x / 4).numpy(), np.round(ARRAY / 4))
    np.testing.assert_array_equal(round(x / 7, 2).numpy(), np.round(ARRAY / 7, 2))
    np.testing.assert_array_equal(round(x * 7, -1).numpy(), np.round(ARRAY * 7, -1))
    n = workers.distribute(np.arange(3), workers.mesh(), "R")
    np.testing.assert_array_equal(np.round(n, 2).numpy(), np.arange(3))
    assert np.round(n, 2).explain() == "round -> R: 0 bytes to a worker\n  nothing moved"
    with pytest.raises(ConfigError, match="fewer than 0 decimals"):
        np.round(n, -1)


@pytest.mark.parametrize("dtype", ["float32", "int16", "complex64"])
def test_numbers_of_python_take_the_precision_of_the_tensor(workers, dtype):
    """And those of numpy have their own, as with arrays."""
    array = np.ones(3, dtype)
    x = workers.distribute(array, workers.mesh(), "S[0]")
    for number in (2, 2.5, 1j, True, np.float64(2), np.int8(3), np.complex128(1j)):
        assert (x * number).dtype == (array * number).dtype
        assert (number + x).dtype == (number + array).dtype
