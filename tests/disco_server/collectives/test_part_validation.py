"""What a rank finds wrong with counts, tables, roots and lines before it meets its peers."""

from __future__ import annotations

import numpy as np
import pytest

from disco_client.errors import ConfigError
from disco_server.collectives.types import ReduceOp
from disco_server.collectives.validation import (
    Op,
    add_root,
    check_counts,
    check_equal,
    check_table,
    op_name,
    read_lines,
    sign_lines,
)

ONE, TWO, SIX = np.zeros(1), np.zeros(2), np.zeros(6)


def test_equal_counts_need_no_parts():
    """Unless they start at another rank than the first; numbers of numpy will do."""
    for counts in ([2, 2, 2], (2, 2, 2), np.array([2, 2, 2])):
        signature, parts = check_counts(Op.ALLGATHER, TWO, SIX, counts, 3, 1)
        assert (signature.problem, signature.elements, parts) == ("", 6, None)
    assert check_counts(Op.GATHER, TWO, None, [2, 2, 2], 3, 1, root=0)[1] is None
    assert check_counts(Op.GATHER, TWO, SIX, [2, 2, 2], 3, 1, root=1)[1] is not None


def test_other_counts_have_another_checksum():
    """Also where their sum is the same, and for every root."""
    extras = {
        check_counts(Op.SCATTER, None, np.zeros(counts[2]), counts, 3, 2, root=root)[0].extra
        for counts in ([1, 2, 3], [1, 3, 2], [3, 2, 1], [0, 0, 6])
        for root in (0, 1)
    }
    assert len(extras) == 8
    tables = [[[1, 0], [0, 1]], [[0, 1], [1, 0]], [[1, 1], [0, 0]]]
    sizes = [(1, 1), (1, 1), (2, 1)]
    found = {
        check_table(np.zeros(sent), np.zeros(received), table, 2, 0)[0].extra
        for table, (sent, received) in zip(tables, sizes, strict=True)
    }
    assert len(found) == 3


@pytest.mark.parametrize(
    ("counts", "words"),
    [
        ([2, 2], "there are 3 members, but 2 counts"),
        ([2, -2, 6], "counts must be from 0 to"),
        ([1 << 60, 0, 0], "counts must be from 0 to"),
        ([2, 2.0, 2], "the counts must be integers"),
        (None, "the counts must be integers"),
        ([2, 2, 1], r"the destination float64[6] should have 5 elements"),
        ([2, 1, 3], r"the source float64[2] should have 1 elements"),
    ],
)
def test_counts_that_cannot_be(counts, words):
    """Nothing is raised: the rank must still meet its peers."""
    signature, _ = check_counts(Op.ALLGATHER, TWO, SIX, counts, 3, 1)
    assert words in signature.problem


def test_the_reduction_is_part_of_a_wrong_call():
    """So that the words of the error name it."""
    signature, _ = check_counts(Op.REDUCE_SCATTER, SIX, TWO, None, 3, 1, ReduceOp.MAX)
    assert op_name(signature.op) == "reduce_scatter(max)"


@pytest.mark.parametrize(
    ("table", "words"),
    [
        ([[1, 1], [1, 1]], ""),
        ([[1, 1], [1]], "the counts must be 2 rows of 2 numbers"),
        ([1, 1], "the counts must be rows of integers"),
        ([[1, 1], [-1, 1]], "counts must be from 0 to"),
        ([[1, 2], [1, 1]], "the source float64[2] should have 3 elements"),
        ([[1, 1], [2, 1]], "the destination float64[2] should have 3 elements"),
    ],
)
def test_tables(table, words):
    """A rank sees its row and its column."""
    signature, parts = check_table(TWO, TWO, table, 2, 0)
    assert words in signature.problem
    assert bool(signature.problem) == bool(words)
    assert parts is None or words


def test_long_counts_are_cut_but_told_apart():
    """By their checksum, because all that ranks tell each other is short."""
    notes = [
        check_counts(Op.ALLGATHER, ONE, ONE, [1000] * 99 + [last], 100, 0)[0].note
        for last in (1, 2)
    ]
    assert notes[0] != notes[1]
    assert all(len(note) < 170 for note in notes)


@pytest.mark.parametrize("root", [-1, 3, "0", None, 1.0])
def test_roots_that_cannot_be(root):
    """They are no rank of the team."""
    signature = add_root(check_equal(Op.BROADCAST, ONE, ONE), root, 3)
    assert signature.problem == f"the root {root!r} is not one of the 3 members"


def test_lines_are_read_from_anything_alike():
    """Lists, tuples, arrays, and numbers of numpy."""
    assert read_lines([(0, 2), [1]], 3) == ((0, 2), (1,))
    assert read_lines(np.array([[0, 2], [1, 3]]), 4) == ((0, 2), (1, 3))
    assert read_lines([], 3) == ()


@pytest.mark.parametrize("lines", [[[0, 0]], [[0], [0]], [[3]], [[-1]], [[]], [0], None, ["ab"]])
def test_lines_that_cannot_be(lines):
    """Nobody is twice in them, strange or nobody."""
    with pytest.raises(ConfigError):
        read_lines(lines, 3)


def test_different_lines_have_different_checksums():
    """Where they begin and end matters, and the order of their workers."""
    every = ([[0, 1]], [[1, 0]], [[0], [1]], [[1], [0]], [[0]])
    assert len({sign_lines(read_lines(lines, 2)).extra for lines in every}) == len(every)
