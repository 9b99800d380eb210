"""What a rank finds wrong before it meets its peers."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from disco_server.collectives.types import ReduceOp
from disco_server.collectives.validation import (
    CollectiveSignature,
    Family,
    Op,
    add_shapes,
    add_tag,
    check_equal,
    check_parts,
    check_point,
    describe,
    find_kind,
)

THREE = np.zeros(3, np.float32)


@pytest.mark.parametrize(
    ("name", "family"),
    [
        ("bool", Family.BOOL),
        ("uint16", Family.INTEGER),
        ("longlong", Family.INTEGER),
        ("float16", Family.HALF),
        (ml_dtypes.bfloat16, Family.HALF),
        ("float64", Family.FLOAT),
        ("complex64", Family.COMPLEX),
        (ml_dtypes.float8_e5m2, Family.OPAQUE),
    ],
)
def test_dtypes_that_may_take_part(name, family):
    """Every dtype of the wire has a family and a number of its own."""
    assert find_kind(np.dtype(name)).family is family


@pytest.mark.parametrize("name", ["<U3", "S4", "O", "V8", "M8[s]", ">f4", "longdouble"])
def test_dtypes_that_may_not(name):
    """Texts, objects, times and foreign byte orders are unknown."""
    assert find_kind(np.dtype(name)) is None
    signature = check_equal(Op.BROADCAST, np.zeros(1, name), np.zeros(1, name))
    assert "cannot take part" in signature.problem


def test_codes_are_distinct():
    """No two dtypes share a number in headers, and no two operations do."""
    names = ["bool", "int8", "uint8", "float16", ml_dtypes.bfloat16, "float32", "complex64"]
    assert len({find_kind(np.dtype(name)).code for name in names}) == len(names)
    codes = {check_equal(Op.ALLREDUCE, THREE, THREE, op).op for op in ReduceOp}
    codes |= {check_equal(op, THREE, THREE).op for op in (Op.BROADCAST, Op.ALL_TO_ALL)}
    assert len(codes) == 7


def test_a_sound_offer():
    """A sound call signatures its operation, dtype and elements, and no problem."""
    signature = check_parts(Op.ALLGATHER, THREE, np.zeros((4, 3), np.float32), 4, root=True)
    assert (signature.op, signature.elements, signature.problem) == (Op.ALLGATHER, 3, "")
    assert signature.dtype == find_kind(np.dtype("float32")).code


@pytest.mark.parametrize(
    ("src", "dst", "problem"),
    [
        (None, THREE, "source must be an array, not None"),
        ([1], THREE, "source must be an array, not list"),
        (THREE, None, "destination must be an array, not None"),
        (THREE, np.zeros((2, 2), np.float32), r"float32\[2, 2\] needs 3 elements, as float32\[3\]"),
        (THREE, np.zeros(3), r"destination float64\[3\] must be float32"),
        (THREE, np.broadcast_to(THREE, 3), "read-only"),
    ],
)
def test_equal_arrays(src, dst, problem):
    """Source and destination of one rank must be equally long and of one dtype."""
    signature = check_equal(Op.ALLREDUCE, src, dst, ReduceOp.SUM)
    with pytest.raises(AssertionError, match=problem):
        raise AssertionError(signature.problem)


def test_parts_must_be_equal():
    """An array of all parts holds as many elements as all parts."""
    whole = np.zeros(7, np.float32)
    assert "float32[7] does not hold 2 parts like float32[3]" in (
        check_parts(Op.SCATTER, whole, THREE, 2, root=True).problem
    )
    assert "cannot be split into 2 equal parts" in (
        check_equal(Op.ALL_TO_ALL, whole, whole, parts=2).problem
    )


def test_only_the_roots_array_of_parts_counts():
    """Elsewhere it may be anything; the part decides what is offered."""
    assert check_parts(Op.GATHER, THREE, None, 4, root=False) == (
        check_parts(Op.GATHER, THREE, np.zeros(12, np.float32), 4, root=True)
    )
    assert check_parts(Op.SCATTER, "nonsense", THREE, 4, root=False).problem == ""
    frozen = np.broadcast_to(THREE, 3)
    assert check_parts(Op.GATHER, frozen, None, 4, root=False).problem == ""
    assert "read-only" in check_parts(Op.SCATTER, None, frozen, 4, root=False).problem


@pytest.mark.parametrize(
    ("dtype", "op", "problem"),
    [
        ("bool", ReduceOp.AVG, "bool has no avg"),
        ("complex64", ReduceOp.MIN, "complex64 has no order, so no min"),
        (ml_dtypes.float8_e4m3fn, ReduceOp.SUM, "can be moved but not reduced"),
    ],
)
def test_reductions_a_dtype_does_not_know(dtype, op, problem):
    """They are refused with what to do."""
    array = np.zeros(2, dtype)
    assert problem in check_equal(Op.ALLREDUCE, array, array, op).problem
    assert problem in check_parts(Op.REDUCE_SCATTER, array, array[:1], 2, op, root=True).problem


def test_ends_of_a_transfer():
    """A transfer needs another worker, and the receiver a writable array."""
    assert check_point(THREE, 1, 0, 2, receives=True).problem == ""
    for peer in (0, 2, -1):
        assert "not another one" in check_point(THREE, peer, 0, 2, receives=False).problem
    frozen = np.broadcast_to(THREE, 3)
    assert "read-only" in check_point(frozen, 1, 0, 2, receives=True).problem
    assert check_point(frozen, 1, 0, 2, receives=False).problem == ""
    assert "must be an array" in check_point(3, 1, 0, 2, receives=False).problem


def test_offers_are_described():
    """People read the operation, both arrays and their shapes."""
    signature = check_equal(Op.ALLREDUCE, THREE, THREE, ReduceOp.SUM)
    text = "allreduce(sum) of float32[3], destination float32[3]"
    assert describe(signature, THREE, THREE) == text
    gather = check_parts(Op.GATHER, THREE.reshape(3, 1), None, 2, root=False)
    assert describe(gather, THREE.reshape(3, 1), None) == "gather of float32[3, 1]"


def test_shapes_are_added_to_what_ranks_compare():
    """Of the arrays that all of them have; roots, uneven parts and barriers are left alone."""
    wide, high, whole = np.zeros((2, 3)), np.zeros((3, 2)), np.zeros(12)

    def extra(signature, src, dst):
        return add_shapes(signature, src, dst).extra

    both = check_equal(Op.ALLREDUCE, wide, wide, ReduceOp.SUM)
    assert extra(both, wide, wide) == extra(both, wide.copy(), wide)
    assert extra(both, wide, wide) != extra(both, high, high)
    scatter = check_parts(Op.SCATTER, whole, wide, 2, root=True)
    assert extra(scatter, whole, wide) == extra(scatter, None, wide)
    gather = check_parts(Op.GATHER, wide, whole, 2, root=True)
    assert extra(gather, wide, whole) == extra(gather, wide, None)
    transfer = check_point(wide, 1, 0, 2, receives=False)
    assert extra(transfer, wide, None) == extra(transfer, None, wide)
    uneven = both._replace(op=int(Op.ALLGATHER), extra=7, note=", counts [1, 2]")
    assert extra(uneven, wide, high) == 7
    barrier = CollectiveSignature(int(Op.BARRIER), 0, 0)
    assert extra(barrier, None, None) == 0


def test_a_tag_is_added_to_what_ranks_compare():
    """By its text alone, whatever kind of text that is; it changes nothing else."""

    class Named(str):
        __slots__ = ()

        def __str__(self):
            return "something else"

    sound = check_equal(Op.ALLREDUCE, THREE, THREE, ReduceOp.SUM)
    tags = ["", "a", "a ", "\ud800", "é", "a" * 5000, "a" * 5001]
    added = [add_tag(sound, tag) for tag in tags]
    assert len({each.tag for each in added} | {sound.tag}) == len(tags) + 1
    assert all(1 < each.tag < 2**63 for each in added)
    assert all(each._replace(tag=sound.tag, tag_note="") == sound for each in added)
    for same in (np.str_("a"), Named("a")):
        assert add_tag(sound, same) == added[1]
    assert describe(added[1], THREE, THREE).endswith("destination float32[3], tag 'a'")
    assert len(describe(added[-1], THREE, THREE)) < 250
    assert add_tag(sound, 3).problem == "the tag must be a str, not int"
    wrong = check_equal(Op.ALLREDUCE, THREE, THREE[:2], ReduceOp.SUM)
    assert add_tag(wrong, None).problem == wrong.problem


def test_shapes_and_tags_are_compared_beside_each_other():
    """Comparing shapes sees those of a call with a tag, too."""
    wide, high = np.zeros((2, 3)), np.zeros((3, 2))
    for tag in ("a", "b"):
        both = add_tag(check_equal(Op.ALLREDUCE, wide, wide, ReduceOp.SUM), tag)
        assert add_shapes(both, wide, wide) != add_shapes(both, high, high)
