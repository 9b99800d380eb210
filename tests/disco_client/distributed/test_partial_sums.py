"""Where parts of a sum give what the sum gives, and where they are combined first."""

from __future__ import annotations

import math
import operator

import ml_dtypes
import numpy as np
import pytest

from disco_client import ThreadedSession
from disco_client.distributed import TensorStructInfo
from disco_client.distributed.ops import rule_for
from disco_client.distributed.partial_sums import NumberStructInfo, may_convert

ORDINARY = [1, -3, 0.1, True, 1e10, 2.0**64, 2.0**-64, 2 - 1j, 1j]
OTHERS = [0, 0.0, -0.0, False, math.inf, -math.inf, math.nan, 1e-40, 1e30, 10**400, 0j]
OTHERS += [complex(math.inf, 0), complex(1, math.nan)]
SCALED = ("multiply", "divide", "true_divide")


def tensor(*shape, dtype="float32"):
    return TensorStructInfo(shape, dtype)


def linear(name, *operands, **options):
    return rule_for(name)(*operands, **options).pattern.linear


def real(numbers):
    return [number for number in numbers if not isinstance(number, complex)]


def of_numpy(number, dtype=None):
    return NumberStructInfo(np.asarray(number, dtype))


def test_what_is_linear_in_each_operand_by_a_number():
    """Products and quotients by ordinary numbers; not by zero, infinities, NaN or extremes."""
    x = tensor(3)
    for name in SCALED:
        for number in ORDINARY:
            assert linear(name, x, of_numpy(number)) in (((0,),), ((0,), (1,)))
        for number in real(ORDINARY):
            assert linear(name, x, number) == ((0,),)
        for number in OTHERS:
            if number != 10**400:
                assert (0,) not in linear(name, x, of_numpy(number)), (name, number)
        for number in real(OTHERS):
            if number != 10**400:
                assert linear(name, x, number) == (), (name, number)
    assert linear("multiply", 2.0, x) == ((0,),)
    assert linear("multiply", math.nan, x) == linear("multiply", of_numpy(0), x)[1:] == ()
    assert linear("divide", of_numpy(2.0), x) == ((0,),)  # which is the number
    assert linear("einsum", x, of_numpy(2.0), subscripts="i,->i") == ((0,), (1,))
    assert linear("einsum", x, of_numpy(0.0), subscripts="i,->i") == ((1,),)


def test_what_elements_are_is_not_known():
    """Arrays keep partial sums, in every dtype; as do negation and sums."""
    for dtype in ("float32", "float16", ml_dtypes.bfloat16):
        x = tensor(3, dtype=dtype)
        assert linear("multiply", x, x) == ((0,), (1,))
        assert linear("divide", x, x) == linear("negative", x) == ((0,),)
        assert linear("divide", x, tensor(dtype=dtype)) == ((0,),)
        assert linear("add", x, of_numpy(math.inf, dtype)) == ((0, 1),)


def test_half_precision_is_scaled_by_no_number():
    """Its parts overflow by themselves; nor is it where the number makes a wider result."""
    for dtype in (np.float16, ml_dtypes.bfloat16):
        x = tensor(3, dtype=dtype)
        for number in (2, 0.5, True):
            assert linear("multiply", x, number) == linear("divide", x, number) == ()
        for number in (np.float32(2), dtype(2), 1j):
            assert (0,) not in linear("multiply", x, of_numpy(number))


def test_integers_go_round_before_as_after():
    """So any factor will do."""
    for dtype in ("int8", "uint64"):
        for number in (0, 3, True):
            assert linear("multiply", tensor(3, dtype=dtype), number) == ((0,),)


def test_to_which_dtypes_parts_may_come():
    """Of floating-point numbers to wider ones; of integers to none."""
    bf16, int4 = np.dtype(ml_dtypes.bfloat16), np.dtype(ml_dtypes.int4)
    fits = [("f4", "f4"), ("f4", "f8"), ("f4", "c8"), ("f2", "f4"), (bf16, "f4"), ("i1", "i1")]
    for summand, result in fits:
        assert may_convert(np.dtype(summand), np.dtype(result))
    refused = [("f8", "f4"), ("f4", "f2"), ("f4", bf16), (bf16, "f2"), ("f2", bf16), ("c8", "f4")]
    refused += [("i1", "i2"), ("i4", "f8"), ("f4", "i4"), ("?", "i1"), ("?", "f4"), (int4, "f4")]
    refused += [(int4, "i1"), ("f4", "?")]
    for summand, result in refused:
        assert not may_convert(np.dtype(summand), np.dtype(result))


def test_calls_with_numbers_of_numpy_are_compiled_once():
    """For all that are ordinary, and for all others."""
    assert of_numpy(np.float32(2)) == of_numpy(np.float32(3)) != of_numpy(np.float64(2))
    assert of_numpy(np.float32(0)) == of_numpy(np.float32(np.nan)) != of_numpy(np.float32(2))
    assert of_numpy(np.datetime64("2020")).is_ordinary
    with ThreadedSession(2) as session:
        x = session.distribute(np.ones(4, "float32"), placement="P")
        x * np.float32(2)
        before = session._engine._found.cache_info().misses
        assert str((x * np.float32(3)).placement) == "P[sum]"
        assert session._engine._found.cache_info().misses == before


# Against numpy, with parts of which some cancel.

PARTS = {
    "float32": [[5, 3, 1, -2, 0.5, 0], [-8, -3, -1, 7, 0.25, 0]],
    "float64": [[5, 3, 1, -2], [-8, -3, -1, 7]],
    "float16": [[5, 3, 60000, -2], [-8, -3, -60000, 7]],
    "bfloat16": [[5, 3, 1, -2], [-8, -3, -1, 7]],
    "complex64": [[5 + 1j, 3, 1, -2], [-8 - 1j, -3, -1j, 7]],
    "int8": [[100, 3, -3, 2], [100, -3, -3, 7]],
    "int64": [[2**60, 3, -3, 2], [-(2**59), -3, -3, 7]],
    "uint8": [[200, 3, 253, 2], [100, 253, 253, 7]],
}

BY_NUMBERS = {
    "x * n": lambda x, n: x * n,
    "n * x": lambda x, n: n * x,
    "x / n": lambda x, n: x / n,
    "n / x": lambda x, n: n / x,
    "x // n": lambda x, n: x // n,
    "x ** n": lambda x, n: x**n,
    "multiply": np.multiply,
    "divide": np.divide,
    "true_divide": np.true_divide,
    "in place": lambda x, n: x * n if isinstance(x, np.ndarray) else operator.imul(x, n),
    "einsum": lambda x, n: np.einsum("i,->i", x, np.asarray(n)),
}

NUMBERS = [0, 0.0, -0.0, math.inf, -math.inf, math.nan, 2, -3, 0.1, 1e-50, 1e-40, 1e38, 1e39]
NUMBERS += [True, False, np.float32(0), np.float32(3), np.float64("inf"), np.float16(3), np.int8(0)]
NUMBERS += [np.array(0.0), np.array(math.nan), np.array(2), 0j, 1j, complex(math.inf, 0)]
NUMBERS += [ml_dtypes.bfloat16(0)]


def sums(session, dtype):
    """A partial sum, and what numpy adds up."""
    kind = np.dtype(getattr(ml_dtypes, dtype, dtype))
    parts = np.array(PARTS[dtype]).astype(kind)
    x = np.sum(session.distribute(parts, placement="S[0]"), axis=0, dtype=dtype)
    assert str(x.placement) == "P[sum]"
    return x, parts.sum(axis=0, dtype=kind)


def same(got, want, what):
    """Shape, dtype and values, infinities and NaN among them."""
    want = np.asarray(want)
    found = got.numpy()
    assert (found.dtype, found.shape) == (want.dtype, want.shape), what
    wide = "complex128" if want.dtype.kind == "c" else "float64"
    rtol = 2e-2 if want.dtype.itemsize == 2 else 1e-5
    np.testing.assert_allclose(
        found.astype(wide), want.astype(wide), rtol=rtol, err_msg=f"{what} of {got.placement}"
    )


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("dtype", PARTS)
def test_a_sum_by_a_number_is_what_numpy_gives(dtype):
    """By each number, in each way: values, infinities and NaN; and ordinary numbers keep it so."""
    with ThreadedSession(2) as session:
        x, host = sums(session, dtype)
        for name, compute in BY_NUMBERS.items():
            for number in NUMBERS:
                if dtype == "bfloat16" and (name == "einsum" or isinstance(number, np.int8)):
                    continue  # numpy refuses it, or gives objects
                try:
                    want = compute(host, number)
                except (TypeError, ValueError, OverflowError):
                    continue
                same(compute(x, number), want, f"{name}, {number!r}")
        by_two = dtype in ("float32", "float64", "complex64", "int8", "int64", "uint8")
        assert ("P" in str((x * 2).placement)) is by_two
        assert ("P" in str((x / 2).placement)) is (by_two and "int" not in dtype)


CONVERTED = {
    "sum in half precision": lambda x: np.sum(x, axis=0, dtype="float16"),
    "sum in single precision": lambda x: np.sum(x, axis=0, dtype="float32"),
    "sum of integers": lambda x: np.sum(x, axis=0, dtype="int32"),
    "half": lambda x: x.astype("float16"),
    "integers": lambda x: x.astype("int32"),
    "truth": lambda x: x.astype(bool),
    "round": lambda x: np.round(x, 1),
    "clip": lambda x: np.clip(x, -1, 1),
    "absolute": abs,
    "concatenated": lambda x: np.concatenate([x, np.ones(1)]),
}


def test_what_changes_its_dtype_is_what_numpy_gives():
    """Parts that overflow in a narrower dtype, or have fractions, are combined before."""
    parts = np.array([[1e5, 1e39, 0.5, 1.75], [-1e5, -1e39, 0.5, 1.5]])
    with ThreadedSession(2) as session:
        x, host = session.distribute(parts, placement="S[0]").sum(axis=0), parts.sum(axis=0)
        for name, compute in CONVERTED.items():
            assert str(x.placement) == "P[sum]"
            same(compute(x), compute(host), name)


# One operand is split as the other cannot be; in the other are zeros, infinities and NaN.

ONE = np.array([2.0])
THREE = np.array([0.0, math.inf, math.nan])
SPLIT = {
    "y / x": (ONE, THREE, operator.truediv),
    "y * x": (ONE, THREE, operator.mul),
    "x * y": (ONE, THREE, lambda y, x: x * y),
    "matmul": (np.ones((1, 2, 2)), np.full((3, 2, 2), math.inf), np.matmul),
    "einsum": (np.ones((3, 3)), THREE, lambda y, x: np.einsum("ii,j->j", y, x)),
}


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("name", SPLIT)
def test_what_is_split_and_scaled_becomes_no_partial_sum(name):
    """Its parts are brought together: as a sum it has zeros, which make NaN of infinities."""
    split, factor, compute = SPLIT[name]
    want = compute(split, factor)
    with ThreadedSession(2) as session:
        x = session.distribute(split, placement="S[0]")
        got = compute(x, session.distribute(factor))
        same(got, want, name)
        assert not any(spec.is_partial for spec in got.placement.dim_specs)


@pytest.mark.filterwarnings("ignore::RuntimeWarning", "ignore:Degrees of freedom")
def test_averages_of_nothing_are_what_numpy_gives():
    """Variances by no degree of freedom are infinite or NaN, means of no elements NaN."""
    array = np.array([[1, 5, 2.5], [3, 5, 2.5], [1, 5, 2.5], [1, 5, 0]], "float32")
    with ThreadedSession(2) as session:
        x, none = (session.distribute(each, placement="S[0]") for each in (array, array[:0]))
        for ddof in (0, 1, np.int64(1), 3.5, 4, 5, 4.0, math.nan, math.inf):
            for compute in (np.var, np.std):
                for axis in (0, 1, None):
                    want = compute(array, axis=axis, ddof=ddof)
                    same(compute(x, axis=axis, ddof=ddof), want, (compute, axis, ddof))
        for compute in (np.mean, np.var, np.std):
            for axis in (0, None):
                same(compute(none, axis=axis), compute(none.numpy(), axis=axis), (compute, axis))
        # By an ordinary number it stays partial.
        assert str(x.var(axis=0, ddof=1).placement) == "P[sum]"
        assert "P" not in str(x.var(axis=0, ddof=4).placement)
