"""Loads cupy, and says what is missing where a GPU cannot be used."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from disco_client.wire.values import Device
from disco_server.devices.base import DeviceUnavailable

__all__ = ["EXTRAS", "load_cupy"]

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
