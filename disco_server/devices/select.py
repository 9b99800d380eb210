"""Opens the arrays of a device by its name."""

from __future__ import annotations

from disco_client.wire.values import Device
from disco_server.devices.base import Arrays
from disco_server.devices.host import HostArrays

__all__ = ["open_arrays"]


def open_arrays(device: Device) -> Arrays:
    """Opens a device for one rank; nothing of a GPU is loaded for a CPU.

    Raises:
        DeviceUnavailable: There is no such device here, or something that it needs.
    """
    if device.kind == "cpu":
        return HostArrays(device)
    from disco_server.devices.gpu import GpuArrays

    return GpuArrays(device)
