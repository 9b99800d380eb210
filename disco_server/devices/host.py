"""Arrays in the host's memory, by numpy."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from disco_client.wire.arrays import byte_view, empty_array
from disco_server.devices.base import Arrays, HostArray

if TYPE_CHECKING:
    from disco_client.wire.values import Device

__all__ = ["HostArrays", "open_arrays"]


class HostArrays(Arrays):
    """See `Arrays`; nothing here is asynchronous."""

    on_host = True

    def __init__(self, device: Device) -> None:
        super().__init__(device, np)

    def attach(self) -> None:
        """Does nothing: every thread can use the host's memory."""

    def empty(self, shape: Sequence[int], dtype: np.dtype[Any]) -> HostArray:
        """See `Arrays.empty`."""
        return empty_array(shape, dtype)

    def from_host(self, array: HostArray) -> HostArray:
        """Returns the array itself."""
        return array

    def to_host(self, array: HostArray) -> HostArray:
        """Returns the array itself."""
        return array

    def read_pieces(self, array: HostArray) -> Iterator[memoryview]:
        """Yields everything at once."""
        yield byte_view(np.ascontiguousarray(array))

    def fill(self, held: HostArray, host: HostArray) -> None:
        """See `Arrays.fill`."""
        held[...] = host.reshape(held.shape)

    def fill_pieces(self, held: HostArray, pieces: Iterator[memoryview]) -> None:
        """See `Arrays.fill_pieces`."""
        target = held if held.flags.c_contiguous else empty_array(held.shape, held.dtype)
        flat, at = byte_view(target), 0
        for piece in pieces:
            flat[at : at + len(piece)] = piece
            at += len(piece)
        if target is not held:
            held[...] = target

    def synchronize(self) -> None:
        """Does nothing: all work is done when its call returns."""


# Opens the arrays of a device by its name.


def open_arrays(device: Device) -> Arrays:
    """Opens a device for one rank; nothing of a GPU is loaded for a CPU.

    Raises:
        DeviceUnavailable: There is no such device here, or something that it needs.
    """
    if device.kind == "cpu":
        return HostArrays(device)
    from disco_server.devices.gpu import GpuArrays

    return GpuArrays(device)
