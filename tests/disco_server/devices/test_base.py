"""What is an array on a GPU, and what is not."""

from __future__ import annotations

import subprocess
import sys

import numpy as np

from disco_client.wire.values import Device
from disco_server.devices.base import on_device
from disco_server.devices.host import HostArrays


class ndarray(np.ndarray):  # noqa: N801
    """A namesake that has nothing to do with a GPU."""


def test_an_array_of_the_standin_is_on_a_gpu(gpu, standin):
    """Found out by the name of its class; scalars and arrays of numpy are not."""
    array = standin.zeros(3)

    assert on_device(array)
    assert on_device(array[1:])
    assert on_device(array.sum())
    assert not on_device(array.get())
    assert not on_device(standin.float32(1))


def test_what_is_no_array_of_a_gpu():
    """Arrays of the host, classes of the same name, and everything else."""
    for value in (np.zeros(3), np.zeros(3).view(ndarray), np.float32(1), None, [1], "cupy.ndarray"):
        assert not on_device(value)


def test_looking_loads_nothing():
    """A rank on a CPU never pays for the library of GPUs."""
    program = (
        "import sys; from disco_server.devices.base import on_device; import numpy;"
        "print(on_device(numpy.zeros(1)), [name for name in sys.modules if 'cupy' in name])"
    )
    command = [sys.executable, "-c", program]
    ran = subprocess.run(command, check=False, capture_output=True, text=True)
    assert ran.stdout.split() == ["False", "[]"], ran.stderr


def test_each_kind_of_device_holds_its_own_arrays(gpu, standin):
    """An array of the host is none of the GPU's, and the other way round."""
    host = HostArrays(Device("cpu", 0))
    there, here = standin.zeros(3), np.zeros(3)

    assert (gpu.holds(there), gpu.holds(here)) == (True, False)
    assert (host.holds(there), host.holds(here)) == (False, True)
    assert (gpu.on_host, host.on_host) == (False, True)
    assert (gpu.xp, host.xp) == (standin, np)
