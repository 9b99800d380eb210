"""Arithmetic that MPI does not do: averages, halves, and combining rows of one array."""

from __future__ import annotations

import contextvars
import threading
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from disco_server.collectives.types import Array, ReduceOp
from disco_server.collectives.validation import Family

__all__ = ["combine", "combine_all", "narrow", "settle", "spread"]

_UFUNCS: tuple[np.ufunc, ...] = (np.add, np.multiply, np.minimum, np.maximum, np.add)
_BOOL_UFUNCS: tuple[np.ufunc, ...] = (
    np.logical_or,
    np.logical_and,
    np.logical_and,
    np.logical_or,
)
# Looking up a member of an enum is a call, which counts where calls take microseconds.
_BOOL, _HALF, _INTEGER, _AVG = Family.BOOL, Family.HALF, Family.INTEGER, ReduceOp.AVG


def combine(parts: Sequence[Array], dst: Array, op: ReduceOp, family: Family) -> None:
    """Reduces arrays in their order, so that all ranks get the same bits.

    Args:
        parts: One array a rank, at least two, shape (elements,).
        dst: Takes the result, shape (elements,), same dtype; the first part or none of them.
        op: The operation.
        family: How elements of this dtype are combined.
    """
    ufunc = (_BOOL_UFUNCS if family is _BOOL else _UFUNCS)[op]
    divisor = 1
    if op is _AVG:
        divisor = len(parts)
        if family is _INTEGER:
            _average(parts, dst)
            return
    if family is _HALF:
        wide = np.stack(parts).astype(np.float32)
        narrow(ufunc.reduce(wide, axis=0), dst, divisor)
        return
    # What does not fit becomes infinite without a warning, as it does in every other library.
    _quiet.run(ufunc, parts[0], parts[1], out=dst)
    for part in parts[2:]:
        _quiet.run(ufunc, dst, part, out=dst)
    if divisor > 1:
        dst /= divisor


def combine_all(
    shares: Sequence[tuple[Array, Array, *tuple[Any, ...]]], op: ReduceOp, family: Family
) -> None:
    """Reduces arrays in their order into an array of each rank.

    Args:
        shares: For each rank its source and its target, shape (elements,); the source of one
            rank and the target of another share no memory.
        op: The operation.
        family: How elements of this dtype are combined.
    """
    first = shares[0][1]
    combine([share[0] for share in shares], first, op, family)
    for share in shares[1:]:
        share[1][...] = first


class _Quiet(threading.local):
    """Calls functions with numpy's floating-point errors ignored, whatever the user has set.

    To enter ``np.errstate`` costs a small allreduce as much as all its arithmetic. Since
    numpy 2 what is ignored belongs to a context, so a thread makes one and comes back to it.

    Attributes:
        run: Calls a function with arguments.
    """

    def __init__(self) -> None:
        self.run: Callable[..., object] = _run_ignoring
        if int(np.__version__.partition(".")[0]) >= _CONTEXTS_SINCE:
            context = contextvars.Context()
            context.run(np.seterr, all="ignore")
            self.run = context.run


def _run_ignoring(function: Callable[..., object], *arguments: object, **named: object) -> None:
    with np.errstate(all="ignore"):
        function(*arguments, **named)


_CONTEXTS_SINCE = 2
_quiet = _Quiet()


def _average(parts: Sequence[Array], dst: Array) -> None:
    sums = spread(parts[0], len(parts))
    for part in parts[1:]:
        for total, term in zip(sums, spread(part, len(parts)), strict=True):
            np.add(total, term, out=total)
    dst[...] = settle(sums, len(parts))


_WIDEST = 8


def spread(part: Array, count: int) -> tuple[Array, ...]:
    """What is to be added up for an average of integers that is exact.

    A sum of narrow integers fits 64 bits. Of those that have 64 bits themselves the
    quotients are added up, and apart from them the remainders: neither exceeds the range.

    Args:
        part: Integers of one rank; numpy's or cupy's.
        count: How many ranks there are.

    Returns:
        Arrays of its own to be added up one by one, for :func:`settle`.
    """
    if part.dtype.itemsize < _WIDEST:
        return (part.astype(np.int64),)
    quotients = part // count
    return quotients, part - quotients * count


def settle(sums: Sequence[Array], count: int) -> Array:
    """The average from the sums of what :func:`spread` made, cut toward zero."""
    whole = sums[-1] // count
    rest = sums[-1] - whole * count
    for quotients in sums[:-1]:
        whole += quotients
    # Rounded down so far, which of what is negative and not whole is one too low.
    whole += ((whole < 0) & (rest != 0)).astype(whole.dtype)
    return whole


def narrow(wide: np.ndarray[Any, np.dtype[np.float32]], dst: Array, divisor: int = 1) -> None:
    """Rounds float32 into halves, after a division that may change `wide`."""
    if divisor > 1:
        wide /= divisor
    # A value beyond the range of float16 becomes infinite, as it does everywhere.
    with np.errstate(over="ignore", invalid="ignore"):
        dst[...] = wide
