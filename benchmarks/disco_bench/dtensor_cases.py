"""What is done with distributed tensors on either side; knows neither Disco nor torch.

The values are small integers, so that sums of products are exact in float32 whatever
their order, and results can be compared bit by bit.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

__all__ = ["CASES", "NOTHING", "Case", "expected", "inputs", "result_of"]

Array = np.ndarray[Any, Any]


@dataclass(frozen=True, slots=True)
class Case:
    """One thing to do: a product of two square matrices of float32, or a redistribution of one.

    Attributes:
        name: Short, for keys and between processes.
        what: For people.
        mesh: The shape of the mesh.
        operands: The placements of the one or two operands, as Disco writes them.
        after: The placement that the result is brought to; empty to leave it.
    """

    name: str
    what: str
    mesh: tuple[int, ...] = (4,)
    operands: tuple[str, ...] = ()
    after: str = ""


NOTHING = Case("nothing", "nothing, and the wait for all")
CASES = {
    case.name: case
    for case in (
        NOTHING,
        Case("matmul", "S[0] @ R", (4,), ("S[0]", "R")),
        Case("matmul_2x2", "(S[0], R) @ (R, S[1])", (2, 2), ("S[0], R", "R, S[1]")),
        Case("matmul_sum", "S[1] @ S[0] -> R", (4,), ("S[1]", "S[0]"), "R"),
        Case("s_to_r", "S[0] -> R", (4,), ("S[0]",), "R"),
        Case("s_to_s", "S[0] -> S[1]", (4,), ("S[0]",), "S[1]"),
        Case("p_to_r", "P -> R", (4,), ("P",), "R"),
        Case("p_to_s", "P -> S[0]", (4,), ("P",), "S[0]"),
    )
}


def inputs(case: Case, nbytes: int) -> list[Array]:
    """The operands as whole arrays, of so many bytes each."""
    side = math.isqrt(nbytes // 4)
    random = np.random.default_rng(0)
    return [random.integers(-2, 3, (side, side)).astype(np.float32) for _ in case.operands]


def expected(case: Case, nbytes: int) -> Array:
    """The whole result, by numpy."""
    first, *second = inputs(case, nbytes)
    return first @ second[0] if second else first


def result_of(
    operands: list[Any], redistribute: Callable[[Any], Any] | None
) -> Callable[[], object]:
    """A function that runs the case once: the product, and the redistribution after it, if any.

    Args:
        operands: Distributed, one or two; none for nothing.
        redistribute: Brings the result to its placement; None to leave it.
    """
    if not operands:
        return lambda: None
    if len(operands) == 1:
        assert redistribute is not None
        (one,) = operands
        return lambda: redistribute(one)
    first, second = operands
    if redistribute is None:
        return lambda: first @ second
    return lambda: redistribute(first @ second)
