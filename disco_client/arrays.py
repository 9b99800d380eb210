"""Host arrays at the client: what is accepted, and what travels beside the log."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np

from disco_client.errors import EncodingError
from disco_client.transport.base import Transport
from disco_client.wire.arrays import byte_view, empty_array
from disco_client.wire.porter import ArrayPorter
from disco_client.wire.values import is_array

__all__ = ["Array", "Downloads", "Uploads", "as_host_array", "kind_of"]

Array: TypeAlias = "np.ndarray[Any, Any]"


class Uploads(ArrayPorter):
    """Collects the large arrays of one command; they leave after it was issued.

    Attributes:
        offered: The arrays with their tickets.
    """

    def __init__(self, take_ticket: Callable[[], int]) -> None:
        self._take_ticket = take_ticket
        self.offered: list[tuple[int, Array]] = []

    def nbytes(self) -> int:
        """How many bytes they have together."""
        return sum(array.nbytes for _, array in self.offered)

    def offer(self, array: Array) -> int:
        """Notes an array and returns the ticket under which it will leave."""
        ticket = self._take_ticket()
        self.offered.append((ticket, array))
        return ticket


class Downloads(ArrayPorter):
    """Fetches the large arrays of one reply.

    Args:
        transport: What carries them.
        worker: The worker that replied.
        into: Where to put the array, if it is C-contiguous and of the same dtype.
    """

    def __init__(self, transport: Transport, worker: int, into: Array | None = None) -> None:
        self._transport = transport
        self._worker = worker
        self._into = into

    def collect(self, ticket: int, dtype: np.dtype[Any], shape: Sequence[int]) -> Array:
        """Downloads an array, into the buffer given at the start where it fits."""
        out = self._into
        if out is None or not out.flags.c_contiguous or out.dtype != dtype:
            out = empty_array(shape, dtype)
        self._transport.download(ticket, self._worker, byte_view(out))
        return out


def kind_of(value: object) -> str:
    """Names what came, for an error."""
    if is_array(value):
        return "a read-only one"
    return f"{value!r} of type {type(value).__name__}"


def as_host_array(value: object) -> Array:
    """Makes an array of what a program gave.

    Raises:
        EncodingError: It is no array of numbers.
    """
    if hasattr(value, "reg_id"):
        msg = "expected a host array, got a reference to an array on the workers"
        raise EncodingError(msg)
    array: Array = np.asarray(value)
    if array.dtype.hasobject or array.dtype.kind in "SU":
        msg = f"expected an array of numbers, got {kind_of(value)}"
        raise EncodingError(msg)
    return array
