"""The driver by ctypes, with the library replaced by an object of the same functions."""

from __future__ import annotations

import subprocess
import sys

import pytest

from disco_server.devices.driver import KINDS, Driver, DriverError, Gpu

LOAD = "from disco_server.devices.driver import KINDS, Driver"


class Library:
    """A driver's library that sees one GPU.

    Args:
        version: What it calls its version.
        failing: Codes of the functions that fail, by their names.
    """

    def __init__(self, version, **failing):
        self._failing = failing
        self._writes = {  # which argument is written to, and what
            "Init": (0, 0),
            "DriverGetVersion": (0, version),
            "DeviceGetCount": (0, 1),
            "GetDeviceCount": (0, 1),
            "DeviceGet": (0, 40),
            "DeviceGetName": (0, b"Replaced"),
            "DeviceTotalMem": (0, 24 << 30),
            "GetErrorName": (1, b"CUDA_ERROR_UNKNOWN"),
        }
        self.hipGetErrorName = self._hip_error

    def __getattr__(self, name):
        def call(*arguments):
            if name not in self._failing:
                self._write(name.removeprefix("cu").removeprefix("hip"), arguments)
            return self._failing.get(name, 0)

        return call

    def _write(self, plain, arguments):
        if plain == "DeviceGetAttribute":
            place, value = 0, {75: 8, 76: 6}[arguments[1]]
        else:
            place, value = self._writes[plain.removesuffix("_v2")]
        if plain != "Init":
            out = arguments[place]
            getattr(out, "_obj", out).value = value  # by reference, but for buffers

    @staticmethod
    def _hip_error(code):
        return None if code == 1 else b"hipErrorNoDevice"


def test_the_machine_s_own_driver_is_found_or_its_absence_raised():
    """Without replacing anything: a driver that answers, or the linker's error."""
    there = f"{LOAD}; print(Driver(KINDS['cuda']).version()[0] >= 11)"
    done = subprocess.run(
        [sys.executable, "-c", there], capture_output=True, text=True, check=False
    )
    said = done.stderr if done.returncode else done.stdout
    assert "OSError: libcuda.so.1" in said or said == "True\n"


def test_cuda_is_asked_with_the_library_replaced():
    """Version, names, memory and capability come from the functions of that name."""
    driver = Driver(KINDS["cuda"], lambda name: Library(12080))
    assert driver.version() == (12, 8)
    driver.start()
    assert driver.gpus() == [Gpu(0, "Replaced", 24 << 30, "8.6")]


def test_rocm_is_asked_with_the_library_replaced():
    """HIP's functions have the same shapes, and its version another form."""
    driver = Driver(KINDS["rocm"], lambda name: Library(70051831))
    assert driver.version() == (7, 0)
    driver.start()
    assert driver.gpus() == [Gpu(0, "Replaced", 24 << 30)]


def test_the_first_library_that_loads_is_taken():
    """Where none does, the error is that of the preferred one."""
    tried = []

    def load(name):
        tried.append(name)
        if len(tried) < 3:
            raise OSError(name)
        return Library(60000000)

    assert Driver(KINDS["rocm"], load).version() == (6, 0)
    assert tried == ["libamdhip64.so.7", "libamdhip64.so.6", "libamdhip64.so"]

    def refuse(name):
        raise OSError(name)

    with pytest.raises(OSError, match=r"^libamdhip64\.so\.7$"):
        Driver(KINDS["rocm"], refuse)


@pytest.mark.parametrize(
    ("kind", "failing", "said"),
    [
        ("cuda", {"cuInit": 999}, r"^cuInit says CUDA_ERROR_UNKNOWN \(999\)$"),
        ("cuda", {"cuInit": 12345, "cuGetErrorName": 1}, "^cuInit says error 12345$"),
        ("rocm", {"hipInit": 100}, r"^hipInit says hipErrorNoDevice \(100\)$"),
        ("rocm", {"hipInit": 1}, "^hipInit says error 1$"),
    ],
)
def test_a_failing_call_is_named_with_the_library_replaced(kind, failing, said):
    """The error has the call, the name that the driver has for it, and the number."""
    driver = Driver(KINDS[kind], lambda name: Library(0, **failing))
    with pytest.raises(DriverError, match=said) as raised:
        driver.start()
    assert raised.value.code == next(iter(failing.values()))
