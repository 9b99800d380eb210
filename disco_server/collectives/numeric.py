"""Arithmetic that MPI does not do: averages, halves, and combining rows of one array."""

from __future__ import annotations

import contextvars
import threading
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from disco_server.collectives.types import Array, ReduceOp
from disco_server.collectives.validation import Family

__all__ = ["combine", "combine_all", "divide", "narrow"]

_UFUNCS: tuple[np.ufunc, ...] = (np.add, np.multiply, np.minimum, np.maximum, np.add)
_BOOL_UFUNCS: tuple[np.ufunc, ...] = (
    np.logical_or,
    np.logical_and,
    np.logical_and,
    np.logical_or,
)
# Looking up a member of an enum is a call, which counts where calls take microseconds.
_BOOL, _HALF, _AVG = Family.BOOL, Family.HALF, ReduceOp.AVG


def combine(parts: Sequence[Array], dst: Array, op: ReduceOp, family: Family) -> None:
    """Reduces arrays in their order, so that all ranks get the same bits.

    Args:
        parts: One array a rank, at least two, shape (elements,).
        dst: Takes the result, shape (elements,), same dtype; the first part or none of them.
        op: The operation.
        family: How elements of this dtype are combined.
    """
    ufunc = (_BOOL_UFUNCS if family is _BOOL else _UFUNCS)[op]
    divisor = len(parts) if op is _AVG else 1
    if family is _HALF:
        wide = np.stack(parts).astype(np.float32)
        narrow(ufunc.reduce(wide, axis=0), dst, divisor)
        return
    # What does not fit becomes infinite without a warning, as it does in every other library.
    _quiet.run(ufunc, parts[0], parts[1], out=dst)
    for part in parts[2:]:
        _quiet.run(ufunc, dst, part, out=dst)
    if divisor > 1:
        divide(dst, divisor)


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


def divide(array: Array, divisor: int) -> None:
    """Divides in place; integers toward zero, also where the divisor exceeds their range."""
    if array.dtype.kind not in "iu":
        array /= divisor
    elif divisor > np.iinfo(array.dtype).max:
        wide: Array = array.astype(np.int64)
        divide(wide, divisor)
        array[...] = wide
    else:
        # x - fmod(x, n) lies between x and zero and is a multiple of n.
        array -= np.fmod(array, divisor)
        array //= divisor


def narrow(wide: np.ndarray[Any, np.dtype[np.float32]], dst: Array, divisor: int = 1) -> None:
    """Rounds float32 into halves, after a division that may change `wide`."""
    if divisor > 1:
        wide /= divisor
    # A value beyond the range of float16 becomes infinite, as it does everywhere.
    with np.errstate(over="ignore", invalid="ignore"):
        dst[...] = wide
