"""Arrays on a GPU, by cupy: of NVIDIA's by CUDA, of AMD's by ROCm."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from disco_client.wire.arrays import PIECE_BYTES, byte_view, in_pieces
from disco_server.devices.base import Arrays, DeviceUnavailable, HostArray

if TYPE_CHECKING:
    from disco_client.wire.values import Device

__all__ = ["EXTRAS", "PIECE_BYTES", "GpuArrays", "Staging", "load_cupy"]


# Loads cupy, and says what is missing where a GPU cannot be used.


EXTRAS = {"cuda": "cuda13 (or cuda12)", "rocm": "rocm"}
"""What to install for each kind of GPU."""


def load_cupy(device: Device) -> Any:
    """Imports cupy and checks that it can use a device.

    Raises:
        DeviceUnavailable: cupy is missing or built for another kind of GPU, there is
            no driver, or no such device.
    """
    extra = EXTRAS[device.kind]
    try:
        module: Any = import_module("cupy")
    except ImportError as error:
        msg = (
            f"{device} needs cupy, which cannot be imported ({error}); install the extra {extra}:"
            f" pip install 'disco-runtime[server,{extra.split()[0]}]'"
        )
        raise DeviceUnavailable(msg) from None
    built = "rocm" if module.cuda.runtime.is_hip else "cuda"
    if built != device.kind:
        msg = (
            f"{device} needs a cupy built for {device.kind}, the one here is built for {built};"
            f" install the extra {extra} in an environment of its own"
        )
        raise DeviceUnavailable(msg)
    try:
        count = int(module.cuda.runtime.getDeviceCount())
    except module.cuda.runtime.CUDARuntimeError as error:
        msg = (
            f"{device} cannot be used: {error}; see that the driver is installed and this process"
            " may use the device, `disco doctor` lists what is there"
        )
        raise DeviceUnavailable(msg) from None
    if device.index >= count:
        msg = f"expected one of the {count} GPUs that this process sees, got {device}"
        raise DeviceUnavailable(msg)
    return module


# Copies between the host and a GPU through pinned memory, piece by piece.
#
# A GPU copies to and from pages that cannot move; from others the driver copies
# twice. On the way to the host one of two pinned buffers is read while the other
# fills, so a large copy costs about as much as the slower of both steps. In a copy to the
# GPU a buffer is free again when the GPU has done it, after all that was enqueued before;
# so that no caller waits for that, there are more of them, made as they are needed.


_READ = 2
_WRITE = 16
"""At most so many buffers: how far a rank's copies to its GPU may run ahead of the GPU."""


class _Buffer(NamedTuple):
    """Pinned memory, and the event behind the last copy from or to it."""

    memory: HostArray
    done: Any


class Staging:
    """The pinned buffers of one rank.

    Args:
        cupy: The module.
        stream: The stream in whose order copies happen.
    """

    def __init__(self, cupy: Any, stream: Any) -> None:
        self._cuda = cupy.cuda
        self._runtime = cupy.cuda.runtime
        self._stream = stream
        self._reading: list[_Buffer] = []
        self._writing: deque[_Buffer] = deque()

    def read(self, pointer: int, nbytes: int) -> Iterator[memoryview]:
        """Yields device memory piece by piece; each is valid until the next is requested."""
        starts = range(0, nbytes, PIECE_BYTES)
        for index, start in enumerate(starts):
            if index == 0:
                self._fetch(pointer, nbytes, 0, start)
            if start + PIECE_BYTES < nbytes:
                # The target buffer was yielded last time, and is not read any more.
                self._fetch(pointer, nbytes, (index + 1) % _READ, start + PIECE_BYTES)
            buffer = self._reading[index % _READ]
            buffer.done.synchronize()
            yield byte_view(buffer.memory)[: min(PIECE_BYTES, nbytes - start)]

    def _fetch(self, pointer: int, nbytes: int, which: int, start: int) -> None:
        while len(self._reading) <= which:
            self._reading.append(self._new_buffer())
        buffer = self._reading[which]
        size = min(PIECE_BYTES, nbytes - start)
        to_host = self._runtime.memcpyDeviceToHost
        self._copy(buffer.memory.ctypes.data, pointer + start, size, to_host)
        buffer.done.record(self._stream)

    def write(self, pointer: int, pieces: Iterator[memoryview]) -> None:
        """Fills device memory; the pieces may be changed when it returns.

        Args:
            pointer: Where it begins.
            pieces: What to write, at most `PIECE_BYTES` each.
        """
        at = 0
        for piece in pieces:
            buffer = self._take()
            buffer.memory[: len(piece)] = piece
            to_device = self._runtime.memcpyHostToDevice
            self._copy(pointer + at, buffer.memory.ctypes.data, len(piece), to_device)
            buffer.done.record(self._stream)
            self._writing.append(buffer)
            at += len(piece)

    def _take(self) -> _Buffer:
        """A buffer whose content has arrived: the oldest, or a new one if there may be more."""
        if self._writing and self._writing[0].done.done:
            return self._writing.popleft()
        if len(self._writing) < _WRITE:
            return self._new_buffer()
        self._writing[0].done.synchronize()
        return self._writing.popleft()

    def _copy(self, to: int, source: int, size: int, kind: int) -> None:
        self._runtime.memcpyAsync(to, source, size, kind, self._stream.ptr)

    def _new_buffer(self) -> _Buffer:
        memory = self._cuda.alloc_pinned_memory(PIECE_BYTES)
        whole = np.frombuffer(memory, np.uint8, PIECE_BYTES)
        return _Buffer(whole, self._cuda.Event(disable_timing=True))


class GpuArrays(Arrays):
    """See `Arrays`.

    A rank computes on one stream and communicates on another, with events between
    them: `enter_comm` and `leave_comm`. Arrays come from cupy's memory pool.

    Args:
        device: Which GPU, by its number among those that the process sees.

    Attributes:
        compute: The stream on which functions run; the current one of the rank's thread.
        comm: The stream on which collectives run.

    Raises:
        DeviceUnavailable: There is no such device, or something that it needs.
    """

    on_host = False

    def __init__(self, device: Device) -> None:
        cupy = load_cupy(device)
        super().__init__(device, cupy)
        self._gpu = cupy.cuda.Device(device.index)
        with self._gpu:
            self.compute = cupy.cuda.Stream(non_blocking=True)
            self.comm = cupy.cuda.Stream(non_blocking=True)
            self._entered = cupy.cuda.Event(disable_timing=True)
            self._left = cupy.cuda.Event(disable_timing=True)
        self._staging = Staging(cupy, self.compute)

    def attach(self) -> None:
        """Makes the GPU and the compute stream current in this thread."""
        self._gpu.use()
        self.compute.use()

    def bind(self) -> None:
        """Makes the GPU current in a thread that only watches it."""
        self._gpu.use()

    def bus_id(self) -> str:
        """Where on its machine the GPU is; the same in every process."""
        return self._gpu.pci_bus_id

    def empty(self, shape: Sequence[int], dtype: np.dtype[Any]) -> Any:
        """See `Arrays.empty`."""
        try:
            return self.xp.empty(tuple(shape), dtype)
        except (TypeError, ValueError) as error:
            msg = f"{self.device} holds no arrays of {dtype}: {error}"
            raise DeviceUnavailable(msg) from None
        except self.xp.cuda.memory.OutOfMemoryError as error:
            msg = f"{self.device} has no room for {dtype}{list(shape)}: {error}"
            raise MemoryError(msg) from None

    def from_host(self, array: HostArray) -> Any:
        """See `Arrays.from_host`."""
        out = self.empty(array.shape, array.dtype)
        self.fill(out, array)
        return out

    def to_host(self, array: Any) -> HostArray:
        """See `Arrays.to_host`."""
        out = np.empty(array.shape, array.dtype)
        flat = out.reshape(-1).view(np.uint8)
        at = 0
        for piece in self.read_pieces(array):
            flat[at : at + len(piece)] = piece
            at += len(piece)
        return out

    def read_pieces(self, array: Any) -> Iterator[memoryview]:
        """See `Arrays.read_pieces`."""
        array = self.xp.ascontiguousarray(array)
        yield from self._staging.read(array.data.ptr, array.nbytes)

    def fill(self, held: Any, host: HostArray) -> None:
        """See `Arrays.fill`."""
        self.fill_pieces(held, in_pieces(byte_view(np.ascontiguousarray(host))))

    def fill_pieces(self, held: Any, pieces: Iterator[memoryview]) -> None:
        """See `Arrays.fill_pieces`."""
        target = held if held.flags.c_contiguous else self.xp.empty(held.shape, held.dtype)
        self._staging.write(target.data.ptr, pieces)
        if target is not held:
            held[...] = target

    def synchronize(self) -> None:
        """See `Arrays.synchronize`."""
        self.compute.synchronize()
        self.comm.synchronize()

    def enter_comm(self) -> None:
        """Makes the communication stream wait for all that was computed so far."""
        self._entered.record(self.compute)
        self.comm.wait_event(self._entered)

    def leave_comm(self) -> None:
        """Makes the compute stream wait for all that was communicated so far."""
        self._left.record(self.comm)
        self.compute.wait_event(self._left)
