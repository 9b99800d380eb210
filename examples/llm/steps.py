"""A step as a worker prepares it: which rows there are, what they see, and what they want.

A step has rows of several sequences. `Batch` is made of it once, before the first layer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from llm.choosing import History, Note, Sampling

__all__ = ["Batch", "Found", "Latest", "Sight", "SingleRows", "Span"]

Array = np.ndarray[Any, Any]
Found = tuple[Array, list[tuple[int, Note]], list[tuple[int, int, list[Note]]]]
"""The next tokens; of some of them, by their numbers, how likely they were; and of prompts, by slot
and first position, how likely their tokens were."""


@dataclass(frozen=True, slots=True)
class Sight:
    """The positions of a sequence that a span's rows see.

    Attributes:
        held: Where the cache has them, up to the last one of the span; a slice where their blocks
            lie in a row, so that nothing is copied.
        hidden: [rows, positions], where a row may not look; None where all rows see all.
    """

    held: slice | Array
    hidden: Array | None


@dataclass(frozen=True, slots=True)
class Span:
    """Consecutive tokens of one sequence in a step.

    Attributes:
        rows: Which rows of the step they are.
        sights: What they see in layers that see all positions, and in layers that see a window.
    """

    rows: slice
    sights: tuple[Sight, Sight]


@dataclass(frozen=True, slots=True)
class SingleRows:
    """The rows of sequences that have one row in a step, where a compiled function takes them all.

    Attributes:
        rows: [rows], which of the step's rows they are.
        tables: [rows, blocks], the cache's blocks of their sequences.
        positions: [rows], theirs.
    """

    rows: Array
    tables: Array
    positions: Array


@dataclass(frozen=True, slots=True)
class Batch:
    """One step: tokens of some sequences.

    Attributes:
        ids: [rows], the tokens.
        turns: What turns their heads in layers that see all positions, and in layers that see a
            window: as `llm.turning.Angles.at` gives it.
        places: [rows], where the cache keeps their keys and values.
        spans: The sequences, but for those of `singles`.
        singles: Sequences with one row; None for none.
        wanted: [tokens wanted], the rows behind which the next token is wanted.
        slots: [tokens wanted], where it is remembered.
        draws: [tokens wanted, 4]: seed, position, temperature and top-p of each.
        histories: Of the tokens wanted, by their numbers, for which choosing takes more.
        scored: The rows of a prompt behind which the tokens are told with their log
            probabilities; the slot, the first one's position, and the sequence.
        given: What it was made of besides the tokens: spans, tables and sampling, as given to
            `Share.begin`.
    """

    ids: Array
    turns: tuple[tuple[Array, Array], tuple[Array, Array]]
    places: Array
    spans: list[Span]
    singles: SingleRows | None
    wanted: Array
    slots: Array
    draws: list[tuple[int, int, float, float]]
    histories: dict[int, History]
    scored: list[tuple[slice, int, int, History]]
    given: tuple[Array, Array, Array]

    @property
    def tells(self) -> bool:
        """Whether a sequence is told how likely its tokens are."""
        histories = self.histories.values()
        return bool(self.scored) or any(h.sampling.logprobs is not None for h in histories)


@dataclass(slots=True)
class Latest:
    """What a step leaves to the next one.

    Attributes:
        tokens: [slots], integers: the newest token of each sequence.
        batch: The step; None before the first one.
        histories: Of the slots whose sequences asked for more than a draw.
    """

    tokens: Array
    batch: Batch | None = None
    histories: dict[int, History] = field(default_factory=dict[int, History])

    def tell(self, told: Sequence[tuple[int, dict[str, Any], Array, int]]) -> None:
        """Takes what sequences that begin ask for: slot, sampling, tokens so far, and prompt."""
        for slot, sampling, tokens, prompt in told:
            self.histories[slot] = History(Sampling(**sampling), tokens.tolist(), prompt)
