"""Devices that cannot be used are refused before anybody is told of them."""

from __future__ import annotations

import sys

import pytest

from disco_client.errors import ConfigError
from disco_server.devices.probe import explain, require_devices
from disco_server.settings import NoVisibleGpu

NO_CUPY = "raise ModuleNotFoundError('no', name='cupy')"


def test_of_the_cpu_nothing_is_asked(machine):
    """A cupy that would crash is not looked at."""
    machine.cupy("import os; os.abort()")
    require_devices(("cpu", "cpu"))


def test_gpus_that_work_pass_with_driver_and_cupy_replaced(machine):
    """Only the GPUs that are asked for have to work."""
    machine.driver()
    machine.cupy()
    require_devices(("cpu", "cuda:0", "cuda:1"))
    assert "cupy" not in sys.modules


def test_what_is_missing_is_named_with_the_driver_replaced(machine):
    """One line: where, which devices, every cause, what to do about the first, who tells more."""
    machine.driver()
    machine.cupy(NO_CUPY)
    with pytest.raises(ConfigError) as raised:
        require_devices(("cuda:0", "cuda:1"), where="--devices")
    assert str(raised.value) == (
        "--devices: cuda:0 to cuda:1 cannot be used on this machine: cupy is not installed."
        " What to do: pip install 'disco-runtime[server,cuda13]';"
        " `disco doctor --gpu` shows every check"
    )


def test_a_gpu_that_is_not_there_is_refused_with_driver_and_cupy_replaced(machine):
    """The numbers are those that this machine sees."""
    machine.driver()
    machine.cupy()
    with pytest.raises(ConfigError, match=r"^devices: cuda:7 .* no cuda:7 among the 2 GPUs"):
        require_devices(("cuda:7",))


def test_a_missing_nccl_is_refused_with_driver_and_cupy_replaced(machine):
    """Without it no collective of a session could run there."""
    machine.driver()
    machine.cupy()
    machine.module("cupy/cuda/nccl.py", "available = False")
    with pytest.raises(ConfigError, match="NCCL cannot be loaded"):
        require_devices(("cuda:0",))


def test_a_machine_without_visible_gpus_says_what_is_missing(machine):
    """The place where they were asked for stays in front."""
    machine.cupy(NO_CUPY)
    error = explain(NoVisibleGpu("DISCO_DEVICES", "rocm"))
    assert str(error).startswith("DISCO_DEVICES: expected a machine with a visible rocm device")
    assert "cupy is not installed" in str(error)
    assert "disco doctor --gpu" in str(error)


def test_gpus_without_files_are_to_be_named_with_driver_and_cupy_replaced(machine):
    """As under WSL, where the driver sees what the file system does not show."""
    machine.driver()
    machine.cupy()
    error = explain(NoVisibleGpu("--devices", "cuda"))
    assert str(error).endswith("the driver sees 2; name them: --devices cuda:0,1")
