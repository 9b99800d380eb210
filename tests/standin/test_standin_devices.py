"""The stand-in's devices: how many there are, and which is current."""

from __future__ import annotations

import os
import subprocess
import sys
import threading

import pytest


def test_the_number_of_devices_is_set(cupy, monkeypatch):
    """By the environment; without, there are four."""
    assert cupy.cuda.runtime.getDeviceCount() == 4


def test_hidden_devices_are_not_seen(cupy, monkeypatch):
    """The visible ones are numbered anew, and keep their place on the bus."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,1,9,0")
    runtime = cupy.cuda.runtime

    assert runtime.getDeviceCount() == 2
    assert cupy.cuda.Device(1).pci_bus_id == "0000:11:00.0"
    assert runtime.getDeviceProperties(0)["name"] == b"Stand-in GPU 3"
    assert len(runtime.getDeviceProperties(0)["uuid"]) == 16
    with pytest.raises(runtime.CUDARuntimeError, match="invalid device ordinal"):
        cupy.cuda.Device(2).use()


@pytest.mark.parametrize(
    ("variable", "value", "text"),
    [
        ("STANDIN_GPUS", "0", "cudaErrorInsufficientDriver"),
        ("CUDA_VISIBLE_DEVICES", "-1", "cudaErrorNoDevice"),
        ("CUDA_VISIBLE_DEVICES", "", "cudaErrorNoDevice"),
    ],
)
def test_a_machine_without_a_device(cupy, monkeypatch, variable, value, text):
    """Nothing can be done, and the library says why."""
    monkeypatch.setenv(variable, value)
    runtime = cupy.cuda.runtime
    for act in (runtime.getDeviceCount, cupy.cuda.Stream, lambda: cupy.zeros(1)):
        with pytest.raises(runtime.CUDARuntimeError, match=text):
            act()
    assert not cupy.is_available()


def test_each_thread_has_its_own_device_and_stream(cupy):
    """A new thread begins with the first device and the null stream."""
    cupy.cuda.Device(2).use()
    stream = cupy.cuda.Stream().use()
    seen = []

    def look():
        seen.append((cupy.cuda.Device().id, cupy.cuda.get_current_stream()))

    thread = threading.Thread(target=look)
    thread.start()
    thread.join()

    assert seen == [(0, cupy.cuda.Stream.null)]
    assert (cupy.cuda.Device().id, cupy.cuda.get_current_stream()) == (2, stream)


def test_a_stream_is_for_its_device(cupy):
    """It cannot be made current on another."""
    stream = cupy.cuda.Stream()
    with cupy.cuda.Device(1):
        with pytest.raises(RuntimeError, match="does not match with the current device"):
            stream.use()
        event = cupy.cuda.Event()
    with pytest.raises(cupy.cuda.runtime.CUDARuntimeError, match="invalid resource handle"):
        event.record(stream)


def test_leaving_a_device_restores_the_one_before(cupy):
    """Also when another was made current inside."""
    with cupy.cuda.Device(1):
        cupy.cuda.Device(3).use()

    assert cupy.cuda.runtime.getDevice() == 0


def test_cuda_does_not_survive_a_fork(cupy):
    """A child of a process that used it is told so, whatever it tries."""
    cupy.zeros(1)
    child = os.fork()
    if child == 0:
        try:
            cupy.zeros(1)
        except cupy.cuda.runtime.CUDARuntimeError as error:
            os._exit(0 if error.status == 3 else 2)
        finally:
            os._exit(1)

    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_the_ordinary_tests_do_not_see_the_standin():
    """Nothing puts its folder on the path of who does not ask for it."""
    command = "import importlib.util as u; s = u.find_spec('cupy'); print(s and s.origin)"
    done = subprocess.run([sys.executable, "-c", command], check=True, capture_output=True)

    assert b"standin" not in done.stdout
