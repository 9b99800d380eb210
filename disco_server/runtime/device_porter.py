"""Brings arrays between commands and the device on which a worker computes."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Sequence
from typing import Any, cast

import numpy as np

from disco_client.wire.codec import EncodedValue, decode_args
from disco_client.wire.porter import ArrayPorter
from disco_client.wire.tickets import tickets_in
from disco_client.wire.values import is_array
from disco_server.devices.base import on_device
from disco_server.runtime.context import Worker

__all__ = ["DevicePorter"]

Array = np.ndarray[Any, Any]


class DevicePorter(ArrayPorter):
    """What came for a worker on a GPU lies there; what leaves it comes from there.

    Args:
        worker: The worker, whose device may change.
        inner: Carries host arrays.
    """

    def __init__(self, worker: Worker, inner: ArrayPorter) -> None:
        self._worker = worker
        self._inner = inner
        self._collected: set[int] = set()

    def knows(self, value: object) -> bool:
        """Whether it is an array on the worker's GPU."""
        return on_device(value)

    def content(self, array: Any) -> bytes:
        """The bytes of a small array in C order; waits for it."""
        return array.tobytes() if is_array(array) else self._to_host(array).tobytes()

    def offer(self, array: Any) -> int:
        """Hands over an array and returns its ticket; waits for it."""
        if is_array(array):
            return self._inner.offer(np.ascontiguousarray(array))
        arrays = self._worker.arrays
        return self._inner.offer_pieces(array.nbytes, arrays.read_pieces(array))

    def arrived(self, array: Array) -> Any:
        """Brings an array that came inside a command to the worker's device."""
        return self._worker.arrays.from_host(array)

    def collect(self, ticket: int, dtype: np.dtype[Any], shape: Sequence[int]) -> Any:
        """Returns the array that was offered under this ticket, on the worker's device."""
        arrays = self._worker.arrays
        self._collected.add(ticket)
        if arrays.on_host:
            return self._inner.collect(ticket, dtype, shape)
        out = arrays.empty(shape, dtype)
        self.collect_into(ticket, out)
        return out

    def collect_into(self, ticket: int, out: Any) -> None:
        """Fills an array with the one of its dtype and size under this ticket."""
        self._collected.add(ticket)
        if is_array(out):
            self._inner.collect_into(ticket, out)
            return
        with contextlib.closing(self._inner.collect_pieces(ticket, out.dtype, out.shape)) as pieces:
            self._worker.arrays.fill_pieces(out, pieces)

    def collect_on_host(self, value: EncodedValue, read: Callable[[int], Any]) -> Any:
        """Decodes a value whose arrays are to stay in the host's memory."""
        self._collected.update(tickets_in((value,)))
        return decode_args((value,), read, self._inner)[0]

    def begin(self) -> None:
        """A command begins: what it collects is told apart from what it does not."""
        if self._collected:
            self._collected.clear()

    def let_go(self, values: Iterable[EncodedValue]) -> None:
        """Lets go of the arrays of a command that has not collected them, and will not."""
        for ticket in tickets_in(values):
            if ticket not in self._collected:
                self._inner.discard(ticket)

    def host_form(self, value: Any) -> Any:
        """A value with numpy's arrays in place of the device's; waits for them."""
        if self.knows(value):
            return self._to_host(value)
        if type(value) is list:
            return [self.host_form(item) for item in cast("list[Any]", value)]
        if type(value) is tuple:
            return tuple(self.host_form(item) for item in cast("tuple[Any, ...]", value))
        if type(value) is dict:
            items = cast("dict[Any, Any]", value).items()
            return {key: self.host_form(item) for key, item in items}
        return value

    def _to_host(self, array: Any) -> Array:
        return self._worker.arrays.to_host(array)
