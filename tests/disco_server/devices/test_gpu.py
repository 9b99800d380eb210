"""A rank's arrays on a GPU, with the stand-in as the library."""

from __future__ import annotations

import threading

import ml_dtypes
import numpy as np
import pytest

from disco_client.wire.values import Device
from disco_server.devices.base import DeviceUnavailable
from disco_server.devices.gpu import PIECE_BYTES, GpuArrays

DTYPES = [np.dtype(kind) for kind in "?bhilqBHILQefdFD"] + [np.dtype(ml_dtypes.bfloat16)]
SHAPES = [(), (1,), (0, 3), (17,), (3, 5, 7)]
LARGE = (PIECE_BYTES // 2 + 3,)


def example(shape, dtype):
    """Bytes of every kind, and what each dtype makes of them."""
    size = int(np.prod(shape)) * dtype.itemsize
    raw = np.random.default_rng(size).integers(0, 2 if dtype.kind == "b" else 256, size, np.uint8)
    return raw.view(dtype).reshape(shape)


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: dtype.char)
def test_every_dtype_of_the_standin_makes_the_round_trip(gpu, standin, dtype):
    """Bit by bit, of any shape, in one piece or several, to the rank's own device."""
    for shape in [*SHAPES, LARGE] if dtype == np.float32 else SHAPES:
        host = example(shape, dtype)
        there = gpu.from_host(host)
        back = gpu.to_host(there)

        assert type(there) is standin.ndarray
        assert there.device.id == 1
        assert (back.shape, back.dtype) == (shape, dtype)
        assert back.tobytes() == host.tobytes()


@pytest.mark.parametrize("part", [np.s_[::2, 1:], np.s_[:, ::-1], np.s_[1], np.s_[:, 2:3]])
def test_arrays_of_the_standin_need_not_lie_in_order(gpu, part):
    """Neither those that are read, nor those that are filled, nor what comes from the host."""
    host = np.arange(60, dtype=np.int32).reshape(6, 10)
    there = gpu.from_host(host)

    assert gpu.to_host(there[part]).tolist() == host[part].tolist()
    assert b"".join(map(bytes, gpu.read_pieces(there.T[part]))) == host.T[part].tobytes()
    gpu.fill(there[part], -host[part])
    host[part] *= -1
    assert gpu.to_host(there).tolist() == host.tolist()
    assert gpu.to_host(gpu.from_host(host[part])).tolist() == host[part].tolist()


def test_filling_an_array_of_the_standin_looks_at_sizes_only(gpu):
    """The shape stays what it was, and the host array is free when the call returns."""
    there = gpu.from_host(np.zeros((2, 3), np.float32))
    host = np.arange(6, dtype=np.float32)
    gpu.fill(there, host)
    host[:] = 9

    assert gpu.to_host(there).tolist() == [[0, 1, 2], [3, 4, 5]]


def test_new_arrays_of_the_standin_lie_in_order(gpu):
    """On the rank's device, whatever was there before."""
    made = gpu.empty([3, 4], np.dtype(np.float16))

    assert (made.shape, made.dtype) == ((3, 4), np.float16)
    assert made.flags.c_contiguous
    assert made.device.id == 1


@pytest.mark.parametrize("dtype", [ml_dtypes.float8_e5m2, np.dtype("U3"), np.dtype(">f4"), object])
def test_a_dtype_that_the_standin_lacks_is_refused(gpu, dtype):
    """By name, with the device."""
    with pytest.raises(DeviceUnavailable, match="cuda:1 holds no arrays of"):
        gpu.empty((2,), np.dtype(dtype))
    with pytest.raises(DeviceUnavailable, match="cuda:1 holds no arrays of"):
        gpu.from_host(np.zeros(2, dtype))


def test_where_the_standin_has_no_room(gpu, monkeypatch):
    """The error is Python's own for that, and says how much was wanted; smaller ones fit."""
    monkeypatch.setenv("STANDIN_MEMORY", str(1 << 16))
    with pytest.raises(MemoryError, match=r"cuda:1 has no room for float32\[100, 1000\]: Out of"):
        gpu.empty((100, 1000), np.dtype(np.float32))

    assert gpu.to_host(gpu.from_host(np.arange(9))).tolist() == list(range(9))


def test_the_rank_of_a_standin_computes_on_its_own_stream(gpu, standin):
    """Which is not the one for collectives, and no other stream holds either up."""
    current = standin.cuda.get_current_stream()

    assert current == gpu.compute
    assert gpu.compute != gpu.comm
    assert gpu.compute.is_non_blocking
    assert gpu.comm.is_non_blocking


def test_a_second_thread_of_the_standin_attaches_by_itself(gpu, standin):
    """What is current belongs to a thread; one that only looks after the GPU gets no stream."""
    seen = {}

    def look(name, prepare):
        prepare()
        seen[name] = (standin.cuda.Device().id, standin.cuda.get_current_stream() == gpu.compute)

    for name in ("attach", "bind"):
        thread = threading.Thread(target=look, args=(name, getattr(gpu, name)))
        thread.start()
        thread.join()

    assert seen == {"attach": (1, True), "bind": (1, False)}


def test_a_gpu_of_the_standin_is_the_same_under_other_numbers(standin, monkeypatch):
    """Two processes that see the devices in another order can tell which one they share."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,1")
    names = [GpuArrays(Device("cuda", index)).bus_id() for index in (0, 1)]

    assert names == ["0000:13:00.0", "0000:11:00.0"]


# Two streams: every copy here waits until it is needed, so what nobody waits for is not there.


def communicate(gpu, source, target):
    """What a collective does, as far as the device knows."""
    runtime = gpu.xp.cuda.runtime
    kind = runtime.memcpyDeviceToDevice
    runtime.memcpyAsync(target.data.ptr, source.data.ptr, source.nbytes, kind, gpu.comm.ptr)


def test_what_is_communicated_by_the_standin_waits_for_what_was_computed(gpu):
    """And what is computed afterwards waits for what was communicated."""
    host = np.arange(1000)
    source, target = gpu.from_host(host), gpu.from_host(np.zeros_like(host))
    gpu.enter_comm()
    communicate(gpu, source, target)
    gpu.leave_comm()

    assert gpu.to_host(target + 1).tolist() == (host + 1).tolist()


def test_the_standin_goes_wrong_where_nobody_waits(gpu):
    """Without either of the two waits old data is found; so the test above shows something."""
    host = np.arange(1000)
    for left_out in ("enter_comm", "leave_comm"):
        source, target = gpu.from_host(host), gpu.from_host(np.zeros_like(host))
        if left_out != "enter_comm":
            gpu.enter_comm()
        communicate(gpu, source, target)
        if left_out != "leave_comm":
            gpu.leave_comm()
        assert gpu.to_host(target).tolist() != host.tolist(), f"without {left_out}"
        gpu.synchronize()


def test_waiting_for_the_standin_covers_both_streams(gpu):
    """Nothing is under way afterwards."""
    source, target = gpu.from_host(np.arange(1000)), gpu.empty((1000,), np.dtype(int))
    gpu.enter_comm()
    communicate(gpu, source, target)
    assert not gpu.comm.done
    gpu.synchronize()

    assert gpu.compute.done
    assert gpu.comm.done


def test_what_fails_on_the_standin_is_raised_by_waiting(gpu, standin):
    """On whichever of the two streams it happened."""
    source, target = gpu.from_host(np.arange(9)), gpu.empty((9,), np.dtype(int))
    gpu.synchronize()
    communicate(gpu, source, target)
    del target  # its memory is given back before the copy that nobody ordered has run

    with pytest.raises(standin.cuda.runtime.CUDARuntimeError, match="IllegalAddress"):
        gpu.synchronize()
