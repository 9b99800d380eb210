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
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from disco_client.distributed.placement import Placement, PlacementSpec
from disco_client.distributed.plan import Plan, make_plan
from disco_client.distributed.struct_info import DTensorStructInfo

__all__ = ["LOCAL_AXIS", "Choice", "Pattern", "choose"]

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


def _options(pattern: Pattern, mesh_size: int) -> Iterator[_Option]:
    uneven = {letter for letter, extent in pattern.even if extent % mesh_size}
    whole = PlacementSpec.replica()
    yield _Option(tuple(whole for _ in pattern.inputs), whole)
    combines = dict(pattern.combines)
    letters = dict.fromkeys(letter for letters in pattern.inputs for letter in letters)
    for letter in letters:
        if letter in uneven or letter == LOCAL_AXIS:
            continue
        if any(axes.count(letter) > 1 for axes in pattern.inputs):
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
        yield _Option(split, result)
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
    ways = itertools.product(tuple(_options(pattern, mesh.size)), repeat=mesh.ndim)
    return min((_choice(operands, options) for options in ways), key=_rank)


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
