"""One trial of the section ``nodes``, the same for Disco and Ray: a node is lost and comes back.

The programs hold numbers on their workers, and each answer is the sum of them times a factor
that no earlier answer had, so an answer of before, or of some of the numbers, is a wrong one.
"""

from __future__ import annotations

import time
from typing import NamedTuple, Protocol

import numpy as np

__all__ = ["NUMBERS", "LossFigures", "NodeProgram", "NodeTrial"]

NUMBERS = np.arange(24.0)
"""What the workers hold, each a part."""

_TOTAL = 276
_LONGEST_S = 90.0
"""How long a program may take to answer with the workers that are wanted."""


class LossFigures(NamedTuple):
    """What one trial found.

    Attributes:
        lost: Seconds from the end of the node to the next right answer, of the workers left.
        started: Seconds that the node's new daemon took until it was there; no part of others.
        back: Seconds from then to the next right answer, of as many workers as at first.
        answers: How many were looked at.
        wrong: How many of them were wrong.
    """

    lost: float
    started: float
    back: float
    answers: float
    wrong: float


class NodeProgram(Protocol):
    """A program with workers on two nodes, which goes on without one of them."""

    def answer(self, factor: int) -> tuple[float, int]:
        """Returns the sum of all numbers times the factor, and how many workers made it."""
        ...

    def kill_node(self) -> None:
        """Kills the daemon of one node."""

    def start_node(self) -> None:
        """Starts it again; returns when the cluster has it."""

    def use_node(self) -> None:
        """Does what makes the program use a node that has come back."""


class NodeTrial:
    """Lets a program lose a node and get it back; measures once.

    Args:
        program: The program.
        workers: How many workers it has with both nodes.
        left: How many with one.
    """

    def __init__(self, program: NodeProgram, workers: int, left: int) -> None:
        self._program = program
        self._workers, self._left = workers, left
        self._factor = self._wrong = 0

    def __call__(self) -> LossFigures:
        """Measures once; the program has all its workers before and afterwards."""
        answers, wrong = self._factor, self._wrong
        self._await(self._workers)
        self._program.kill_node()
        began = time.perf_counter()
        lost = self._await(self._left) - began
        began = time.perf_counter()
        self._program.start_node()
        there = time.perf_counter()
        self._program.use_node()
        back = self._await(self._workers) - there
        counts = self._factor - answers, self._wrong - wrong
        return LossFigures(lost, there - began, back, *counts)

    def _await(self, workers: int) -> float:
        """Asks until so many workers give a right answer; returns the time of that."""
        deadline = time.perf_counter() + _LONGEST_S
        while time.perf_counter() < deadline:
            if self._is_right(workers):
                return time.perf_counter()
        msg = f"{workers} workers gave no right answer within {_LONGEST_S:.0f} s"
        raise TimeoutError(msg)

    def _is_right(self, workers: int) -> bool:
        """Asks once; whether the answer is right and so many workers gave it."""
        self._factor += 1
        answer, asked = self._program.answer(self._factor)
        right = answer == _TOTAL * self._factor
        self._wrong += not right
        return right and asked == workers
