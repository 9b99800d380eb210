"""Programs of numpy's calls, on tensors of any placement: as numpy computes them, and refuses."""

import numpy as np
import pytest
from drawn_tensors import MESHES, indices, specs
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from disco_client import ConfigError, ThreadedSession
from disco_client.distributed import DTensor, Placement

DTYPES = ("float64", "float32", "int64", "int16", "uint8", "bool", "complex128")
SIZES = (0, 1, 2, 3, 4, 5, 7)

UNARY = {
    "negative": lambda m, x: -x,
    "absolute": lambda m, x: abs(x),
    "square": lambda m, x: m.square(x),
    "sign": lambda m, x: m.sign(x),
    "invert": lambda m, x: ~x,
    "isfinite": lambda m, x: m.isfinite(x),
    "T": lambda m, x: x.T,
    "ravel": lambda m, x: m.ravel(x),
    "flip": lambda m, x: m.flip(x),
    "roll": lambda m, x: m.roll(x, 2),
    "new axis": lambda m, x: x[None],
    "squeeze": lambda m, x: m.squeeze(x),
    "copy": lambda m, x: x.copy() if m is np else x.__copy__(),
    "cumsum": lambda m, x: m.cumsum(x, dtype="int64") if x.dtype.kind in "iub" else m.cumsum(x),
    "sum": lambda m, x: m.sum(x),
    "max": lambda m, x: m.max(x),
    "argmin": lambda m, x: m.argmin(x),
    "any": lambda m, x: m.any(x),
    "count_nonzero": lambda m, x: m.count_nonzero(x),
    "real": lambda m, x: m.real(x),
    "clip": lambda m, x: m.clip(x, 1, 4),
    "tril": lambda m, x: m.tril(x),
    "diff": lambda m, x: m.diff(x, axis=0),
    "repeat": lambda m, x: m.repeat(x, 2),
    "tile": lambda m, x: m.tile(x, (2, 1)),
    "pad": lambda m, x: m.pad(x, 1),
    "nonzero": lambda m, x: m.nonzero(x)[0],
    "unique": lambda m, x: m.unique(x),
    "positive ones": lambda m, x: x[x > 0],
    "as float": lambda m, x: x.astype("float64"),
    "as small": lambda m, x: x.astype("int16"),
    "isin": lambda m, x: m.isin(x, [1, 3]),
    "trace": lambda m, x: m.trace(x),
    "diagonal": lambda m, x: m.diagonal(x),
}
"""By name, what takes one array and numpy or the namespace."""

BINARY = {
    "add": lambda m, x, y: x + y,
    "subtract": lambda m, x, y: x - y,
    "multiply": lambda m, x, y: x * y,
    "maximum": lambda m, x, y: m.maximum(x, y),
    "less": lambda m, x, y: x < y,
    "equal": lambda m, x, y: x == y,
    "logical_and": lambda m, x, y: m.logical_and(x, y),
    "bitwise_xor": lambda m, x, y: x ^ y,
    "matmul": lambda m, x, y: x @ y,
    "outer": lambda m, x, y: m.outer(x, y),
    "where": lambda m, x, y: m.where(x > 0, x, y),
    "concatenate": lambda m, x, y: m.concatenate([x, y]),
    "stack": lambda m, x, y: m.stack([x, y], axis=-1),
    "append": lambda m, x, y: m.append(x, y),
    "array_equal": lambda m, x, y: m.array_equal(x, y),
    "add a number": lambda m, x, y: x + 2,
    "times a half": lambda m, x, y: x * 0.5,
}

ALONG = {
    "sum": lambda m, x, axis: m.sum(x, axis=axis, keepdims=True),
    "min": lambda m, x, axis: m.min(x, axis=axis),
    "all": lambda m, x, axis: m.all(x, axis=axis),
    "argmax": lambda m, x, axis: m.argmax(x, axis=axis),
    "flip": lambda m, x, axis: m.flip(x, axis=axis),
    "roll": lambda m, x, axis: m.roll(x, 1, axis=axis),
    "expand_dims": lambda m, x, axis: m.expand_dims(x, axis),
    "moveaxis": lambda m, x, axis: m.moveaxis(x, axis, 0),
    "take": lambda m, x, axis: m.take(x, [0, -1], axis=axis),
    "delete": lambda m, x, axis: m.delete(x, 0, axis=axis),
    "cumsum": lambda m, x, axis: m.cumsum(x, axis=axis),
    "compress": lambda m, x, axis: m.compress([True, False], x, axis=axis),
    "unstack": lambda m, x, axis: m.split(x, 1, axis=axis)[0],
}


@pytest.fixture(scope="module")
def session():
    with ThreadedSession(4) as shared:
        yield shared


class Pair:
    """A distributed tensor and the array that it stands for."""

    def __init__(self, made, whole):
        self.made, self.whole = made, np.asarray(whole)

    def check(self):
        assert isinstance(self.made, DTensor)
        got = self.made.numpy()
        assert got.dtype == self.whole.dtype
        assert got.shape == self.whole.shape
        exact = self.whole.dtype.kind not in "fc"
        compare = np.testing.assert_array_equal if exact else np.testing.assert_allclose
        compare(got, self.whole)


@st.composite
def pairs(draw, session, mesh):
    """A new one, of any dtype, shape and placement."""
    shape = tuple(draw(st.lists(st.sampled_from(SIZES), max_size=3)))
    dtype = draw(st.sampled_from(DTYPES))
    whole = (np.arange(np.prod(shape, dtype=int)).reshape(shape) % 5 - 1).astype(dtype)
    placement = Placement([draw(specs(shape, count)) for count in mesh.shape])
    try:
        return Pair(session.distribute(whole, mesh, placement), whole)
    except ConfigError:  # no sums of truth values, no axis that is split in given parts twice
        assume(False)


def outcome(call):
    """What a call returns, or the error that it raises."""
    try:
        return call(), None
    except (ValueError, TypeError, IndexError) as error:
        return None, error


def takes_nothing(whole, index):
    """Whether numpy takes nothing, so that a number may be beyond its axis."""
    found, error = outcome(lambda: whole[index])
    return error is None and not np.size(found)


def step(data, session, mesh, known):
    """One more call, on what is known; what comes of it is known then, too."""
    kind = data.draw(st.sampled_from(["unary", "binary", "along", "index", "assign", "place"]))
    x = data.draw(st.sampled_from(known))
    if kind == "place":
        placement = Placement([data.draw(specs(x.whole.shape, count)) for count in mesh.shape])
        made, error = outcome(lambda: x.made.redistribute(placement))
        if error is None:
            known.append(Pair(made, x.whole))
        return
    if kind == "assign":
        index = data.draw(indices(x.whole.shape))
        wanted = x.whole.copy()
        _, error = outcome(lambda: wanted.__setitem__(index, 3))
        _, refused = outcome(lambda: x.made.__setitem__(index, 3))
        assume(not takes_nothing(x.whole, index))
        assert (error is None) == (refused is None), (index, error, refused)
        x.whole = wanted
        return
    if kind == "unary":
        name = data.draw(st.sampled_from(sorted(UNARY)))
        call, operands = UNARY[name], [x]
    elif kind == "binary":
        name = data.draw(st.sampled_from(sorted(BINARY)))
        call, operands = BINARY[name], [x, data.draw(st.sampled_from(known))]
    elif kind == "along":
        assume(x.whole.size and x.whole.ndim)  # numpy lets functions go along axis 0 of a number
        name, axis = data.draw(st.sampled_from(sorted(ALONG))), data.draw(st.integers(-2, 2))
        call, operands = (lambda m, array: ALONG[name](m, array, axis)), [x]
    else:
        index = data.draw(indices(x.whole.shape))
        assume(not takes_nothing(x.whole, index))
        call, operands = (lambda _, array: array[index]), [x]
    wanted, error = outcome(lambda: call(np, *(each.whole for each in operands)))
    made, refused = outcome(lambda: call(session.numpy, *(each.made for each in operands)))
    said = index if kind == "index" else name
    assert (error is None) == (refused is None), (said, error, refused)
    if error is None and np.size(wanted) < 2_000:
        known.append(Pair(made, wanted))


@given(data=st.data())
@settings(max_examples=60)
@pytest.mark.filterwarnings("ignore")
@pytest.mark.usefixtures("settled")
def test_a_program_is_numpys(session, data):
    """Values, shapes, dtypes and which calls are refused; and no tensor changes another."""
    mesh = session.mesh(data.draw(st.sampled_from(MESHES)))
    known = [data.draw(pairs(session, mesh)) for _ in range(2)]
    for _ in range(data.draw(st.integers(1, 12))):
        step(data, session, mesh, known)
    for each in known:
        each.check()
