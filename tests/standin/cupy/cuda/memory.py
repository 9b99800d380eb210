"""Device memory, and the pool from which arrays get it."""

from __future__ import annotations

import weakref
from typing import Any

from cupy._machine.devices import machine
from cupy._machine.memory_map import Block, blocks, graveyard
from cupy.cuda import device as device_module
from cupy.cuda import runtime
from cupy.cuda import stream as stream_module

__all__ = [
    "BaseMemory",
    "Memory",
    "MemoryPointer",
    "MemoryPool",
    "OutOfMemoryError",
    "UnownedMemory",
    "alloc",
    "get_allocator",
    "set_allocator",
]

_ROUNDING = 512


class OutOfMemoryError(MemoryError):
    """There is no room on the device.

    Args:
        size: How many bytes were asked for.
        total: How many are allocated.
        limit: How many may be, 0 if as many as there are.
    """

    def __init__(self, size: int, total: int, limit: int = 0) -> None:
        self._size = size
        self._total = total
        self._limit = limit
        text = f"Out of memory allocating {size:,} bytes"
        if limit:
            text += f" (allocated so far: {total:,} bytes, limit set to: {limit:,} bytes)."
        elif total != -1:
            text += f" (allocated so far: {total:,} bytes)."
        super().__init__(text)

    def __reduce__(self):
        """Made again from what it was made of."""
        return (type(self), (self._size, self._total, self._limit))


class BaseMemory:
    """A piece of device memory.

    Attributes:
        ptr: Its address, 0 if it is empty.
        size: Its bytes.
        device_id: Its device.
    """

    def __init__(self, ptr: int, size: int, device_id: int) -> None:
        self.ptr = ptr
        self.size = size
        self.device_id = device_id

    def __int__(self) -> int:
        return self.ptr

    @property
    def device(self) -> device_module.Device:
        """Its device."""
        return device_module.Device(self.device_id)


class Memory(BaseMemory):
    """Device memory that is given back with this object.

    Args:
        size: How many bytes.

    Raises:
        OutOfMemoryError: There are not so many left.
    """

    def __init__(self, size: int) -> None:
        machine.reap()
        device = machine.current
        device.check()
        self._block: Block | None = None
        if size:
            self._block = blocks.add_device(size, device.index, machine.compute_queue())
            if self._block is None:
                raise OutOfMemoryError(size, blocks.used(device.index))
            self._block.owner = weakref.ref(self)
        super().__init__(self._block.address if self._block else 0, size, device.index)

    def __del__(self) -> None:
        block = getattr(self, "_block", None)
        if block is not None:
            graveyard.append(block)


class UnownedMemory(BaseMemory):
    """Device memory that something else owns.

    Args:
        ptr: Its address.
        size: Its bytes.
        owner: What keeps it.
        device_id: Its device; looked up unless given.
    """

    def __init__(self, ptr: int, size: int, owner: object, device_id: int = -1) -> None:
        if device_id < 0:
            device_id = runtime.pointerGetAttributes(ptr).device if ptr else runtime.getDevice()
        super().__init__(ptr, size, device_id)
        self._owner = owner


class MemoryPointer:
    """A place in a piece of device memory.

    Args:
        mem: The piece.
        offset: How many bytes from its begin.
    """

    def __init__(self, mem: BaseMemory, offset: int) -> None:
        self.mem = mem
        self.ptr = mem.ptr + offset
        self.device_id = mem.device_id

    def __int__(self) -> int:
        return self.ptr

    def __repr__(self) -> str:
        name = type(self).__name__
        return f"<{name} {self.ptr:#x} device={self.device_id} mem={self.mem!r}>"

    def __add__(self, offset: int) -> MemoryPointer:
        return MemoryPointer(self.mem, self.ptr - self.mem.ptr + offset)

    __radd__ = __add__

    def __sub__(self, offset: int) -> MemoryPointer:
        return self + -offset

    @property
    def device(self) -> device_module.Device:
        """The device of the memory."""
        return self.mem.device

    def copy_from_device(self, src: MemoryPointer, size: int) -> None:
        """Copies from other device memory, and waits for it."""
        runtime.memcpy(self.ptr, src.ptr, size, runtime.memcpyDeviceToDevice)

    def copy_from_device_async(self, src: MemoryPointer, size: int, stream: Any = None) -> None:
        """Copies from other device memory."""
        kind = runtime.memcpyDeviceToDevice
        runtime.memcpyAsync(self.ptr, src.ptr, size, kind, _pointer(stream))

    def copy_from_host(self, mem: Any, size: int) -> None:
        """Copies from an address of the host, and waits for it."""
        runtime.memcpy(self.ptr, int(mem), size, runtime.memcpyHostToDevice)

    def copy_from_host_async(self, mem: Any, size: int, stream: Any = None) -> None:
        """Copies from an address of the host."""
        kind = runtime.memcpyHostToDevice
        runtime.memcpyAsync(self.ptr, int(mem), size, kind, _pointer(stream))

    def copy_to_host(self, mem: Any, size: int) -> None:
        """Copies to an address of the host, and waits for it."""
        runtime.memcpy(int(mem), self.ptr, size, runtime.memcpyDeviceToHost)

    def copy_to_host_async(self, mem: Any, size: int, stream: Any = None) -> None:
        """Copies to an address of the host."""
        kind = runtime.memcpyDeviceToHost
        runtime.memcpyAsync(int(mem), self.ptr, size, kind, _pointer(stream))

    def memset(self, value: int, size: int) -> None:
        """Fills with a byte, and waits for it."""
        runtime.memset(self.ptr, value, size)

    def memset_async(self, value: int, size: int, stream: Any = None) -> None:
        """Fills with a byte."""
        runtime.memsetAsync(self.ptr, value, size, _pointer(stream))


def _pointer(stream: Any) -> int:
    return (stream_module.get_current_stream() if stream is None else stream).ptr


class MemoryPool:
    """Hands out device memory, in multiples of 512 bytes.

    Nothing is kept for later: memory that was let go is not device memory any more, so
    that who still uses it is told.
    """

    def __init__(self, allocator: Any = None) -> None:
        self._limit = 0

    def malloc(self, size: int) -> MemoryPointer:
        """Returns the begin of so many bytes of the current device."""
        rounded = -(-size // _ROUNDING) * _ROUNDING
        used = self.used_bytes()
        if self._limit and used + rounded > self._limit:
            raise OutOfMemoryError(rounded, used, self._limit)
        return MemoryPointer(Memory(rounded), 0)

    def used_bytes(self) -> int:
        """How many bytes of the current device are handed out."""
        machine.reap()
        return blocks.used(machine.current.index)

    def total_bytes(self) -> int:
        """How many bytes of the current device the pool has."""
        return self.used_bytes()

    def free_bytes(self) -> int:
        """How many bytes of the current device the pool could hand out again: none."""
        return 0

    def n_free_blocks(self) -> int:
        """How many pieces it could hand out again: none."""
        return 0

    def free_all_blocks(self, stream: Any = None) -> None:
        """Gives back to the device what is not handed out."""
        machine.reap()

    def set_limit(self, size: int | None = None, fraction: float | None = None) -> None:
        """Limits how many bytes are handed out."""
        if fraction is not None:
            size = int(runtime.memGetInfo()[1] * fraction)
        self._limit = size or 0

    def get_limit(self) -> int:
        """How many bytes are handed out at most; 0 is without limit."""
        return self._limit


_default_pool = MemoryPool()
_allocator: Any = _default_pool.malloc


def alloc(size: int) -> MemoryPointer:
    """Allocates memory of the current device."""
    return _allocator(size)


def set_allocator(allocator: Any = None) -> None:
    """Chooses what `alloc` calls."""
    global _allocator  # noqa: PLW0603 - as in the library
    _allocator = _default_pool.malloc if allocator is None else allocator


def get_allocator() -> Any:
    """What `alloc` calls."""
    return _allocator
