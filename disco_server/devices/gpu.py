"""Arrays on a GPU, by cupy: of NVIDIA's by CUDA, of AMD's by ROCm."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from disco_client.wire.arrays import byte_view, in_pieces
from disco_client.wire.values import Device
from disco_server.devices.base import Arrays, DeviceUnavailable, HostArray
from disco_server.devices.gpu_library import load_cupy
from disco_server.devices.staging import Staging

__all__ = ["GpuArrays"]


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
        """Makes the GPU current in a thread that only looks after it."""
        self._gpu.use()

    def bus_id(self) -> str:
        """Where on its machine the GPU is; the same from whichever process one looks."""
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
        """Lets the communication stream begin when all that was computed so far is there."""
        self._entered.record(self.compute)
        self.comm.wait_event(self._entered)

    def leave_comm(self) -> None:
        """Lets the compute stream go on when what was communicated so far is there."""
        self._left.record(self.comm)
        self.compute.wait_event(self._left)
