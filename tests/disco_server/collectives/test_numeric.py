"""Arithmetic beside MPI's."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from disco_server.collectives.numeric import combine, divide, narrow
from disco_server.collectives.types import ReduceOp
from disco_server.collectives.validation import Family


@given(
    st.sampled_from(["int8", "int16", "int32", "int64", "uint8", "uint64"]),
    st.data(),
    st.integers(2, 300),
)
def test_integers_divide_toward_zero(name, data, divisor):
    """Division cuts, for extreme values and for divisors beyond the dtype too."""
    limits = np.iinfo(name)
    values = data.draw(st.lists(st.integers(int(limits.min), int(limits.max)), min_size=1))
    array = np.array(values, name)
    divide(array, divisor)
    cut = [abs(value) // divisor * (1 if value > 0 else -1) for value in values]
    assert array.tolist() == cut


def test_floats_and_complex_divide():
    """Other numbers are simply divided."""
    for name in ("float32", "complex128"):
        array = np.array([1, -3], name)
        divide(array, 2)
        assert array.tolist() == [0.5, -1.5]


@pytest.mark.parametrize(
    ("op", "want"),
    [
        (ReduceOp.SUM, [-106, 0]),
        (ReduceOp.PROD, [-128, 0]),
        (ReduceOp.MIN, [48, -1]),
        (ReduceOp.MAX, [52, 1]),
        (ReduceOp.AVG, [-35, 0]),
    ],
)
def test_rows_combine(op, want):
    """Every operation works in the dtype itself, wrapping where that wraps."""
    parts = [np.array(each, np.int8) for each in ([50, -1], [52, 0], [48, 1])]
    dst = np.empty(2, np.int8)
    combine(parts, dst, op, Family.INTEGER)
    assert dst.tolist() == want


def test_booleans_combine_by_logic():
    """Sum and max are or; product and min are and."""
    parts = [np.array(each) for each in ([True, True, False], [True, False, False])]
    dst = np.empty(3, bool)
    for op, want in (
        (ReduceOp.SUM, [True, True, False]),
        (ReduceOp.MAX, [True, True, False]),
        (ReduceOp.PROD, [True, False, False]),
        (ReduceOp.MIN, [True, False, False]),
    ):
        combine(parts, dst, op, Family.BOOL)
        assert dst.tolist() == want


def test_halves_combine_in_float32():
    """Small terms that a half would lose count, and the average is rounded once."""
    parts = [np.array([value], ml_dtypes.bfloat16) for value in (256.0, 1.0, 1.0, 1.0)]
    dst = np.empty(1, ml_dtypes.bfloat16)
    combine(parts, dst, ReduceOp.SUM, Family.HALF)
    assert float(dst[0]) == float(ml_dtypes.bfloat16(259))
    combine(parts, dst, ReduceOp.AVG, Family.HALF)
    assert float(dst[0]) == float(ml_dtypes.bfloat16(259 / 4))


def test_narrowing_overflows_to_infinity():
    """What float16 cannot hold becomes infinite, without a warning."""
    dst = np.empty(2, np.float16)
    narrow(np.array([1e6, 3.0], np.float32), dst, 2)
    assert dst.tolist() == [np.inf, 1.5]


def test_combining_overflows_without_a_word_and_leaves_the_users_settings_alone():
    """Even where the user wants errors to be raised, and in several threads at once."""

    def overflow():
        dst = np.empty(2, np.float32)
        with np.errstate(all="raise"):
            for _ in range(50):
                combine([np.full(2, 3e38, np.float32)] * 3, dst, ReduceOp.SUM, Family.FLOAT)
            with pytest.raises(FloatingPointError):
                np.add(np.float32(3e38), np.float32(3e38))
        return dst.tolist()

    before = np.geterr()
    with ThreadPoolExecutor(4) as pool:
        results = [each.result() for each in [pool.submit(overflow) for _ in range(8)]]
    assert results == [[np.inf, np.inf]] * 8
    assert np.geterr() == before
