"""What the environment tells the stand-in; read at each use, so that tests may change it.

- `STANDIN_GPUS`: how many GPUs the machine has; 4 unless given, 0 is a machine without a driver.
- `CUDA_VISIBLE_DEVICES`: as for the driver, numbers or UUIDs.
- `STANDIN_MEMORY`: bytes of memory of each GPU; 2 GiB unless given.
- `STANDIN_RACES`: anything but nothing tells of streams that do not wait; see `races`.
- `STANDIN_HOST`: the name of the host, to pretend several.
- `STANDIN_HIP`: anything but nothing makes it a build for ROCm.
- `STANDIN_NCCL_CARRIER`: what carries NCCL's operations, `hub` unless given; see `nccl_carrier`.
- `STANDIN_NCCL_VERSION`: the version of NCCL, that of the carrier unless given.
- `STANDIN_NCCL_FAIL`: what shall fail; see `nccl_faults`.
- `STANDIN_SOCKETS`: a folder for the sockets of NCCL; Linux needs none unless given.
"""

from __future__ import annotations

import os
import socket
import uuid
from pathlib import Path

__all__ = ["Gpu", "host_name", "is_hip", "memory_bytes", "visible_gpus"]


class Gpu:
    """A GPU of the machine, whatever number a process sees it under.

    Attributes:
        index: Its number on the machine.
        bus_number: The number of its PCI bus.
        bus_id: Its place on the PCI bus, as the driver writes it.
        uuid: Its 16 bytes of identity.
    """

    def __init__(self, index: int) -> None:
        self.index = index
        self.bus_number = 0x10 + index
        self.bus_id = f"0000:{self.bus_number:02X}:00.0"
        self.uuid = uuid.uuid5(uuid.NAMESPACE_DNS, f"gpu{index}.{host_name()}").bytes

    @property
    def uuid_text(self) -> str:
        """Its identity as the driver's tools write it."""
        return f"GPU-{uuid.UUID(bytes=self.uuid)}"


def host_name() -> str:
    """What tells this host from others."""
    if given := os.environ.get("STANDIN_HOST"):
        return given
    boot = Path("/proc/sys/kernel/random/boot_id")
    return f"{socket.gethostname()}-{boot.read_text().strip() if boot.exists() else ''}"


def is_hip() -> bool:
    """Whether this pretends to be a build for AMD's GPUs."""
    return bool(os.environ.get("STANDIN_HIP"))


def memory_bytes() -> int:
    """How much memory each GPU has."""
    return int(os.environ.get("STANDIN_MEMORY", str(2 << 30)))


def visible_gpus() -> list[Gpu]:
    """The GPUs that this process sees; the list ends at the first that does not exist."""
    there = [Gpu(index) for index in range(int(os.environ.get("STANDIN_GPUS", "4")))]
    named = os.environ.get("HIP_VISIBLE_DEVICES" if is_hip() else "CUDA_VISIBLE_DEVICES")
    if named is None:
        return there
    seen: list[Gpu] = []
    for name in (part.strip() for part in named.split(",")):
        found = [
            gpu
            for gpu in there
            if name == str(gpu.index)
            or (name.startswith("GPU-") and gpu.uuid_text.startswith(name))
        ]
        if len(found) != 1:
            break
        seen += found
    return seen
