"""The interface of the device on which a rank's arrays lie.

One `Arrays` belongs to one rank and to the one thread that runs it. Work on a
device is asynchronous: what the functions here return may still be in computation,
except where the docstring says that the function waits.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

if TYPE_CHECKING:
    from types import ModuleType

    from disco_client.wire.values import Device

__all__ = ["Arrays", "DeviceUnavailable", "HostArray", "address", "on_device", "overlap"]

HostArray = np.ndarray[Any, Any]


class DeviceUnavailable(Exception):
    """A device cannot be used here; the message says what is missing, and how to get it."""


def on_device(value: object) -> bool:
    """Whether a value is an array on a GPU; found out without loading cupy."""
    kind = type(value)
    return kind.__name__ == "ndarray" and kind.__module__.partition(".")[0] == "cupy"


def address(array: Any) -> int:
    """Where in a GPU's memory one of its arrays begins."""
    return int(array.data.ptr)


def overlap(one: Any, other: Any) -> bool:
    """Whether two contiguous arrays on GPUs share memory."""
    return (
        address(one) < address(other) + other.nbytes and address(other) < address(one) + one.nbytes
    )


class Arrays(ABC):
    """The arrays of one device, for one rank.

    Attributes:
        on_host: Whether they are numpy's, in the memory of the process.
        device: The device.
        xp: The module of its arrays: numpy or cupy.
        kind: The class of its arrays.
    """

    on_host: ClassVar[bool]

    def __init__(self, device: Device, xp: ModuleType) -> None:
        self.device = device
        self.xp: Any = xp
        self.kind: type[Any] = self.xp.ndarray

    def holds(self, value: object) -> bool:
        """Whether a value is an array of this kind of device."""
        return isinstance(value, self.kind)

    @abstractmethod
    def attach(self) -> None:
        """Makes the device current in the calling thread, which is the rank's."""

    @abstractmethod
    def empty(self, shape: Sequence[int], dtype: np.dtype[Any]) -> Any:
        """Allocates an uninitialised array in C order.

        Raises:
            DeviceUnavailable: The device has no such dtype.
            MemoryError: There is no room.
        """

    @abstractmethod
    def from_host(self, array: HostArray) -> Any:
        """Returns a host array's content as an array of the device, of its own there.

        Raises:
            DeviceUnavailable: The device has no such dtype.
            MemoryError: There is no room.
        """

    @abstractmethod
    def to_host(self, array: Any) -> HostArray:
        """Returns the content of one of its arrays as a host array; waits for it."""

    @abstractmethod
    def read_pieces(self, array: Any) -> Iterator[memoryview]:
        """Yields the bytes of one of its arrays in C order, piece by piece.

        Each piece is valid until the next is requested; the one after it is copied
        meanwhile.
        """

    @abstractmethod
    def fill(self, held: Any, host: HostArray) -> None:
        """Copies a host array into one of its arrays, which has its size and dtype.

        The host array may be changed when it returns.
        """

    @abstractmethod
    def fill_pieces(self, held: Any, pieces: Iterator[memoryview]) -> None:
        """Fills one of its arrays with its bytes in C order, piece by piece.

        Args:
            held: The array.
            pieces: What to write, at most PIECE_BYTES each; a piece may be changed
                when the next is requested. Whatever they raise is raised here, and
                the array has part of them then.
        """

    @abstractmethod
    def synchronize(self) -> None:
        """Waits until the device has done all that this rank has enqueued.

        Raises:
            Exception: Something of it failed on the device.
        """
