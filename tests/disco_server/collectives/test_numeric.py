"""Arithmetic beside MPI's."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from disco_server.collectives.numeric import combine, narrow
from disco_server.collectives.types import ReduceOp
from disco_server.collectives.validation import Family


@given(
    st.sampled_from(["int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"]),
    st.data(),
    st.integers(2, 300),
)
def test_averages_of_integers_are_exact(name, data, ranks):
    """As if added up without limits and cut toward zero, also at the ends of their dtypes."""
    limits = np.iinfo(name)
    ends = [int(limits.min), int(limits.max), 0]
    whole = st.integers(int(limits.min), int(limits.max)) | st.sampled_from(ends)
    few = data.draw(st.lists(whole, min_size=1, max_size=4))
    values = [few[rank % len(few)] for rank in range(ranks)]
    dst = np.empty(2, name)
    combine([np.array([value] * 2, name) for value in values], dst, ReduceOp.AVG, Family.INTEGER)
    total = sum(values)
    assert dst.tolist() == [abs(total) // ranks * (1 if total > 0 else -1)] * 2


def test_averages_of_floats_and_complex_numbers_are_divided_sums():
    """Other numbers are simply divided."""
    for name in ("float32", "complex128"):
        parts = [np.array([1, -3], name), np.array([0, 0], name)]
        dst = np.empty(2, name)
        family = Family.COMPLEX if name.startswith("complex") else Family.FLOAT
        combine(parts, dst, ReduceOp.AVG, family)
        assert dst.tolist() == [0.5, -1.5]


@pytest.mark.parametrize(
    ("op", "want"),
    [
        (ReduceOp.SUM, [-106, 0]),
        (ReduceOp.PROD, [-128, 0]),
        (ReduceOp.MIN, [48, -1]),
        (ReduceOp.MAX, [52, 1]),
        (ReduceOp.AVG, [50, 0]),
    ],
)
def test_rows_combine(op, want):
    """In the dtype itself, wrapping where that wraps; the average is added up wider."""
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
