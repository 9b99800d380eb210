"""How one axis of a tensor is divided among workers: the arithmetic both sides share.

The words are those of placements: ``R`` is replicated, ``S[axis]`` is split along
an axis.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeGuard

from disco_client.errors import ConfigError

__all__ = ["Intervals", "Split", "divide", "read_split"]

Intervals = tuple[tuple[int, int], ...]
"""Pieces of an axis, each from its first index to the one behind its last."""

_TEXT = re.compile(r"\s*S\s*\[\s*([+-]?\d{1,9})\s*\]\s*")


@dataclass(frozen=True, slots=True)
class Split:
    """One worker's share of a tensor is a slice along an axis.

    Attributes:
        axis: The axis; from the end where negative.
        parts: What several matrices were fused from, such as query, key and
            value: their number, if they are equally long, or the extent of each
            along the axis. Every one is split by itself, and a worker's share is
            its slice of the first, then of the second, and so on.
        uneven: Allow an extent that the workers do not divide; the first workers
            get one more, as with :func:`numpy.array_split`.

    Raises:
        ConfigError: An attribute is not as described.
    """

    axis: int
    parts: int | tuple[int, ...] = 1
    uneven: bool = False

    def __post_init__(self) -> None:
        if not _is_int(self.axis):
            msg = f"expected an axis such as 0 or -1, got {self.axis!r}"
            raise ConfigError(msg)
        parts: object = self.parts
        if isinstance(parts, Sequence) and not isinstance(parts, (str, bytes)):
            parts = tuple(parts)
            good = len(parts) > 0 and all(_is_int(size) and size >= 0 for size in parts)
            object.__setattr__(self, "parts", parts)
        else:
            good = _is_int(parts) and parts >= 1
        if not good:
            msg = f"expected the number of fused parts, or the extent of each, got {parts!r}"
            raise ConfigError(msg)

    def __str__(self) -> str:
        """The placement's text, with what a placement does not say behind it."""
        more = [] if self.parts == 1 else [f"parts={self.parts}"]
        more += ["uneven"] if self.uneven else []
        return f"S[{self.axis}]" + (f" ({', '.join(more)})" if more else "")

    def axis_of(self, shape: Sequence[int]) -> int:
        """The axis, counted from the front.

        Raises:
            ConfigError: A tensor of that shape has no such axis.
        """
        if not -len(shape) <= self.axis < len(shape):
            msg = f"there is no axis {self.axis}"
            raise ConfigError(msg)
        return self.axis % len(shape)

    def sizes_of(self, extent: int) -> tuple[int, ...]:
        """The extents of the fused parts of an axis.

        Raises:
            ConfigError: They do not make up the axis.
        """
        if isinstance(self.parts, tuple):
            if sum(self.parts) != extent:
                msg = f"its extent {extent} is not the sum {sum(self.parts)} of parts {self.parts}"
                raise ConfigError(msg)
            return self.parts
        if extent % self.parts:
            msg = f"its extent {extent} cannot be cut into {self.parts} equal parts"
            raise ConfigError(msg)
        return (extent // self.parts,) * self.parts

    def check(self, shape: Sequence[int], workers: int) -> None:
        """Refuses a tensor that this split does not fit.

        Raises:
            ConfigError: No such axis, parts that do not make it up, or an extent
                that the workers do not divide.
        """
        axis = self.axis_of(shape)
        for size in self.sizes_of(shape[axis]):
            if size % workers and not self.uneven:
                what = "its extent" if self.parts == 1 else "the extent of a part,"
                msg = f"{what} {size} cannot be divided by {workers} workers without uneven=True"
                raise ConfigError(msg)

    def intervals(self, shape: Sequence[int], workers: int, index: int) -> Intervals:
        """What one worker holds of the axis; adjacent pieces are joined."""
        return divide(self.sizes_of(shape[self.axis_of(shape)]), workers, index)

    def shape_of(self, shape: Sequence[int], workers: int, index: int) -> tuple[int, ...]:
        """The shape of one worker's share."""
        axis = self.axis_of(shape)
        extent = sum(stop - start for start, stop in self.intervals(shape, workers, index))
        return (*shape[:axis], extent, *shape[axis + 1 :])


def divide(sizes: Sequence[int], workers: int, index: int) -> Intervals:
    """Cuts each part of an axis among workers, and returns the pieces of one of them.

    Args:
        sizes: The extents of the parts, one after the other.
        workers: Among how many.
        index: Which of them.

    Returns:
        Its pieces in the order of the axis, none empty, adjacent ones joined.
    """
    pieces: list[tuple[int, int]] = []
    at = 0
    for size in sizes:
        each, more = divmod(size, workers)
        start = at + index * each + min(index, more)
        stop = start + each + (index < more)
        at += size
        if start == stop:
            continue
        if pieces and pieces[-1][1] == start:
            start = pieces.pop()[0]
        pieces.append((start, stop))
    return tuple(pieces)


def read_split(entry: object) -> Split | None:
    """Reads one entry of a plan.

    Args:
        entry: ``"R"`` or None for replicated; ``"S[0]"``, an axis or a
            :class:`Split`.

    Returns:
        The split; None for replicated.

    Raises:
        ConfigError: It is none of these.
    """
    if entry is None or isinstance(entry, Split):
        return entry
    if _is_int(entry):
        return Split(entry)
    if isinstance(entry, str):
        if entry.strip() == "R":
            return None
        match = _TEXT.fullmatch(entry)
        if match is not None:
            return Split(int(match[1]))
    msg = f"expected 'R', None, 'S[axis]', an axis or a Split, got {entry!r}"
    raise ConfigError(msg)


def _is_int(value: object) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool)
