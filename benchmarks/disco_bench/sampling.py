"""Measuring two things side by side on a machine that does other things too.

What disturbs a machine lasts longer than one sample, so the two are measured in
turn, their order changing from round to round, and each round gives one ratio.
The median of the ratios then says more than the ratio of two separate figures.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from disco_bench.table import Measured

__all__ = ["Pair", "alone", "alternate", "median_of", "quartiles", "rotate", "time_call"]

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Pair:
    """Figures of two things, round by round.

    Attributes:
        ours: One figure of Disco a round.
        theirs: The yardstick's of the same rounds.
    """

    ours: list[float]
    theirs: list[float]

    @property
    def ratios(self) -> list[float]:
        """What the rounds' figures are to one another."""
        return [a / b for a, b in zip(self.ours, self.theirs, strict=True)]

    def measured(self, note: str = "") -> Measured:
        """The medians of figures and ratios as a row takes them."""
        median, ratios = statistics.median, self.ratios
        return Measured(
            median(self.ours), median(self.theirs), median(ratios), note, quartiles(ratios)
        )


def alone(figures: Sequence[float], yardstick: float | None = None, note: str = "") -> Measured:
    """The median of Disco's figures, where the yardstick was not measured in the same rounds."""
    return Measured(statistics.median(figures), yardstick, note=note, spread=quartiles(figures))


def quartiles(figures: Sequence[float]) -> tuple[float, float]:
    """Between which two values the middle half of some figures lies."""
    if len(figures) == 1:
        return figures[0], figures[0]
    low, _, high = statistics.quantiles(figures, n=4, method="inclusive")
    return low, high


def alternate(
    ours: Callable[[], float], theirs: Callable[[], float], rounds: int, *, warm_up: int = 1
) -> Pair:
    """Measures two things in turn.

    Args:
        ours: Measures Disco once and returns the figure.
        theirs: The same for the yardstick.
        rounds: How often.
        warm_up: How many rounds more come first, and do not count.
    """
    first, second = rotate((ours, theirs), rounds, warm_up=warm_up)
    return Pair(first, second)


def rotate(
    measures: tuple[Callable[[], _T], ...], rounds: int, *, warm_up: int = 1
) -> list[list[_T]]:
    """Measures several things in turn, beginning with another one each round.

    Args:
        measures: Each measures one thing once and returns the figure.
        rounds: How often.
        warm_up: How many rounds more come first, and do not count.

    Returns:
        The figures of each, round by round.
    """
    figures: list[list[_T]] = [[] for _ in measures]
    count = len(measures)
    for turn in range(-warm_up, rounds):
        for step in range(count):
            index = (turn + step) % count
            figure = measures[index]()
            if turn >= 0:
                figures[index].append(figure)
    return figures


def time_call(call: Callable[[], object]) -> float:
    """How long a call takes, in seconds."""
    started = time.perf_counter()
    call()
    return time.perf_counter() - started


def median_of(call: Callable[[], object], count: int) -> float:
    """The median duration of a call, in seconds."""
    return statistics.median(time_call(call) for _ in range(count))
