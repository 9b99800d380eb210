"""Measuring in turn."""

from __future__ import annotations

import pytest
from disco_bench.collectives import slowest
from disco_bench.sampling import Pair, alone, alternate, quartiles, rotate


def test_the_ratio_is_the_median_of_the_rounds():
    """A round that was disturbed on both sides moves figures, and not the ratio."""
    measured = Pair([2.0, 20.0, 2.2], [1.0, 10.0, 1.0]).measured("note")
    assert measured.figure == 2.2
    assert measured.yardstick == 1.0
    assert measured.ratio == 2.0
    assert measured.spread == pytest.approx((2.0, 2.1))
    assert measured.note == "note"


def test_figures_without_rounds_of_a_yardstick():
    """The median stands, and the spread is that of the figures."""
    measured = alone([1.0, 2.0, 9.0], 4.0)
    assert (measured.figure, measured.yardstick, measured.quotient) == (2.0, 4.0, 0.5)
    assert measured.spread == (1.5, 5.5)
    assert quartiles([7.0]) == (7.0, 7.0)


def test_things_take_turns_and_change_their_order():
    """Each round measures each once and begins with another one; warming up does not count."""
    order = []

    def measure(name, figures):
        left = iter(figures)

        def once():
            order.append(name)
            return next(left)

        return once

    found = rotate((measure("a", range(4)), measure("b", range(10, 14))), 3)
    assert found == [[1, 2, 3], [11, 12, 13]]
    assert order == ["b", "a", "a", "b", "b", "a", "a", "b"]


def test_two_things_make_a_pair():
    """The first is Disco, the second the yardstick."""
    pair = alternate(lambda: 3.0, lambda: 2.0, 2)
    assert (pair.ours, pair.theirs, pair.ratios) == ([3.0, 3.0], [2.0, 2.0], [1.5, 1.5])


def test_the_slowest_rank_counts():
    """Of each round the largest figure of all ranks, for each of the two kinds."""
    first = [[1.0, 5.0], [2.0, 2.0]]
    second = [[3.0, 4.0], [1.0, 6.0]]
    pair = slowest([first, second])
    assert (pair.ours, pair.theirs) == ([3.0, 2.0], [5.0, 6.0])
