"""What numpy gives, and what it refuses: operands, slices, positions and dtypes."""

from __future__ import annotations

import contextlib
import enum
import itertools
import operator

import ml_dtypes
import numpy as np
import pytest

import disco_client
from disco_client import (
    ConfigError,
    DtypeError,
    EncodingError,
    OutOfBounds,
    RemoteError,
    ThreadedSession,
)
from disco_client.distributed import Local, Pattern, register_rule

# Warnings of numpy's about what is divided by zero are no errors of these tests.
pytestmark = [
    pytest.mark.filterwarnings("ignore::RuntimeWarning"),
    pytest.mark.usefixtures("settled"),
]


class Colour(enum.IntEnum):
    """Numbers with names."""

    RED = 1


ARITHMETIC = ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow")
BINARY = (*ARITHMETIC, "lt", "le", "gt", "ge", "eq", "ne")
PLACEMENTS = ("R", "S[0]", "P")


@pytest.fixture(scope="module")
def session():
    """Three workers, so that extents are uneven, shared by the tests of this file."""
    with ThreadedSession(3) as shared:
        yield shared


def lay(session, array, placement="R"):
    return session.distribute(array, session.mesh(), placement)


def same(got, want):
    """The same values, and the dtype of numpy in what is said and in what is held."""
    want = np.asarray(want)
    assert got.dtype == want.dtype
    assert got.shape == want.shape
    fetched = got.numpy()
    assert fetched.dtype == want.dtype
    np.testing.assert_array_equal(fetched, want)


@pytest.mark.parametrize("other", [[1, 2], (1, 2), [[1], [2.5]], [True, False], [], [1 + 2j]])
def test_lists_are_operands_on_both_sides(session, other):
    """As arrays of numpy are: a tensor without axes is no count of copies of them."""
    for array in (np.int64(3), np.array([3, 4], "int8"), np.array([[2.0, 3]], "float32")):
        x = lay(session, array)
        for name in BINARY:
            function = getattr(operator, name)
            for ours, theirs in ((lambda v: (v, other), False), (lambda v: (other, v), True)):
                try:
                    with np.errstate(all="ignore"):
                        host = np.asarray(other)
                        want = function(host, array) if theirs else function(array, host)
                except (TypeError, ValueError) as error:
                    with pytest.raises(type(error)):
                        function(*ours(x))
                else:
                    same(function(*ours(x)), want)


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "complex64", "uint64"])
def test_integers_beyond_64_bits_are_floats_beside_floats(session, dtype):
    """As in numpy; beside unsigned integers those that these have, and others are refused."""
    array = np.array([1, 2, 3], dtype)
    x = lay(session, array, "S[0]")
    for number in (1 << 63, 1 << 70, -(1 << 70)):
        if dtype == "uint64" and number != 1 << 63:
            with pytest.raises(EncodingError, match=f"{number.bit_length()} bits"):
                x + number
        else:
            same(x + number, array + number)
            same(number > x, number > array)
    with pytest.raises(EncodingError, match="1101 bits"):
        x * (1 << 1100)
    with pytest.raises(EncodingError, match="int64 has no such number: expected a signed integer"):
        lay(session, np.arange(3)) * (1 << 63)


def test_numbers_of_derived_classes_have_a_dtype_of_their_own(session):
    """As arrays of one element have, which numbers of Python's have not."""
    array = np.array([1, 2], "int8")
    x = lay(session, array, "S[0]")
    for number in (Colour.RED, type("Share", (float,), {})(0.5), type("Z", (complex,), {})(1j)):
        for name in ("add", "multiply", "arctan2"):
            if not (name == "arctan2" and isinstance(number, complex)):
                same(getattr(np, name)(x, number), getattr(np, name)(array, number))


def test_a_complex_number_stands_beside_what_has_no_common_dtype_with_it(session):
    """Logical functions look at each of both alone; all others refuse, as numpy does."""
    dates = np.array(["2020-01-01", "NaT"], "M8[s]")
    x = lay(session, dates, "S[0]")
    for name in ("logical_and", "logical_or", "logical_xor"):
        same(getattr(np, name)(x, 1j), getattr(np, name)(dates, 1j))
        same(getattr(np, name)(0j, x), getattr(np, name)(0j, dates))
    with pytest.raises(TypeError):
        x + 1j


def test_a_complex_number_takes_its_precision_from_what_it_is_chosen_beside(session):
    """Not from the condition, whose dtype has no part in the result's."""
    for dtype in ("float32", ml_dtypes.bfloat16, "int8"):
        array = np.zeros(2, dtype)
        same(np.where(np.True_, lay(session, array), 2j), np.where(np.True_, array, 2j))


def test_lists_are_operands_of_functions(session):
    """Of ufuncs, of functions of several arrays, as positions and as limits."""
    array = np.arange(6.0).reshape(2, 3)
    x = lay(session, array, "S[0]")
    calls = {
        "add": lambda m, v: m.add([1, 2, 3], v),
        "matmul": lambda m, v: m.matmul(v, [[1], [2], [3]]),
        "where": lambda m, v: m.where([[True], [False]], v, (7, 8, 9)),
        "concatenate": lambda m, v: m.concatenate([v, [[1, 2, 3]]]),
        "clip": lambda m, v: m.clip(v, [1, 2, 3], (4, 4, 4)),
        "dot": lambda m, v: m.dot(v, [1, 2, 3]),
        "maximum": lambda m, v: m.maximum((1, 2, 3), v),
    }
    for call in calls.values():
        same(call(np, x), call(np, array))
    assert (x @ [1, 0, 0]).numpy().tolist() == [0, 3]
    assert ([1, 0] @ x).numpy().tolist() == [0, 1, 2]


@pytest.mark.parametrize("placement", PLACEMENTS)
def test_every_slice_is_numpys(session, placement):
    """Of long and short axes and of none, with starts and stops beyond them, in both directions."""
    bounds = (None, -11, -5, -1, 0, 2, 4, 9)
    for extent in (0, 1, 4):
        array = np.arange(float(extent))
        x = lay(session, array, placement)
        for start, stop, step in itertools.product(bounds, bounds, (None, 1, 3, -1, -2)):
            same(x[start:stop:step], array[start:stop:step])


def test_a_slice_begins_and_ends_at_positions_of_any_integers(session):
    """Those of numpy among them; others are refused, as numpy does it."""
    array = np.arange(5.0)
    x = lay(session, array, "S[0]")
    same(x[np.uint8(1) : np.int64(-1)], array[1:-1])
    same(x[np.int8(-5)], array[-5])
    for wrong in (lambda v: v[1.0:], lambda v: v[::"a"]):
        with pytest.raises(TypeError):
            wrong(x)
    for position in (5, -6, np.uint64(2**63 + 1)):
        with pytest.raises(OutOfBounds, match="out of bounds for an axis of 5"):
            x[position]
    with pytest.raises(ValueError, match="zero"):
        x[::0]


@pytest.mark.parametrize("placement", ["R", "S[0]", "S[1]"])
@pytest.mark.parametrize(
    ("shape", "axis"), [((0, 0), 1), ((0, 3), 1), ((3, 0), 0), ((0, 0), 0), ((0, 0, 2), 1)]
)
def test_what_is_taken_of_an_empty_tensor_is_numpys(session, shape, axis, placement):
    """Where nothing is taken, no position is out of bounds; elsewhere it is an IndexError."""
    array = np.zeros(shape)
    x, positions = lay(session, array, placement), np.array([7], "int8")
    for ids in (positions, lay(session, positions, "R")):
        try:
            want = np.take(array, positions, axis)
        except IndexError:
            with pytest.raises((IndexError, RemoteError), match="out of bounds"):
                np.take(x, ids, axis).numpy()
            with contextlib.suppress(RemoteError):
                session.sync_all()
        else:
            same(np.take(x, ids, axis), want)


UPDATES = {
    "first": (0, 2),
    "last": (3, 2),
    "from the end": (-2, 2),
    "the last one": (-1, 1),
    "of another dtype": (np.uint8(3), 2),
    "of numpy": (np.array(-5), 5),
    "nothing": (5, 0),
}


@pytest.mark.parametrize("name", UPDATES)
def test_an_update_begins_where_numpy_counts(session, name):
    """From the front or from the end; a start may lie on the workers."""
    start, count = UPDATES[name]
    array, new = np.arange(10.0).reshape(5, 2), np.full((count, 2), 9.0)
    want = array.copy()
    want[int(start) % 5 if count else 5 :][:count] = 9
    for placement in PLACEMENTS:
        x = lay(session, array, placement)
        same(session.apply("update", x, new, start), want)
        same(session.apply("update", x, new, lay(session, np.array(start))), want)


def test_an_update_that_does_not_fit_is_refused(session):
    """It wraps around nowhere, and what is no integer is no start."""
    x = lay(session, np.arange(5.0), "S[0]")
    new = np.array([9.0, 9])
    for start in (-1, 4, 5, -6, np.int64(-1), np.uint64(2**64 - 1), np.array(4)):
        with pytest.raises(OutOfBounds, match=r"2 elements from .* out of bounds for an axis of 5"):
            session.apply("update", x, new, start)
    for start in (True, np.True_, 1.0, np.float32(1), [1], None, "1"):
        with pytest.raises(DtypeError, match="expected an integer without axes as the start"):
            session.apply("update", x, new, start)
    same(x + 0, np.arange(5.0))


def test_positions_are_integers_within_the_axis(session):
    """What is out of bounds raises an IndexError here, what is no integer a TypeError."""
    x = lay(session, np.arange(5.0), "S[0]")
    same(np.take(x, []), np.take(np.arange(5.0), []))
    same(x.take(3), np.arange(5.0).take(3))
    for ids in ([5], [[0, -6]], np.array([2**64 - 1], "uint64"), 7):
        with pytest.raises(OutOfBounds, match=r"position .* is out of bounds for an axis of 5"):
            x.take(ids)
    for ids in ([True], [1.0], np.array([]), ["a"], np.array([1], "m8[s]")):
        with pytest.raises(DtypeError, match="positions of an integer dtype"):
            x.take(ids)
    with pytest.raises(IndexError):
        lay(session, np.zeros((0, 2)), "S[0]").take([0], axis=0)


DTYPES = (
    *("bool", "int8", "uint8", "int64", "uint64", "float16", "float32", "complex64"),
    *("M8[ns]", "m8[s]", ml_dtypes.bfloat16, ml_dtypes.int4, ml_dtypes.uint4),
    ml_dtypes.float8_e4m3fn,
)
FUNCTIONS = {
    **{name: lambda v, name=name: getattr(np, name)(v) for name in (
        "sum", "prod", "max", "min", "any", "all", "mean", "var", "std", "cumsum", "argmax",
        "argmin", "round", "negative", "sqrt", "exp", "square", "isnan", "sign",
    )},
    "add": lambda v: v + v,
    "subtract": lambda v: v - v,
    "divide": lambda v: v / v,
    "and": lambda v: v & v,
    "matmul": lambda v: v @ v,
    "tensordot": lambda v: np.tensordot(v, v, 1),
    "concatenate with int": lambda v: np.concatenate([v, np.array([1])]),
    "where with int": lambda v: np.where(np.array([True, False, True]), v, np.array([1, 2, 3])),
    "sum as int": lambda v: np.sum(v, dtype="int64"),
    "as complex": lambda v: v.astype("complex64"),
}  # fmt: skip
OURS_ALONE = {
    # numpy has no such loop and widens, or none at all.
    ("tensordot", "bfloat16"), ("tensordot", "float8_e4m3fn"), ("tensordot", "int4"),
    ("tensordot", "uint4"), ("tensordot", "datetime64[ns]"), ("tensordot", "timedelta64[s]"),
}  # fmt: skip


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: np.dtype(dtype).name)
@pytest.mark.filterwarnings("ignore::numpy.exceptions.ComplexWarning")
def test_a_function_of_every_dtype_has_numpys_dtype_or_its_refusal(session, dtype):
    """What the client says, what a worker holds, and what is a TypeError: all as in numpy."""
    array = np.array([1, 0, 3]).astype(np.dtype(dtype))
    for name, function in FUNCTIONS.items():
        if (name, array.dtype.name) in OURS_ALONE:
            continue
        x = lay(session, array)
        try:
            with np.errstate(all="ignore"):
                want = np.asarray(function(array))
        except TypeError:
            with pytest.raises(TypeError):
                function(x)
            continue
        got = function(x)
        held = got.shard(0).dtype
        assert (got.dtype, held) == (want.dtype, want.dtype), name
        assert got.shape == want.shape, name


def test_averages_of_what_has_none_are_type_errors(session):
    """Datetimes have no variance and no mean; timedeltas have a mean, which is one."""
    days = np.array(["2026-01-01", "2026-01-04"], "M8[D]")
    x = lay(session, days)
    for call in (np.var, np.std, np.mean, np.cumsum, np.sum, np.prod, np.round):
        with pytest.raises(DtypeError):
            call(x)
    gaps = days - days[0]
    y = lay(session, gaps)
    for call in (np.var, np.std, np.prod, np.round):
        with pytest.raises(DtypeError):
            call(y)
    same(y.mean(), gaps.mean())
    for placement in ("R", "S[0]"):
        same(lay(session, gaps, placement).cumsum(), gaps.cumsum())
        same(lay(session, gaps, placement).sum(), gaps.sum())


def test_parts_of_small_integers_are_combined_in_the_dtype_that_is_said(session):
    """Those of 4 bits have a largest of 8, as in numpy, also where an axis is split unevenly."""
    for dtype in (ml_dtypes.int4, ml_dtypes.uint4):
        for values in ([1, 5, 2, 3], [4]):
            array = np.array(values).astype(dtype)
            x = lay(session, array, "S[0]")
            same(x.max(), array.max())
            same(x.min(), array.min())


def test_a_rule_whose_function_returns_another_dtype_is_held_to_its_word(session):
    """What fits is converted, what does not is an error that names both."""

    @register_rule("tests.said")
    def said(x, *, function):
        return Local(function, Pattern((("a",),), ("a",)), x)

    x = lay(session, np.arange(4, dtype="float32"), "S[0]")
    same(session.apply("tests.said", x, function="numpy.float64"), np.arange(4, dtype="float32"))
    with pytest.raises(disco_client.RemoteError, match="returned complex128, and its rule says"):
        session.apply("tests.said", x, function="numpy.complex128").numpy()


def test_refusals_are_caught_as_either(session):
    """As what Python raises, and as ours."""
    x = lay(session, np.array([True, False]))
    for error in (TypeError, ValueError, ConfigError, DtypeError):
        with pytest.raises(error):
            np.negative(x)


def test_a_tensor_without_axes_keeps_none(session):
    """Also after functions for which numpy would give it one, or takes no widths."""
    array = np.array(3.0)
    x = lay(session, array)
    for function in (
        np.transpose,
        lambda v: v[...],
        lambda v: v[()],
        lambda v: np.pad(v, 2),
        np.squeeze,
        lambda v: np.round(v, 1),
    ):
        got = function(x)
        assert got.shard(0).shape == ()
        same(np.transpose(got), function(array))
    for width in (-1, [[1, -1]]):
        with pytest.raises(ConfigError, match="expected widths from 0"):
            np.pad(lay(session, np.arange(2.0)), width)
    with pytest.raises(ConfigError, match="expected widths from 0"):
        np.pad(x, -1)
    with pytest.raises(DtypeError, match="widths as integers"):
        np.pad(lay(session, np.arange(2.0)), 1.5)


MOVED = (
    np.array(["2026-01-01", "1969-05-03", "2000-02-29", "NaT", "1999-01-01"], "M8[D]"),
    np.array([5, -3, 0, 9, 7], "m8[ms]"),
    np.array([1, -3, 7, -8, 0]).astype(ml_dtypes.int4),
    np.array([1, 3, 15, 8, 0]).astype(ml_dtypes.uint4),
    np.array([1, -3, 0.5, 448, 0]).astype(ml_dtypes.float8_e4m3fn),
    np.array(["a", "bc", "", "def", "é"]),
)


@pytest.mark.parametrize("array", MOVED, ids=lambda array: array.dtype.name)
def test_what_collectives_cannot_add_up_is_moved(session, array):
    """Datetimes, numbers of 4 and 8 bits, text: where parts would be combined, all are moved."""
    for before, after in (("S[0]", "R"), ("R", "S[0]"), ("S[0]", "S[1]"), ("S[1]", "S[0]")):
        table = np.stack([array, array[::-1]], 1)
        moved = lay(session, table, before).redistribute(after)
        assert moved.shard(0).dtype == array.dtype
        same(moved, table)
    x = lay(session, array, "S[0]")
    same(x[::-2], array[::-2])
    same(x.take([4, 0, -1]), array.take([4, 0, -1]))
    if array.dtype.kind != "U":
        same(x.max(), array.max())
        same(x.argmin(), array.argmin())
    with pytest.raises(DtypeError, match=r"cannot be combined between workers: it has no P\[sum\]"):
        x.redistribute("P")
    other = disco_client.distributed.DeviceMesh((2,), [2, 0])
    same(x.redistribute(other, "R"), array)


def test_what_has_many_bytes_is_moved_without_being_known(session):
    """Beside the log, by broadcasts to the workers that have copies."""
    days = np.arange(20_000).astype("M8[s]")
    for placement in ("R", "S[0]"):
        second = np.timedelta64(1, "s")
        same(lay(session, days, placement).redistribute("R") + second, days + second)


def test_limits_beyond_a_dtype_are_none(session):
    """As numpy takes Python's integers: nothing is below 0 there."""
    array = np.array([0, 5, 255], "uint8")
    for limits in ((-1, 7), (3, 256), (-1, 1000), (None, 300), (-5, None)):
        same(lay(session, array, "S[0]").clip(*limits), np.clip(array, *limits))


def test_products_of_halves_are_added_up_in_single_precision(session):
    """Of bfloat16, for which numpy has einsum for some shapes only; rounded once."""
    for extent in (1, 5):
        array = np.full((extent, 3), 1.5).astype(ml_dtypes.bfloat16)
        want = (array.astype("float32").T @ array.astype("float32")).astype(array.dtype)
        x = lay(session, array, "S[0]")
        same(np.einsum("ij,ik->jk", x, x), want)
        same(np.tensordot(x, x, [[0], [0]]), want)
    small = np.array([[1, 2]]).astype(ml_dtypes.int4)
    same(np.einsum("ij->j", lay(session, small)), small[0])
    with pytest.raises(DtypeError):
        np.einsum("i->", lay(session, np.array([1], "M8[s]")))


def test_the_average_of_nothing_is_refused_where_there_is_no_nan(session):
    """Of 4 bits, as numpy does it; elsewhere it is NaN."""
    for dtype in (ml_dtypes.int4, ml_dtypes.uint4):
        x = lay(session, np.zeros(0, dtype))
        for average in (np.mean, np.var, np.std):
            with pytest.raises(ValueError, match="no average of no elements"):
                average(x)
    assert np.isnan(lay(session, np.zeros(0, "int8")).mean().item())


def test_axes_and_extents_are_integers_of_any_kind(session):
    """Numbers of numpy, arrays of them, and arrays without axes; others are type errors."""
    array = np.arange(12.0).reshape(4, 3)
    x = lay(session, array, "S[0]")
    calls = {
        "sum": lambda v: np.sum(v, axis=np.array(0)),
        "sums": lambda v: np.max(v, axis=(np.int8(-1), 0)),
        "reshape": lambda v: np.reshape(v, np.array([2, 6])),
        "tile": lambda v: np.tile(v, np.array(2)),
        "tiles": lambda v: np.tile(v, np.array([2, 1])),
        "split": lambda v: np.split(v, np.array([1, 3]))[1],
        "sections": lambda v: np.split(v, np.array(2))[1],
        "tensordot": lambda v: np.tensordot(v, v, np.array([[1], [1]])),
        "expand_dims": lambda v: np.expand_dims(v, np.array(0)),
        "swapaxes": lambda v: np.swapaxes(v, np.uint8(0), np.int64(-1)),
        "item": lambda v: v[np.uint64(1), np.int8(-1)],
    }
    for call in calls.values():
        same(call(x), call(array))
    wrong = {
        "sum": lambda v: np.sum(v, axis=1.0),
        "mean": lambda v: np.mean(v, axis="0"),
        "reshape": lambda v: np.reshape(v, (2.0, 6)),
        "tile": lambda v: np.tile(v, 2.0),
        "split": lambda v: np.split(v, [1.5]),
        "transpose": lambda v: np.transpose(v, (0.0, 1)),
    }
    for call in wrong.values():
        for given in (array, x):
            with pytest.raises(TypeError):
                call(given)


def test_an_axis_that_there_is_not_is_what_numpy_says(session):
    """A ValueError and an IndexError, both of them, as numpy's own; and too many indices."""
    array = np.arange(12.0).reshape(4, 3)
    calls = {
        "sum": lambda v: np.sum(v, axis=2),
        "sums": lambda v: np.sum(v, axis=(0, -3)),
        "argmax": lambda v: np.argmax(v, axis=-3),
        "cumsum": lambda v: np.cumsum(v, axis=2),
        "take": lambda v: np.take(v, [0], axis=2),
        "concatenate": lambda v: np.concatenate([v, v], axis=2),
        "swapaxes": lambda v: np.swapaxes(v, 0, 2),
        "expand_dims": lambda v: np.expand_dims(v, 4),
        "items": lambda v: v[0, 0, 0],
        "dots": lambda v: v[..., ...],
        "item": lambda v: v[4],
    }
    for given in (array, lay(session, array, "S[0]")):
        for call in calls.values():
            with pytest.raises(IndexError):
                call(given)
    for call in calls.values():
        with pytest.raises(ConfigError):
            call(lay(session, array))


def test_options_that_are_equal_are_not_taken_for_each_other(session):
    """A call may be like an earlier one but for 1.0 or True instead of 1, or the sign of a 0."""
    array = np.arange(4.0).reshape(2, 2)
    x = lay(session, array)
    same(np.sum(x, axis=1), array.sum(1))
    same(np.reshape(x, (4, 1)), array.reshape(4, 1))
    for wrong in (
        lambda v: np.sum(v, axis=1.0),
        lambda v: np.sum(v, axis=True),
        lambda v: np.reshape(v, (4, 1.0)),
    ):
        with pytest.raises(TypeError):
            wrong(x)
    for zero in (0.0, -0.0):
        padded = np.pad(x, 1, constant_values=zero).numpy()
        assert np.signbit(padded[0, 0]) == np.signbit(zero)
