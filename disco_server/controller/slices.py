"""Long work of the controller, cut into slices between which its event loop reads."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Iterable
from typing import TypeVar

__all__ = ["in_slices"]

_SLICE = 64
"""How many peers are sent something in one turn of the loop; each costs it up to 0.1 ms."""

_SLICE_BYTES = 16 << 20
"""How many bytes they are sent at most, which gRPC copies at once."""

_T = TypeVar("_T")


def in_slices(items: Iterable[_T], work: Callable[[_T], object], nbytes: int = 0) -> None:
    """Does some work for each item: for the first ones at once, for the others in later turns.

    Args:
        items: The items, in their order.
        work: What to do for one.
        nbytes: How many bytes that sends.
    """
    rest = iter(items)
    for item in itertools.islice(rest, max(1, min(_SLICE, _SLICE_BYTES // max(nbytes, 1)))):
        work(item)
    following = next(rest, None)
    if following is not None:
        more = itertools.chain((following,), rest)
        asyncio.get_running_loop().call_soon(in_slices, more, work, nbytes)
