"""The calls of the CUDA runtime that the library has, under its names."""

from __future__ import annotations

from typing import Any

from cupy._machine import copies, faults, races, settings
from cupy._machine.devices import machine
from cupy._machine.faults import CUDARuntimeError
from cupy._machine.memory_map import DEVICE, blocks

memcpyHostToHost, memcpyHostToDevice, memcpyDeviceToHost = range(3)
memcpyDeviceToDevice, memcpyDefault = 3, 4
streamDefault, streamNonBlocking = 0, 1
streamLegacy, streamPerThread = 1, 2
eventDefault, eventBlockingSync, eventDisableTiming, eventInterprocess = 0, 1, 2, 4
memoryTypeUnregistered, memoryTypeHost, memoryTypeDevice, memoryTypeManaged = range(4)
cudaDevAttrMaxThreadsPerBlock = 1
cudaDevAttrWarpSize = 10
cudaDevAttrMultiProcessorCount = 16
cudaDevAttrPciBusId = 33
cudaDevAttrUnifiedAddressing = 41
is_hip = settings.is_hip()

_ATTRIBUTES = {
    cudaDevAttrMaxThreadsPerBlock: 1024,
    cudaDevAttrWarpSize: 32,
    cudaDevAttrMultiProcessorCount: 132,
    cudaDevAttrUnifiedAddressing: 1,
}


__all__ = [
    "CUDARuntimeError",
    "PointerAttributes",
    "cudaDevAttrMaxThreadsPerBlock",
    "cudaDevAttrMultiProcessorCount",
    "cudaDevAttrPciBusId",
    "cudaDevAttrUnifiedAddressing",
    "cudaDevAttrWarpSize",
    "deviceCanAccessPeer",
    "deviceGetAttribute",
    "deviceGetByPCIBusId",
    "deviceGetPCIBusId",
    "deviceSynchronize",
    "driverGetVersion",
    "eventBlockingSync",
    "eventDefault",
    "eventDisableTiming",
    "eventInterprocess",
    "getDevice",
    "getDeviceCount",
    "getDeviceProperties",
    "is_hip",
    "memGetInfo",
    "memcpy",
    "memcpyAsync",
    "memcpyDefault",
    "memcpyDeviceToDevice",
    "memcpyDeviceToHost",
    "memcpyHostToDevice",
    "memcpyHostToHost",
    "memoryTypeDevice",
    "memoryTypeHost",
    "memoryTypeManaged",
    "memoryTypeUnregistered",
    "memset",
    "memsetAsync",
    "pointerGetAttributes",
    "runtimeGetVersion",
    "setDevice",
    "streamDefault",
    "streamDestroy",
    "streamLegacy",
    "streamNonBlocking",
    "streamPerThread",
    "streamQuery",
    "streamSynchronize",
]


def driverGetVersion() -> int:
    """What version of CUDA the driver can do; 0 without one."""
    return 0 if not _has_driver() else 13020


def _has_driver() -> bool:
    try:
        machine.devices()
    except CUDARuntimeError as error:
        return error.status != faults.INSUFFICIENT_DRIVER
    return True


def runtimeGetVersion() -> int:
    """The version of CUDA for which the library is built."""
    return 13020


def getDeviceCount() -> int:
    """How many devices this process sees."""
    return len(machine.devices())


def getDevice() -> int:
    """The device that is current in this thread."""
    return machine.current.index


def setDevice(device: int) -> None:
    """Makes a device current in this thread."""
    machine.use(device)


def deviceSynchronize() -> None:
    """Waits for all work of all streams of the current device."""
    machine.reap()
    device = machine.current
    for queue in list(device.queues.values()):
        queue.force()
        races.host_waited(races.now(queue))


def deviceCanAccessPeer(device: int, peerDevice: int) -> int:
    """Whether a device can read the memory of another: it cannot."""
    machine.device(device)
    machine.device(peerDevice)
    return 0


def deviceGetAttribute(attrib: int, device: int) -> int:
    """One of the attributes of a device; the stand-in knows a few."""
    gpu = machine.device(device).gpu
    if attrib == cudaDevAttrPciBusId:
        return gpu.bus_number
    if attrib not in _ATTRIBUTES:
        raise CUDARuntimeError(faults.INVALID_VALUE)
    return _ATTRIBUTES[attrib]


def deviceGetPCIBusId(device: int) -> str:
    """Where a device is on the PCI bus."""
    return machine.device(device).gpu.bus_id


def deviceGetByPCIBusId(pci_bus_id: str) -> int:
    """The device at a place of the PCI bus."""
    for device in machine.devices():
        if device.gpu.bus_id == pci_bus_id:
            return device.index
    raise CUDARuntimeError(faults.INVALID_DEVICE)


def getDeviceProperties(device: int) -> dict[str, Any]:
    """What a device is; fewer entries than the library has."""
    gpu = machine.device(device).gpu
    return {
        "name": f"Stand-in GPU {gpu.index}".encode(),
        "uuid": gpu.uuid,
        "totalGlobalMem": settings.memory_bytes(),
        "multiProcessorCount": 132,
        "major": 9,
        "minor": 0,
        "warpSize": 32,
        "pciBusID": gpu.bus_number,
        "pciDeviceID": 0,
        "pciDomainID": 0,
        "unifiedAddressing": 1,
        "ECCEnabled": 1,
    }


def memGetInfo() -> tuple[int, int]:
    """How many bytes of the current device are free, and how many there are."""
    machine.reap()
    total = settings.memory_bytes()
    return total - blocks.used(machine.current.index), total


def memcpy(dst: int, src: int, size: int, kind: int) -> None:
    """Copies, and waits for it."""
    copies.copy(dst, src, size, kind, 0)
    streamSynchronize(0)


def memcpyAsync(dst: int, src: int, size: int, kind: int, stream: int) -> None:
    """Copies in the order of a stream."""
    copies.copy(dst, src, size, kind, stream)


def memset(ptr: int, value: int, size: int) -> None:
    """Fills device memory with a byte, and waits for it."""
    copies.fill(ptr, value, size, 0)
    streamSynchronize(0)


def memsetAsync(ptr: int, value: int, size: int, stream: int) -> None:
    """Fills device memory with a byte in the order of a stream."""
    copies.fill(ptr, value, size, stream)


def streamSynchronize(stream: int) -> None:
    """Waits for all work of a stream."""
    machine.reap()
    queue = machine.queue(stream)
    queue.device.order(queue)
    queue.force()
    races.host_waited(races.now(queue))


def streamQuery(stream: int) -> int:
    """0 if all work of a stream is done, otherwise the number that says: not ready."""
    machine.reap()
    queue = machine.queue(stream)
    if not queue.done(queue.enqueued):
        return faults.NOT_READY
    races.host_waited(races.now(queue))
    return 0


def streamDestroy(stream: int) -> None:
    """Forgets a stream; its work is still done."""
    queue = machine.queue(stream)
    if queue.blocking:
        queue.device.order(queue.device.null)
    queue.kick(queue.enqueued)
    queue.device.queues.pop(stream, None)


class PointerAttributes:
    """What an address is; see `pointerGetAttributes`."""

    def __init__(self, device: int, devicePointer: int, hostPointer: int, type: int = -1) -> None:
        self.type = type
        self.device = device
        self.devicePointer = devicePointer
        self.hostPointer = hostPointer


def pointerGetAttributes(ptr: int) -> PointerAttributes:
    """What an address is."""
    block = blocks.find(ptr, 0)
    if ptr >= DEVICE:
        if block is None:
            raise CUDARuntimeError(faults.INVALID_VALUE)
        return PointerAttributes(block.device, ptr, 0, memoryTypeDevice)
    if block is not None:
        return PointerAttributes(machine.current.index, ptr, ptr, memoryTypeHost)
    return PointerAttributes(-2, 0, ptr, memoryTypeUnregistered)
