"""Disco's copies to and from devices, with the stand-in as the library."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from disco_client.wire.values import Device
from disco_server.devices.base import DeviceUnavailable
from disco_server.devices.host import open_arrays


@pytest.fixture
def gpu(cupy):
    """The arrays of the second device."""
    arrays = open_arrays(Device("cuda", 1))
    arrays.attach()
    return arrays


@pytest.mark.parametrize("size", [0, 1, (4 << 20) + 3, 11 << 20])
def test_bytes_go_to_the_standin_and_back(gpu, size):
    """In one piece or in several."""
    host = np.random.default_rng(size).integers(0, 256, size, np.uint8)
    array = gpu.from_host(host)
    pieces = b"".join(bytes(piece) for piece in gpu.read_pieces(array))

    assert array.device.id == 1
    assert np.array_equal(gpu.to_host(array), host)
    assert pieces == host.tobytes()


@pytest.mark.parametrize("dtype", [np.float16, np.complex128, ml_dtypes.bfloat16, bool])
def test_dtypes_go_to_the_standin_and_back(gpu, dtype):
    """With all their bytes."""
    host = np.arange(12).astype(dtype).reshape(3, 4)
    back = gpu.to_host(gpu.from_host(host))

    assert back.dtype == host.dtype
    assert back.tobytes() == host.tobytes()


def test_arrays_that_do_not_lie_in_order(gpu):
    """On either side."""
    host = np.arange(24, dtype=np.int32).reshape(4, 6)
    array = gpu.from_host(host.T)
    assert np.array_equal(gpu.to_host(array), host.T)
    assert np.array_equal(gpu.to_host(array.T[::2]), host[::2])
    gpu.fill(array.T, np.ascontiguousarray(host[::-1]))

    assert np.array_equal(gpu.to_host(array), host[::-1].T)


def test_the_host_array_may_change_after_filling(gpu):
    """Its content was taken."""
    host = np.ones(9 << 20, np.uint8)
    array = gpu.from_host(host)
    host[:] = 9

    assert int(array.astype(np.int64).sum()) == host.size


def test_no_room_on_the_standin(gpu, monkeypatch):
    """The rank's own error says so."""
    monkeypatch.setenv("STANDIN_MEMORY", "4096")
    with pytest.raises(MemoryError, match="cuda:1 has no room"):
        gpu.empty((5000,), np.dtype(np.uint8))


def test_a_dtype_that_the_standin_refuses(gpu):
    """It is told with the name of the device."""
    with pytest.raises(DeviceUnavailable, match="cuda:1 holds no arrays of"):
        gpu.empty((5,), np.dtype(ml_dtypes.float8_e5m2))


def test_no_driver_and_no_such_device(cupy, monkeypatch):
    """Both are told before anything is tried."""
    with pytest.raises(DeviceUnavailable, match="expected one of the 4 GPUs"):
        open_arrays(Device("cuda", 4))
    with pytest.raises(DeviceUnavailable, match="built for rocm, the one here is built for cuda"):
        open_arrays(Device("rocm", 0))
