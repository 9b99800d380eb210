"""How the placement of a result follows from those of its operands: one rule for all.

A function is described by which axes go together, as in einsum: each axis of each
operand has a letter, and axes of the same letter are walked through together. Then,
along each axis of the mesh by itself, there are these ways to compute:

- every operand is whole: so is the result;
- the axes of one letter are split, operands without it whole: the result is split
  along that letter, or, where the letter is not in the result because the function
  combines along it, each worker has a partial result;
- some operands are partial sums and the function is linear in them, the others are
  whole: the result is a partial sum.

Among all combinations the one is taken for which the fewest bytes must move first.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from disco_client.distributed.placement import Placement, PlacementSpec
from disco_client.distributed.plan import Plan, make_plan
from disco_client.distributed.struct_info import DTensorStructInfo

__all__ = ["LOCAL_AXIS", "Choice", "Pattern", "choose", "exact"]

LOCAL_AXIS = ""
"""The letter of an axis that must be whole wherever the function is computed."""


@dataclass(frozen=True)
class Pattern:
    """What a function does with the axes of its operands.

    Attributes:
        inputs: The letters of each operand's axes.
        output: Those of the result's.
        combines: (letter, reduction) for what the function combines along.
        linear: Sets of operands in which it is linear together, by their numbers.
        even: (letter, extent) for axes that can be split only where the mesh divides
            this extent.
    """

    inputs: tuple[tuple[str, ...], ...]
    output: tuple[str, ...]
    combines: tuple[tuple[str, str], ...] = ()
    linear: tuple[tuple[int, ...], ...] = ()
    even: tuple[tuple[str, int], ...] = ()


class _Option(NamedTuple):
    """One way to compute along one axis of the mesh."""

    inputs: tuple[PlacementSpec, ...]
    output: PlacementSpec
    letter: str = LOCAL_AXIS


class Choice(NamedTuple):
    """Where operands must lie, and how the result then does.

    Attributes:
        plans: What brings each operand there.
        output: The placement of the result.
    """

    plans: tuple[Plan, ...]
    output: Placement

    @property
    def cost(self) -> int:
        """The bytes that must reach a worker first."""
        return sum(plan.cost for plan in self.plans)


def _options(pattern: Pattern) -> Iterator[_Option]:
    whole = PlacementSpec.replica()
    yield _Option(tuple(whole for _ in pattern.inputs), whole)
    combines = dict(pattern.combines)
    letters = dict.fromkeys(letter for letters in pattern.inputs for letter in letters)
    for letter in letters:
        if letter == LOCAL_AXIS or any(axes.count(letter) > 1 for axes in pattern.inputs):
            continue
        if letter in pattern.output:
            result = PlacementSpec.sharding(pattern.output.index(letter))
        elif letter in combines:
            result = PlacementSpec.partial(combines[letter])
        else:
            continue
        split = tuple(
            PlacementSpec.sharding(axes.index(letter)) if letter in axes else whole
            for axes in pattern.inputs
        )
        yield _Option(split, result, letter)
    partial = PlacementSpec.partial("sum")
    for together in pattern.linear:
        parts = tuple(
            partial if number in together else whole for number in range(len(pattern.inputs))
        )
        yield _Option(parts, partial)


def choose(pattern: Pattern, operands: tuple[DTensorStructInfo, ...]) -> Choice:
    """Finds where operands on one mesh must lie so that the least moves.

    Of equally cheap ways that with the fewest moves is taken, and then that which
    leaves the least to combine.

    Args:
        pattern: Of the function.
        operands: As they lie.
    """
    mesh = operands[0].device_mesh
    ways = itertools.product(tuple(_options(pattern)), repeat=mesh.ndim)
    even = (options for options in ways if _is_even(pattern, mesh.shape, options))
    return min((_choice(operands, options) for options in even), key=_rank)


def exact(
    pattern: Pattern, operands: Sequence[DTensorStructInfo], result: np.dtype[Any]
) -> Pattern:
    """A pattern less what holds for numbers, but not for those of these dtypes.

    Partial integers may go round at the ends of their dtype, and partial truth values
    are true on several workers: in another dtype their sum would be another one. So
    only floating-point numbers may change their dtype before they are combined, and
    must stay such.

    Args:
        pattern: Of a function.
        operands: Its operands.
        result: The dtype of what comes out.
    """

    def holds(number: int) -> bool:
        dtype = operands[number].tensor_sinfo.dtype
        return dtype == result or not (_is_exact(dtype) or _is_exact(result))

    linear = tuple(together for together in pattern.linear if all(map(holds, together)))
    return pattern if linear == pattern.linear else replace(pattern, linear=linear)


def _is_exact(dtype: np.dtype[Any]) -> bool:
    return dtype.kind in "biu"


def _is_even(pattern: Pattern, mesh: Sequence[int], options: Sequence[_Option]) -> bool:
    """Whether the axes that must be split evenly are."""
    for letter, extent in pattern.even:
        split = (n for n, option in zip(mesh, options, strict=True) if option.letter == letter)
        if extent % math.prod(split):
            return False
    return True


def _choice(operands: Sequence[DTensorStructInfo], options: Sequence[_Option]) -> Choice:
    return Choice(_plans(operands, options), Placement(option.output for option in options))


def _rank(choice: Choice) -> tuple[int, int, int]:
    steps = sum(len(plan.steps) for plan in choice.plans)
    return choice.cost, steps, sum(spec.is_partial for spec in choice.output.dim_specs)


def _plans(operands: Sequence[DTensorStructInfo], options: Sequence[_Option]) -> tuple[Plan, ...]:
    return tuple(
        make_plan(operand, Placement(option.inputs[number] for option in options))
        for number, operand in enumerate(operands)
    )
