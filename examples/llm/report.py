"""What a person sees of an answer: how fast it came, and where the time of a step went."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from disco_client.tracing.rank_flights import RankFlight

__all__ = ["StepTimes", "Times", "describe", "step_times"]

_STEPS = ("llm.step", "llm.next_step")


@dataclass(frozen=True, slots=True)
class StepTimes:
    """How a step's time divides, in seconds; means over the steps and the workers.

    Attributes:
        steps: Of how many steps.
        compute: In a worker's own arithmetic.
        collectives: In allreduces, waiting for slower workers included.
        control: Between steps: commands and tokens on their way.
    """

    steps: int
    compute: float
    collectives: float
    control: float


@dataclass(frozen=True, slots=True)
class Times:
    """How long the parts of an answer took, in seconds.

    Attributes:
        workers: How many workers there are.
        cores: How many cores they have together.
        start: Until the session was open and the workers had the model.
        first: From the question to the first token.
        rest: From there to the last token.
        tokens: Of the answer.
    """

    workers: int
    cores: int
    start: float
    first: float
    rest: float
    tokens: int


def step_times(ranks: Sequence[RankFlight]) -> StepTimes | None:
    """Divides the time of the steps that the flight recorders still have as a whole.

    The first steps after a pause count as any other; what lies between two steps is control
    only up to the time of a step, as nobody asked for anything in longer pauses.
    """
    parts: list[tuple[float, float, float]] = []
    steps = 0
    for rank in ranks:
        inside: dict[int, int] = {}
        for each in rank.collectives[1:]:  # of the step of the first one some may be missing
            inside[each.seq] = inside.get(each.seq, 0) + each.left_ns - each.entered_ns
        first = min(inside, default=0)
        own = [
            each
            for each in rank.commands
            if each.name in _STEPS and each.end_ns and each.seq > first and each.group == 1
        ]
        whole = [each.end_ns - each.start_ns for each in own]
        waited = [inside.get(each.seq, 0) for each in own]
        gaps = [
            max(0, min(after.start_ns - before.end_ns, before.end_ns - before.start_ns))
            for before, after in itertools.pairwise(own)
        ]
        if gaps:
            steps = max(steps, len(own))
            computed = np.mean(whole) - np.mean(waited)
            parts.append((float(computed), float(np.mean(waited)), float(np.mean(gaps))))
    if not parts:
        return None
    compute, collectives, control = (1e-9 * np.mean(parts, axis=0)).tolist()
    return StepTimes(steps, compute, collectives, control)


def describe(times: Times, steps: StepTimes | None) -> str:
    """Lays out how long the parts of an answer took."""
    after = max(times.tokens - 1, 0)
    pace = f"{after / times.rest:.1f} tokens/s" if after and times.rest else ""
    where = f"on {times.workers} workers"
    if times.workers > times.cores:
        where += f", which share {times.cores} {'core' if times.cores == 1 else 'cores'}"
    lines = [
        f"start the model  {times.start:8.3f} s   {where}",
        f"first token      {times.first:8.3f} s",
        f"{after:3} more tokens  {times.rest:8.3f} s   {pace}".rstrip(),
    ]
    if steps is not None:
        whole = steps.compute + steps.collectives + steps.control
        lines.append(f"a step           {1000 * whole:8.2f} ms  mean of the last {steps.steps}")
        parts = {
            "compute": (steps.compute, ""),
            "collectives": (steps.collectives, ", waiting for the slowest worker included"),
            "control": (steps.control, ", commands and tokens on their way"),
        }
        for name, (seconds, remark) in parts.items():
            share = 100 * seconds / whole
            lines.append(f"  {name:<13}  {1000 * seconds:8.2f} ms  {share:3.0f} %{remark}")
    return "\n".join(lines)
