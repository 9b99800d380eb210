"""Devices as objects."""

from __future__ import annotations

import threading
from typing import Any

from cupy.cuda import runtime

__all__ = ["Device", "get_device_id"]

_entered = threading.local()


def get_device_id() -> int:
    """The device that is current in this thread."""
    return runtime.getDevice()


class Device:
    """A device; see the class of this name in the library.

    Args:
        device: Its number, another object of it, or none for the current one.

    Attributes:
        id: Its number. As in the library, nothing looks whether there is such a device.
    """

    def __init__(self, device: Any = None) -> None:
        self.id = runtime.getDevice() if device is None else int(device)

    @classmethod
    def from_pci_bus_id(cls, pci_bus_id: str) -> Device:
        """The device at a place of the PCI bus."""
        return cls(runtime.deviceGetByPCIBusId(pci_bus_id))

    def __int__(self) -> int:
        return self.id

    def __enter__(self) -> Device:
        before = runtime.getDevice()
        _entered.__dict__.setdefault("stack", []).append(before)
        if self.id != before:
            runtime.setDevice(self.id)
        return self

    def __exit__(self, *exc: object) -> None:
        runtime.setDevice(_entered.stack.pop())

    def __repr__(self) -> str:
        return f"<CUDA Device {self.id}>"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Device) and self.id == other.id

    def __lt__(self, other: Device) -> bool:
        return self.id < other.id

    __hash__ = None

    def use(self) -> Device:
        """Makes it current in this thread."""
        runtime.setDevice(self.id)
        return self

    def synchronize(self) -> None:
        """Waits for all work of all its streams."""
        with self:
            runtime.deviceSynchronize()

    @property
    def compute_capability(self) -> str:
        """What its processors can do."""
        properties = runtime.getDeviceProperties(self.id)
        return f"{properties['major']}{properties['minor']}"

    @property
    def mem_info(self) -> tuple[int, int]:
        """How many bytes are free, and how many there are."""
        with self:
            return runtime.memGetInfo()

    @property
    def attributes(self) -> dict[str, int]:
        """A few of the attributes that the driver knows."""
        return {
            name.removeprefix("cudaDevAttr"): runtime.deviceGetAttribute(number, self.id)
            for name, number in vars(runtime).items()
            if name.startswith("cudaDevAttr")
        }

    @property
    def pci_bus_id(self) -> str:
        """Where it is on the PCI bus."""
        return runtime.deviceGetPCIBusId(self.id)
