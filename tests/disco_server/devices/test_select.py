"""Choosing the arrays of a device by its name."""

from __future__ import annotations

import subprocess
import sys

import pytest

from disco_client.wire.values import Device
from disco_server.devices.base import DeviceUnavailable
from disco_server.devices.gpu import GpuArrays
from disco_server.devices.host import open_arrays


def test_a_cpu_loads_nothing_of_gpus():
    """Neither cupy nor the module that would."""
    program = (
        "import sys; from disco_server.devices.host import open_arrays;"
        "from disco_client.wire.values import Device;"
        "print(type(open_arrays(Device('cpu', 0))).__name__,"
        " [name for name in sys.modules if 'cupy' in name or name.endswith('gpu')])"
    )
    command = [sys.executable, "-c", program]
    ran = subprocess.run(command, check=False, capture_output=True, text=True)
    assert ran.stdout.split() == ["HostArrays", "[]"], ran.stderr


def test_a_gpu_of_the_standin_is_opened_by_its_number(standin):
    """The arrays lie there."""
    arrays = open_arrays(Device("cuda", 2))
    arrays.attach()

    assert isinstance(arrays, GpuArrays)
    assert arrays.device == Device("cuda", 2)
    assert arrays.xp.zeros(1).device.id == 2


def test_a_gpu_that_the_standin_lacks_cannot_be_opened(standin):
    """Whatever is missing is said by one kind of error."""
    for device in (Device("cuda", 4), Device("rocm", 0)):
        with pytest.raises(DeviceUnavailable, match=str(device)):
            open_arrays(device)
