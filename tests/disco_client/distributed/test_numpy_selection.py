"""numpy's functions that leave out, put in or arrange elements: as numpy's, of any placement."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy_examples import check_call, matrices, placed

from disco_client import ConfigError, DtypeError, OutOfBounds, RemoteError, ThreadedSession

PLACEMENTS = ("R", "S[0]", "S[1]", "P", "S[0: 0-1, 1-5, 5-7]")

CALLS = {
    "compress": lambda m, x, y: m.compress([True, False, True], x, axis=0),
    "compress, all": lambda m, x, y: m.compress([False, True] * 5, x),
    "compress, none": lambda m, x, y: m.compress([False] * 4, x, axis=1),
    "extract": lambda m, x, y: m.extract(np.arange(28) % 3 > 0, x),
    "delete": lambda m, x, y: m.delete(x, 2, axis=0),
    "delete, several": lambda m, x, y: m.delete(x, [1, -1, 1], axis=0),
    "delete, a slice": lambda m, x, y: m.delete(x, slice(1, 6, 2), axis=0),
    "delete, a mask": lambda m, x, y: m.delete(x, [True, False, False, True], axis=1),
    "delete, all": lambda m, x, y: m.delete(x, [3, 9]),
    "delete, none": lambda m, x, y: m.delete(x, [], axis=0),
    "delete, many": lambda m, x, y: m.delete(m.concatenate([x] * 6), np.arange(0, 42, 2), axis=0),
    "insert": lambda m, x, y: m.insert(x, 2, 7, axis=0),
    "insert, a row": lambda m, x, y: m.insert(x, -1, [1, 2, 3, 4], axis=0),
    "insert, several": lambda m, x, y: m.insert(x, [1, 5, 1], 9, axis=0),
    "insert, columns": lambda m, x, y: m.insert(x, [0, 4], y[:, :2], axis=1),
    "insert, all": lambda m, x, y: m.insert(x, 3, [5, 6]),
    "insert, a column": lambda m, x, y: m.insert(x, 1, y[:, 0], axis=1),
    "insert, at the end": lambda m, x, y: m.insert(x, 7, y[0], axis=0),
    "insert, a slice": lambda m, x, y: m.insert(x, slice(0, 4, 2), 1, axis=0),
    "insert, rows at one place": lambda m, x, y: m.insert(x, [2], y[:3], axis=0),
    "insert, none": lambda m, x, y: m.insert(x, [], 1, axis=0),
    "resize, larger": lambda m, x, y: m.resize(x, (5, 9)),
    "resize, smaller": lambda m, x, y: m.resize(x, 11),
    "resize, none": lambda m, x, y: m.resize(x, (0, 3)),
    "take_along_axis": lambda m, x, y: m.take_along_axis(x, np.array([[0, -1, 3]]), axis=1),
    "take_along_axis, rows": lambda m, x, y: m.take_along_axis(
        x, np.array([[6, 1, 0, -2]]), axis=0
    ),
    "take_along_axis, all": lambda m, x, y: m.take_along_axis(x, np.array([3, 20, -1]), axis=None),
    "take_along_axis, on the workers": lambda m, x, y: m.take_along_axis(
        x, m.argmax(x, axis=1, keepdims=True), axis=1
    ),
    "block": lambda m, x, y: m.block([[x, y], [y, x]]),
    "block, with hosts": lambda m, x, y: m.block([[x, np.ones((7, 1))], [np.zeros((2, 5))]]),
    "block, alone": lambda m, x, y: m.block(x),
    "block, rows": lambda m, x, y: m.block([x[0], y[1], 3]),
    "diag": lambda m, x, y: m.diag(x, 1),
    "diag, of a row": lambda m, x, y: m.diag(x[0]),
    "diag, above": lambda m, x, y: m.diag(x[0], 2),
    "diag, below": lambda m, x, y: m.diag(x[0], -1),
    "diagflat": lambda m, x, y: m.diagflat(x[:2], 1),
    "tril_indices_from": lambda m, x, y: m.tril_indices_from(x, -1),
    "triu_indices_from": lambda m, x, y: m.triu_indices_from(x, 1),
    "diag_indices_from": lambda m, x, y: m.diag_indices_from(x[:4]),
    "ix_": lambda m, x, y: m.ix_(m.arange(4), [True, False, True]),
    "packbits": lambda m, x, y: m.packbits(x > 0),
    "packbits, an axis": lambda m, x, y: m.packbits(x > 0, axis=0, bitorder="little"),
}


@pytest.fixture(scope="module")
def session():
    with ThreadedSession(3) as shared:
        yield shared


@pytest.mark.parametrize(
    ("placement", "dtype"), placed(PLACEMENTS, ["float64", "float32", "int16", "complex64"])
)
@pytest.mark.parametrize("name", CALLS)
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.usefixtures("settled")
def test_the_result_is_numpys(session, name, placement, dtype):
    """Values, shape and dtype, wherever the tensors lie; what numpy refuses is refused."""
    check_call(session, CALLS[name], matrices(dtype), placement)


@pytest.mark.parametrize(
    ("call", "error", "text"),
    [
        (lambda x: np.compress([True] * 8, x, axis=0), OutOfBounds, r"condition of 8 is longer"),
        (lambda x: np.delete(x, 7, axis=0), OutOfBounds, r"delete: position 7"),
        (lambda x: np.delete(x, 1.5, axis=0), DtypeError, r"delete: expected positions"),
        (lambda x: np.delete(x, [True], axis=0), ConfigError, r"is none of 7"),
        (lambda x: np.delete(x, x[0], axis=0), ConfigError, r"on the workers"),
        (lambda x: np.insert(x, 8, 1, axis=0), OutOfBounds, r"insert: position 8"),
        (
            lambda x: np.insert(x, [1, 2], np.ones((3, 4)), axis=0),
            ConfigError,
            r"cannot be broadcast",
        ),
        (lambda x: np.insert(x, 1.5, 1, axis=0), DtypeError, r"positions as integers"),
        (lambda x: np.resize(x, (-1, 2)), ConfigError, r"extents from 0"),
        (lambda x: np.take_along_axis(x, np.zeros(3, int), axis=1), ConfigError, r"as many axes"),
        (
            lambda x: np.take_along_axis(x, np.zeros((7, 1)), axis=1),
            DtypeError,
            r"integers as positions",
        ),
        (
            lambda x: np.take_along_axis(x, np.zeros((6, 1), int), axis=1),
            ConfigError,
            r"do not fit",
        ),
        (lambda x: np.block([[x], x]), ConfigError, r"nested equally deep"),
        (lambda x: np.diag(x[None]), ConfigError, r"vectors and matrices"),
        (np.diag_indices_from, ConfigError, r"equal extents"),
        (lambda x: np.packbits(x > 0, bitorder="odd"), ConfigError, r"'big' or 'little'"),
    ],
)
def test_what_does_not_fit_is_refused(session, call, error, text):
    """By its name, before anything is sent."""
    x = session.distribute(matrices("float64")[0], placement="S[0]")
    with pytest.raises(error, match=text):
        call(x)


@pytest.mark.parametrize("placement", ["R", "S[0]", "S[1]"])
def test_bits_are_numpys(session, placement):
    """Of bytes along an axis, of all, and so many of them."""
    for call in (
        lambda m, x: m.unpackbits(x),
        lambda m, x: m.unpackbits(x, axis=0, bitorder="little"),
        lambda m, x: m.unpackbits(x, axis=1, count=9),
        lambda m, x: m.unpackbits(x, axis=1, count=-3),
        lambda m, x: m.packbits(x[:0], axis=0),
    ):
        check_call(session, call, [np.arange(200, 212, dtype="uint8").reshape(4, 3)], placement)


def test_rows_that_stay_do_not_move(session):
    """Where one is deleted, or put in between."""
    x = session.distribute(np.arange(3000.0).reshape(300, 10), placement="S[0]")
    for made in (np.delete(x, 17, axis=0), np.compress(np.arange(300) > 40, x, axis=0)):
        assert "0 bytes" in made.explain() or "moves nothing" in made.explain()


def test_a_position_that_is_out_of_bounds_raises_where_it_is(session):
    """On the worker, as those of take do."""
    x = session.distribute(np.arange(6.0).reshape(2, 3), placement="S[0]")
    made = np.take_along_axis(x, np.array([[3], [0]]), axis=1)
    with pytest.raises(RemoteError, match="out of bounds"):
        made.numpy()


@given(data=st.data(), rows=st.integers(1, 9), placement=st.sampled_from(["R", "S[0]", "S[1]"]))
@settings(max_examples=80)
def test_what_is_left_out_or_put_in_is_numpys(session, data, rows, placement):
    """At any positions, also twice the same, of any extent."""
    whole = np.arange(rows * 3.0).reshape(rows, 3)
    places = data.draw(st.lists(st.integers(-rows, rows), min_size=0, max_size=6))
    inside = [each for each in places if each < rows]
    values = np.arange(len(places) * 3.0).reshape(-1, 3)
    for call in (
        lambda m, x: m.delete(x, inside, axis=0),
        lambda m, x: m.insert(x, places, -1, axis=0),
        lambda m, x: m.insert(x, places, values, axis=0) if len(places) != 1 else x,
        lambda m, x: m.compress(np.isin(np.arange(rows), inside), x, axis=0),
    ):
        check_call(session, call, [whole], placement)
