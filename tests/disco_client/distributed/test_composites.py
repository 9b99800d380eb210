"""numpy's functions on distributed tensors, and what they refuse."""

from __future__ import annotations

import numpy as np
import pytest

from disco_client import ConfigError

ARRAY = np.random.default_rng(0).integers(-9, 9, (4, 6)).astype("float32")


@pytest.fixture
def x(workers):
    """A tensor split along both axes."""
    return workers.distribute(ARRAY, workers.mesh((2, 2)), "S[0], S[1]")


CALLS = {
    "all positional": lambda m, x: m.sum(x, 0, "float64", None, True),
    "all by name": lambda m, x: m.sum(a=x, axis=(0, -1), dtype=None, out=None, keepdims=False),
    "prod": lambda m, x: m.prod(x, 1, keepdims=True),
    "max": lambda m, x: m.max(x, 1, None, True),
    "mean": lambda m, x: m.mean(x, axis=-1, keepdims=True),
    "any": lambda m, x: m.any(x, 1),
    "argmax of all": lambda m, x: m.argmax(x),
    "argmin": lambda m, x: m.argmin(x, axis=1),
    "clip by the old names": lambda m, x: m.clip(x, a_min=-2, a_max=None),
    "clip by limits": lambda m, x: m.clip(x, ARRAY[0] - 1, ARRAY[0] + 1),
    "dot": lambda m, x: m.dot(x, ARRAY.T),
    "dot of a vector": lambda m, x: m.dot(x, ARRAY[0]),
    "dot of many axes and two": lambda m, x: m.dot(m.stack([x, x]), ARRAY.T),
    "dot of a number": lambda m, x: m.dot(x, 3),
    "reshape to one number": lambda m, x: m.reshape(x, -1),
    "ravel": lambda m, x: m.ravel(x),
    "squeeze": lambda m, x: m.squeeze(x[None, :, :1]),
    "squeeze one": lambda m, x: m.squeeze(x[None, :, :1], axis=0),
    "expand_dims": lambda m, x: m.expand_dims(x, (0, -1)),
    "expand_dims by one": lambda m, x: m.expand_dims(x, -2),
    "swapaxes": lambda m, x: m.swapaxes(x, -1, 0),
    "stack": lambda m, x: m.stack([x, ARRAY, x], axis=-1),
    "concatenate all": lambda m, x: m.concatenate([x, ARRAY], axis=None),
    "concatenate": lambda m, x: m.concatenate((x, ARRAY[:, :1]), -1),
    "take": lambda m, x: m.take(x, 3, axis=1),
    "take from all": lambda m, x: m.take(x, [[0, 23], [-1, 5]]),
    "take nothing": lambda m, x: m.take(x, [], axis=0),
    "transpose": lambda m, x: m.transpose(x, (-1, 0)),
    "where": lambda m, x: m.where(x > 0, x, 0),
    "var": lambda m, x: m.var(x, 1, None, None, 1, True),
    "std of all": lambda m, x: m.std(x, ddof=2),
    "std": lambda m, x: m.std(x, axis=(0, 1), keepdims=True),
    "cumsum of all": lambda m, x: m.cumsum(x),
    "cumsum in another dtype": lambda m, x: m.cumsum(x, axis=-1, dtype="float64"),
    "norm": lambda m, x: m.linalg.norm(x),
    "norm of many axes": lambda m, x: m.linalg.norm(m.stack([x, x]), keepdims=True),
    "norms of rows": lambda m, x: m.linalg.norm(x, 2, 1),
    "largest of rows": lambda m, x: m.linalg.norm(x, np.inf, axis=1, keepdims=True),
    "smallest of columns": lambda m, x: m.linalg.norm(x, ord=-np.inf, axis=0),
    "how many are not zero": lambda m, x: m.linalg.norm(x, 0, axis=-1),
    "another norm": lambda m, x: m.linalg.norm(x, 3, axis=0),
    "sums of rows": lambda m, x: m.linalg.norm(x, 1, axis=1),
    "norm of a matrix": lambda m, x: m.linalg.norm(x, "fro"),
    "largest column": lambda m, x: m.linalg.norm(x, 1),
    "smallest row": lambda m, x: m.linalg.norm(x, -np.inf, keepdims=True),
    "vstack": lambda m, x: m.vstack([x[0], ARRAY]),
    "hstack of vectors": lambda m, x: m.hstack((x[0], ARRAY[1])),
    "hstack": lambda m, x: m.hstack([x, ARRAY]),
    "dstack": lambda m, x: m.dstack([x, ARRAY]),
    "dstack of vectors": lambda m, x: m.dstack([x[0], ARRAY[1]]),
    "column_stack": lambda m, x: m.column_stack([x, x[:, 0], ARRAY[:, 1]]),
    "tensordot": lambda m, x: m.tensordot(x, ARRAY),
    "tensordot of nothing": lambda m, x: m.tensordot(ARRAY[0], x, 0),
    "tensordot by axes": lambda m, x: m.tensordot(x, ARRAY, ([0, -1], [0, 1])),
    "tensordot by one axis": lambda m, x: m.tensordot(x, x, axes=(1, 1)),
    "tensordot of fewer than none": lambda m, x: m.tensordot(x, ARRAY, -1),
    "tile": lambda m, x: m.tile(x, 2),
    "tile to more axes": lambda m, x: m.tile(x, (3, 1, 2)),
    "repeat": lambda m, x: m.repeat(x, 3, axis=1),
    "repeat all": lambda m, x: m.repeat(x, [2]),
    "repeat by counts": lambda m, x: m.repeat(x, [0, 2, 1, 3], axis=0),
    "pad": lambda m, x: m.pad(x, 1),
    "pad with values": lambda m, x: m.pad(x, ((1, 0), (0, 2)), constant_values=((3, 4), (5, 6))),
    "pad by reflection": lambda m, x: m.pad(x, (1, 2), mode="reflect"),
    "pad with the edge": lambda m, x: m.pad(x, ((0, 0), (2, 1)), "edge"),
    "zeros_like": lambda m, x: m.zeros_like(x),
    "zeros_like in another dtype": lambda m, x: m.zeros_like(x, dtype="int8"),
    "split": lambda m, x: m.split(x, 3, axis=1)[2],
    "split at": lambda m, x: m.split(x, [1, 1, 3])[2],
    "split at and beyond": lambda m, x: m.split(x, [1, 9])[2],
    "array_split": lambda m, x: m.array_split(x, 4, 1)[1],
    "hsplit": lambda m, x: m.hsplit(x, 2)[1],
    "hsplit of a vector": lambda m, x: m.hsplit(x[0], 2)[1],
    "vsplit": lambda m, x: m.vsplit(x, 2)[0],
    "dsplit": lambda m, x: m.dsplit(x[..., None], [1])[0],
    "round": lambda m, x: m.around(x / 7, decimals=1),
    "einsum": lambda m, x: m.einsum("ij, ij -> i", x, x, optimize=True),
    "einsum of a number of letters": lambda m, x: m.einsum("ij->", x),
    "a ufunc's reduce": lambda m, x: m.add.reduce(x),
    "reduce of all": lambda m, x: m.maximum.reduce(x, axis=None, keepdims=True),
    "reduce to another dtype": lambda m, x: m.multiply.reduce(x, 1, dtype="float64"),
    "logical reduce": lambda m, x: m.logical_and.reduce(x, axis=1),
}


OF_COMPLEX = {
    "norm": np.linalg.norm,
    "norms of rows": lambda x: np.linalg.norm(x, axis=1),
    "norm of a matrix": lambda x: np.linalg.norm(x, "fro"),
    "norm of a row": lambda x: np.linalg.norm(x[0], 2),
    "var": np.var,
    "std of columns": lambda x: np.std(x, axis=0),
}


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("name", OF_COMPLEX)
@pytest.mark.parametrize("real", [1.0, 3e20, np.inf, np.nan])
@pytest.mark.parametrize("imag", [-2.0, np.inf, np.nan])
def test_sizes_of_complex_numbers_are_those_of_numpy(workers, name, real, imag):
    """Also where a part is infinite or not a number: numpy adds the squares of both parts."""
    array = np.full((4, 2), 3 - 4j, "complex64")
    array[1, 0] = complex(real, imag)
    x = workers.distribute(array, workers.mesh((2, 2)), "S[0], R")
    got, want = OF_COMPLEX[name](x), np.asarray(OF_COMPLEX[name](array))
    assert got.dtype == want.dtype
    np.testing.assert_allclose(got.numpy(), want, rtol=1e-5)


@pytest.mark.parametrize("name", CALLS)
def test_calls_are_those_of_numpy(x, name):
    """Whatever way arguments are given."""
    got, want = CALLS[name](np, x), np.asarray(CALLS[name](np, ARRAY))
    assert (tuple(got.shape), got.dtype) == (want.shape, want.dtype)
    np.testing.assert_allclose(got.numpy(), want, rtol=1e-5)


REFUSED = {
    r"numpy\.linalg\.svd .*redistribute.*\.numpy\(\).*register_rule": np.linalg.svd,
    r"numpy\.median ": np.median,
    r"singular values": lambda x: np.linalg.norm(x, 2),
    r"takes one axis or two, got 3": lambda x: np.linalg.norm(x[None], 1),
    r"takes a number as ord, got 'fro'": lambda x: np.linalg.norm(x, "fro", axis=0),
    r"6 elements do not fall into 4 equal": lambda x: np.split(x, 4, axis=1),
    r"sections from 1, got 0": lambda x: np.split(x, 0),
    r"dsplit needs more axes": lambda x: np.dsplit(x, 2),
    r"as many axes of one": lambda x: np.tensordot(x, x, ([0, 1], [0])),
    r"an axis is named twice in \(0, 0\)": lambda x: np.tensordot(
        x[:, :4], x[:, :4], ([0, -2], [0, 0])
    ),
    r"tile: expected counts from 0": lambda x: np.tile(x, -1),
    r"one for each of 4 elements": lambda x: np.repeat(x, [1, 2], axis=0),
    r"expected counts from 0, got -1": lambda x: np.repeat(x, -1),
    r"pad: expected widths from 0": lambda x: np.pad(x, ((0, -1), (0, 0))),
    r"widths for each of 2 axes": lambda x: np.pad(x, ((0, 1), (0, 0), (0, 0))),
    r"has the modes .*, got 'median'": lambda x: np.pad(x, 1, mode="median"),
    r"has no reflect_type": lambda x: np.pad(x, 1, mode="reflect", reflect_type="odd"),
    r"has its shape": lambda x: np.zeros_like(x, shape=(3,)),
    r"numpy\.fft\.fft ": np.fft.fft,
    r"numpy\.add\.at has no rule": lambda x: np.add.at(x, [0], 1),
    r"numpy\.add with where has no rule": lambda x: np.add(x, x, where=True and ARRAY > 0),
    r"numpy\.exp with out has no rule": lambda x: np.exp(x, out=ARRAY.copy()),
    r"a mask of shape \(3,\) is no mask of": lambda x: np.sum(x, where=np.ones(3, bool)),
    r"max with where needs an initial value": lambda x: np.max(x, where=ARRAY > 0),
    r"numpy\.sum cannot write": lambda x: np.sum(x, out=np.zeros(())),
    r"mean on distributed tensors: .*'dtype'": lambda x: np.mean(x, dtype="int8"),
    r"max has no dtype of its own": lambda x: np.maximum.reduce(x, dtype="float64"),
    r"numpy\.argmax cannot write": lambda x: np.argmax(x, 0, out=np.zeros(6, int)),
    r"numpy\.stack on .*'dtype'": lambda x: np.stack([x, x], dtype="int8"),
    r"numpy\.concatenate cannot write .* into out": lambda x: np.concatenate([x], out=ARRAY),
    r"no axis 3": lambda x: np.stack([x, x], axis=3),
    r"a tensor of 2 axes has no axis 2": lambda x: np.swapaxes(x, 0, 2),
    r"of 3 axes has no axis 7": lambda x: np.expand_dims(x, 7),
    r"axis 1 of \(4, 6\) is not of extent 1": lambda x: np.squeeze(x, axis=1),
    r"pairs all of their leading axes": lambda x: np.dot(x, np.ones((2, 6, 3))),
    r"keeps the order of C": lambda x: np.reshape(x, 24, order="F"),
    r"no mode 'clip'": lambda x: np.take(x, [9], axis=0, mode="clip"),
    r"subscripts as text": lambda x: np.einsum(x, [0, 1]),
    r"where on distributed tensors: missing a required": lambda x: np.where(x > 0, x),
    r"\(2,\) and \(3,\) do not go together": lambda x: x[[0, 1], [2, 3, 4]],
    r"a mask of shape \(2,\) is for": lambda x: x[np.array([True, False])],
    r"got True": lambda x: x[True],
    r"got np.False_": lambda x: x[np.False_],
    r"of 2 axes cannot be indexed by \(0, 0, 0\)": lambda x: x[0, 0, 0],
    r"cannot be indexed by \(Ellipsis, Ellipsis\)": lambda x: x[..., ...],
    r"clip: shapes|maximum: shapes": lambda x: x.clip(np.ones(5)),
}


@pytest.mark.parametrize("text", REFUSED)
def test_what_has_no_rule_is_refused_in_words(x, text):
    """Before anything is sent, naming what it was."""
    with pytest.raises(ConfigError, match=text):
        REFUSED[text](x)


def test_positions_that_there_are_not(x):
    """As with arrays."""
    for index in (4, -5):
        with pytest.raises(IndexError, match="out of bounds for an axis of 4"):
            x[index]


def test_axes_of_tensordot_that_there_are_not(x):
    """As with arrays, where letters would go together all the same."""
    square = x[:, :4]
    for one, other, axes in ((square[0], square, 2), (square, square[0], 2), (square, square, 3)):
        with pytest.raises(IndexError, match="axes cannot be paired in"):
            np.tensordot(one, other, axes)
    with pytest.raises(IndexError, match="of 2 axes has no axis 2"):
        np.tensordot(square, square, ([0, 2], [0, 1]))


def test_halves_are_averaged_in_single_precision(workers):
    """As numpy does; half precision would be at its end."""
    array = np.full((600,), 200, "float16")
    got = np.mean(workers.distribute(array, workers.mesh(), "S[0]"))
    assert got.dtype == np.float16
    assert got.item() == 200.0


def test_what_several_functions_cost_is_said_together(x):
    """By the name of the one that was called, with that of each function in each line."""
    assert x[1:, 0].explain().splitlines()[0].startswith("getitem -> ")
    assert "  redistribute, moved: allgather along mesh axis 1: S[1] -> R, " in x[1:, 0].explain()
    split = x.redistribute("S[0], S[0]")
    assert (
        split.mean(axis=1).explain() == "mean -> S[0], S[0]: 0 bytes to a worker\n  nothing moved"
    )
    kept = np.clip(x, None, None).explain()
    assert kept == "clip -> S[0], S[1]: 0 bytes to a worker\n  nothing moved"
    assert x.clip(0).explain().startswith("clip -> S[0], S[1]")
