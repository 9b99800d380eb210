"""The part of the library that is about devices; `nccl` is a module to be imported by name."""

from __future__ import annotations

from cupy.cuda import device, memory, nvrtc, pinned_memory, runtime, stream
from cupy.cuda.device import Device, get_device_id
from cupy.cuda.memory import (
    BaseMemory,
    Memory,
    MemoryPointer,
    MemoryPool,
    UnownedMemory,
    alloc,
    get_allocator,
    set_allocator,
)
from cupy.cuda.pinned_memory import (
    PinnedMemory,
    PinnedMemoryPointer,
    PinnedMemoryPool,
    alloc_pinned_memory,
)
from cupy.cuda.stream import Event, Stream, get_current_stream, get_elapsed_time

__all__ = [
    "BaseMemory",
    "Device",
    "Event",
    "Memory",
    "MemoryPointer",
    "MemoryPool",
    "PinnedMemory",
    "PinnedMemoryPointer",
    "PinnedMemoryPool",
    "Stream",
    "UnownedMemory",
    "alloc",
    "alloc_pinned_memory",
    "device",
    "get_allocator",
    "get_current_stream",
    "get_device_id",
    "get_elapsed_time",
    "get_local_runtime_version",
    "is_available",
    "memory",
    "nvrtc",
    "pinned_memory",
    "runtime",
    "set_allocator",
    "stream",
]


def is_available() -> bool:
    """Whether there is a device."""
    try:
        return runtime.getDeviceCount() > 0
    except runtime.CUDARuntimeError:
        return False


def get_local_runtime_version() -> int:
    """The version of the CUDA runtime that is installed."""
    return runtime.runtimeGetVersion()
