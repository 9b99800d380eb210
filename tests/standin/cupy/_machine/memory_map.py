"""Which addresses are what: device memory, pinned memory, any other memory of the host.

An address of device memory is the address of the buffer that plays it plus `DEVICE`,
which no host address has: who reads it on the host crashes, as with a real device.
"""

from __future__ import annotations

import ctypes
from collections import deque
from dataclasses import dataclass, field
from threading import RLock
from typing import Any

import numpy as np

from cupy._machine import faults, races, settings

__all__ = ["DEVICE", "Block", "blocks", "graveyard"]

DEVICE = 1 << 61
_ALIGNMENT = 512
_JUNK = 0xCB
"""What fresh memory holds: not zeros, so that nobody relies on them."""


@dataclass
class Block:
    """A piece of device or pinned memory.

    Attributes:
        address: Where it begins.
        size: How many bytes belong to it.
        buffer: What plays it.
        device: The number of its device; -1 for pinned memory.
        queue: Of device memory, the stream in whose order it is given back.
        owner: A weak reference to the object that gives it back.
        dropped: Whether its owner has let go of it.
        written: The last work that wrote it; see `races`.
        reads: The work that has read it since, for each stream.
    """

    address: int
    size: int
    buffer: Any
    device: int
    queue: Any = None
    owner: Any = None
    dropped: bool = False
    written: tuple[Any, int, str] | None = None
    reads: dict[Any, tuple[Any, int, str]] = field(default_factory=dict)

    def holds(self, address: int, size: int) -> bool:
        """Whether a range lies inside."""
        return self.address <= address and address + size <= self.address + self.size

    def view(self, address: int, size: int) -> np.ndarray:
        """The bytes of a range inside."""
        start = address - self.address
        return np.frombuffer(self.buffer, np.uint8, size, start)


class Blocks:
    """All blocks of the process."""

    def __init__(self) -> None:
        self._lock = RLock()
        self._blocks: dict[int, Block] = {}

    def add_device(self, size: int, device: int, queue: Any) -> Block | None:
        """Allocates device memory; none if there is not so much left."""
        with self._lock:
            if self.used(device) + size > settings.memory_bytes():
                return None
            buffer = _aligned(size)
            block = Block(DEVICE + buffer.ctypes.data, size, buffer, device, queue)
            self._blocks[block.address] = block
        races.access(queue, block, "its allocation", writes=True)
        return block

    def add_pinned(self, buffer: Any, address: int, size: int) -> Block:
        """Makes a buffer of the host known as pinned."""
        ctypes.memset(address, _JUNK, size)
        block = Block(address, size, buffer, -1)
        with self._lock:
            self._blocks[address] = block
        return block

    def remove(self, block: Block) -> None:
        """Forgets a block."""
        with self._lock:
            self._blocks.pop(block.address, None)

    def used(self, device: int) -> int:
        """How many bytes of a device are allocated."""
        with self._lock:
            every = list(self._blocks.values())
        return sum(block.size for block in every if block.device == device and not block.dropped)

    def find(self, address: int, size: int) -> Block | None:
        """The block in which a range lies."""
        with self._lock:
            every = list(self._blocks.values())
        for block in every:
            if block.holds(address, size):
                return block
        return None

    def device_block(self, address: int, size: int, what: str) -> Block:
        """The block of a range of device memory.

        Raises:
            CUDARuntimeError: It is no device memory, or not any more.
        """
        block = self.find(address, size) if address >= DEVICE else None
        if block is None:
            detail = f"{what} {address:#x} with {size} bytes is not inside live device memory"
            raise faults.cuda_fault(faults.ILLEGAL_ADDRESS, detail)
        return block

    def device_bytes(self, address: int, size: int, what: str) -> np.ndarray:
        """The bytes of a range of device memory.

        Raises:
            CUDARuntimeError: It is no device memory, or not any more.
        """
        return self.device_block(address, size, what).view(address, size)


def _aligned(size: int) -> np.ndarray:
    raw = np.full(size + _ALIGNMENT, _JUNK, np.uint8)
    start = -raw.ctypes.data % _ALIGNMENT
    return raw[start : start + size]


def host_bytes(address: int, size: int) -> np.ndarray:
    """The bytes of a range of host memory, pinned or not."""
    return np.frombuffer((ctypes.c_ubyte * size).from_address(address), np.uint8)


blocks = Blocks()
graveyard: deque[Block] = deque()
"""Blocks whose owners are gone; a finaliser may run anywhere, so it only adds to this."""
