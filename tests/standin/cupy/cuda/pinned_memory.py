"""Memory of the host that cannot move, from which a device copies at its own time."""

from __future__ import annotations

import ctypes
from typing import Any

from cupy._machine.devices import machine
from cupy._machine.memory_map import Block, blocks, graveyard
from cupy.cuda import runtime

__all__ = [
    "PinnedMemory",
    "PinnedMemoryPointer",
    "PinnedMemoryPool",
    "alloc_pinned_memory",
    "is_memory_pinned",
]

_ROUNDING = 512


class PinnedMemory:
    """A piece of pinned memory.

    Attributes:
        ptr: Its address, 0 if it is empty.
        size: Its bytes.
    """

    def __init__(self, size: int, flags: int = 0) -> None:
        self.size = size
        self.ptr = 0
        self.content = bytearray(size)
        self._block: Block | None = None
        if size:
            self.ptr = ctypes.addressof(ctypes.c_char.from_buffer(self.content))
            self._block = blocks.add_pinned(self.content, self.ptr, size)

    def __int__(self) -> int:
        return self.ptr

    def __del__(self) -> None:
        if getattr(self, "_block", None) is not None:
            graveyard.append(self._block)


class PinnedMemoryPointer:
    """A place in a piece of pinned memory; offers the buffer protocol.

    Before Python 3.12 only C can offer a buffer, so each is an array of ctypes too.

    Attributes:
        mem: The piece.
        ptr: The address of the place.
    """

    def __new__(cls, mem: PinnedMemory, offset: int) -> Any:
        """An object of a class that is a buffer of the size left after the offset."""
        kind = type("PinnedMemoryPointer", (cls, ctypes.c_byte * (mem.size - offset)), {})
        return kind.from_buffer(mem.content, offset)

    def __init__(self, mem: PinnedMemory, offset: int) -> None:
        self.mem = mem
        self.ptr = mem.ptr + offset

    def __int__(self) -> int:
        return self.ptr

    def __add__(self, offset: int) -> PinnedMemoryPointer:
        return PinnedMemoryPointer(self.mem, self.ptr - self.mem.ptr + offset)

    __radd__ = __add__

    def size(self) -> int:
        """How many bytes there are from it on."""
        return self.mem.size - (self.ptr - self.mem.ptr)

    def __len__(self) -> int:
        raise TypeError("object of type 'PinnedMemoryPointer' has no len()")

    def __getitem__(self, index: object) -> None:
        raise TypeError("'PinnedMemoryPointer' object is not subscriptable")

    def __setitem__(self, index: object, value: object) -> None:
        raise TypeError("'PinnedMemoryPointer' object does not support item assignment")


class PinnedMemoryPool:
    """Hands out pinned memory, in powers of two."""

    def __init__(self, allocator: Any = None) -> None:
        pass

    def malloc(self, size: int) -> PinnedMemoryPointer:
        """Returns the begin of so many bytes, or of more."""
        if size:
            size = 1 << (max(_ROUNDING, size) - 1).bit_length()
        return PinnedMemoryPointer(PinnedMemory(size), 0)

    def free_all_blocks(self) -> None:
        """Gives back what is not handed out."""
        machine.reap()

    def n_free_blocks(self) -> int:
        """How many pieces it could hand out again: none."""
        return 0


_default_pool = PinnedMemoryPool()


def alloc_pinned_memory(size: int) -> PinnedMemoryPointer:
    """Allocates pinned memory."""
    machine.devices()
    return _default_pool.malloc(size)


def is_memory_pinned(data: int) -> bool:
    """Whether an address is in pinned memory."""
    return runtime.pointerGetAttributes(data).type == runtime.memoryTypeHost
