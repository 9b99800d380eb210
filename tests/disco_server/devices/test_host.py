"""Arrays in the host's memory."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from disco_client.wire.arrays import ALIGNMENT
from disco_client.wire.values import Device
from disco_server.devices.host import HostArrays


@pytest.fixture
def arrays():
    """Those of a rank on a CPU."""
    made = HostArrays(Device("cpu", 0))
    made.attach()
    return made


@pytest.mark.parametrize("dtype", [np.float32, bool, ml_dtypes.bfloat16, ml_dtypes.float8_e5m2])
@pytest.mark.parametrize("shape", [(), (0, 3), (5,), (3, 1, 7)])
def test_new_arrays_are_aligned(arrays, shape, dtype):
    """Whatever their shape and dtype, in C order."""
    made = arrays.empty(shape, np.dtype(dtype))

    assert (made.shape, made.dtype) == (shape, np.dtype(dtype))
    assert made.flags.c_contiguous
    assert made.flags.writeable
    assert made.size == 0 or made.ctypes.data % ALIGNMENT == 0


def test_nothing_is_copied_between_the_host_and_itself(arrays):
    """What comes and what goes is the array itself."""
    host = np.arange(6)

    assert arrays.from_host(host) is host
    assert arrays.to_host(host) is host


def test_bytes_are_read_at_once_and_in_order(arrays):
    """Also where the array does not lie in C order."""
    host = np.arange(6, dtype=np.int16).reshape(2, 3)

    assert [bytes(piece) for piece in arrays.read_pieces(host)] == [host.tobytes()]
    assert [bytes(piece) for piece in arrays.read_pieces(host.T)] == [host.T.tobytes()]
    assert b"".join(arrays.read_pieces(np.zeros((0, 4)))) == b""


def test_filling_keeps_the_array_and_its_shape(arrays):
    """Only sizes must agree; the host array may be changed afterwards."""
    held, host = np.zeros((2, 3)).T, np.arange(6.0)
    arrays.fill(held, host)
    host[:] = -1

    assert held.tolist() == [[0, 1], [2, 3], [4, 5]]


def test_there_is_nothing_to_wait_for(arrays):
    """What was asked of the host is done."""
    arrays.synchronize()
