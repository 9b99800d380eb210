"""Where the sentences of a batch stand among its tokens.

All of this is worked out on the host, from the lengths that the client sends as
plain numbers, and brought to the device before the first layer: so that no layer
has to ask the device for anything.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import numpy.typing as npt

__all__ = ["Layout", "Padding", "Run", "lay_out"]


@dataclass(frozen=True, slots=True)
class Padding:
    """How the tokens of a run are spread to sentences of one length, and back.

    Attributes:
        rows: [sentences * tokens], integers: which token of the batch stands at each
            place; where none does, the first one of the run, to be masked out.
        places: [tokens of the run], integers: at which place each token stands.
        mask: [sentences, 1, 1, tokens], float32: 0 at a token and minus infinity
            elsewhere, to be added to scores.
    """

    rows: Any
    places: Any
    mask: Any


@dataclass(frozen=True, slots=True)
class Run:
    """Neighbouring sentences whose attention is computed together.

    Attributes:
        rows: Their tokens among those of the batch.
        sentences: How many they are.
        tokens: How many tokens each has, or is padded to.
        padding: How they are padded; None where they are all of one length.
    """

    rows: slice
    sentences: int
    tokens: int
    padding: Padding | None = None


@dataclass(frozen=True, slots=True)
class Layout:
    """A batch's shape; the arrays are on the device that computes.

    Attributes:
        starts: [sentences], integers: where each sentence begins.
        lengths: [sentences], integers: how many tokens each has.
        positions: [tokens], integers: each token's place in its sentence.
        runs: All sentences, in order.
    """

    starts: Any
    lengths: Any
    positions: Any
    runs: tuple[Run, ...]


def lay_out(
    lengths: npt.NDArray[np.int32],
    heads: int,
    at_once: int,
    *,
    pads: bool,
    place: Callable[[Any], Any],
) -> Layout:
    """Finds out where everything stands.

    Args:
        lengths: [sentences], on the host: how many tokens each has, at least 1.
        heads: How many heads are computed.
        at_once: How many attention scores a run may have, if it is of several sentences.
        pads: Whether sentences of different lengths may share a run.
        place: Brings an array to the device.
    """
    starts = np.cumsum(lengths) - lengths
    positions = np.arange(int(lengths.sum())) - np.repeat(starts, lengths)
    plain = lengths.tolist()
    if pads:
        runs = _padded_runs(plain, heads, at_once, place)
    else:
        runs = _equal_runs(plain, heads, at_once)
    return Layout(place(starts), place(lengths), place(positions), tuple(runs))


def _equal_runs(lengths: Sequence[int], heads: int, at_once: int) -> list[Run]:
    """Finds neighbours of equal length, which need no padding and no mask."""
    runs: list[Run] = []
    start = 0
    for tokens, group in itertools.groupby(lengths):
        left = len(list(group))
        most = max(1, at_once // (heads * tokens * tokens))
        while left:
            sentences = min(left, most)
            end = start + sentences * tokens
            runs.append(Run(slice(start, end), sentences, tokens))
            start = end
            left -= sentences
    return runs


def _padded_runs(
    lengths: Sequence[int], heads: int, at_once: int, place: Callable[[Any], Any]
) -> list[Run]:
    """Takes as many neighbours as there is room for, each as long as their longest."""
    runs: list[Run] = []
    chosen: list[int] = []
    start = longest = 0
    for length in lengths:
        longer = max(longest, length)
        if chosen and (len(chosen) + 1) * heads * longer * longer > at_once:
            runs.append(_padded(start, chosen, place))
            start += sum(chosen)
            chosen, longer = [], length
        chosen.append(length)
        longest = longer
    runs.append(_padded(start, chosen, place))
    return runs


def _padded(start: int, lengths: Sequence[int], place: Callable[[Any], Any]) -> Run:
    extents = np.array(lengths)
    sentences, tokens, count = len(lengths), max(lengths), sum(lengths)
    padding = None
    if count < sentences * tokens:
        within = np.arange(tokens)
        real = within < extents[:, None]
        begins = start + np.cumsum(extents) - extents
        padding = Padding(
            rows=place(np.where(real, begins[:, None] + within, start).reshape(-1)),
            places=place(np.flatnonzero(real)),
            mask=place(np.where(real, 0, -np.inf).astype(np.float32)[:, None, None]),
        )
    return Run(slice(start, start + count), sentences, tokens, padding)
