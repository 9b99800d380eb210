"""The stand-in's streams: who forgets to wait finds old data."""

from __future__ import annotations

import numpy as np
import pytest


@pytest.fixture
def pinned(cupy):
    """A hundred bytes of pinned memory, all ones."""
    memory = np.frombuffer(cupy.cuda.alloc_pinned_memory(100), np.uint8, 100)
    memory[:] = 1
    return memory


@pytest.fixture
def stream(cupy):
    """A stream that is not the current one."""
    return cupy.cuda.Stream(non_blocking=True)


def send(cupy, array, pinned, stream):
    copy = cupy.cuda.runtime.memcpyAsync
    copy(array.data.ptr, pinned.ctypes.data, array.nbytes, 1, stream.ptr)


def fetch(cupy, array, pinned, stream):
    copy = cupy.cuda.runtime.memcpyAsync
    copy(pinned.ctypes.data, array.data.ptr, array.nbytes, 2, stream.ptr)


def test_a_copy_to_the_device_is_late(cupy, pinned, stream):
    """The current stream sees it only after it has waited."""
    array = cupy.zeros(100, np.uint8)
    send(cupy, array, pinned, stream)
    stale = array.sum().item()
    event = stream.record(cupy.cuda.Event(disable_timing=True))
    cupy.cuda.get_current_stream().wait_event(event)

    assert (stale, array.sum().item()) == (0, 100)


def test_a_copy_to_the_device_reads_pinned_memory_late(cupy, pinned, stream):
    """What is written there before the copy is done, is copied."""
    array = cupy.zeros(100, np.uint8)
    send(cupy, array, pinned, stream)
    pinned[:] = 2
    stream.synchronize()

    assert array.sum().item() == 200


def test_a_copy_from_pageable_memory_does_not_look_back(cupy, stream):
    """The driver has read it when the call returns."""
    array = cupy.zeros(100, np.uint8)
    host = np.ones(100, np.uint8)
    send(cupy, array, host, stream)
    host[:] = 2
    stream.synchronize()

    assert array.sum().item() == 100


def test_a_copy_to_the_host_is_seen_after_waiting(cupy, pinned):
    """Also one on the current stream, and not before, whatever else that stream does."""
    array = cupy.full(100, 7, np.uint8)
    stream = cupy.cuda.get_current_stream()
    fetch(cupy, array, pinned, stream)
    array += 1
    stale = pinned[0]
    event = stream.record()
    event.synchronize()

    assert (stale, pinned[0], array[0].item()) == (1, 7, 8)


def test_waiting_for_another_stream_that_waited_is_enough(cupy, pinned, stream):
    """What was before the event is seen, too."""
    array = cupy.full(100, 7, np.uint8)
    fetch(cupy, array, pinned, stream)
    second = cupy.cuda.Stream(non_blocking=True)
    second.wait_event(stream.record())
    second.synchronize()

    assert pinned[0] == 7


def test_an_event_marks_a_place(cupy, pinned, stream):
    """What comes after it on the stream is not waited for."""
    first, second = cupy.zeros(100, np.uint8), cupy.zeros(100, np.uint8)
    send(cupy, first, pinned, stream)
    event = stream.record()
    send(cupy, second, pinned, stream)
    event.synchronize()

    assert (first.sum().item(), second.sum().item()) == (100, 0)


def test_asking_whether_it_is_done_lets_work_go_on(cupy, pinned, stream, eventually):
    """So a loop that asks comes to an end."""
    array = cupy.zeros(100, np.uint8)
    send(cupy, array, pinned, stream)
    event = stream.record()

    assert not event.done
    eventually(lambda: event.done)
    assert stream.done


def test_the_null_stream_keeps_order_with_blocking_streams(cupy, pinned):
    """As CUDA's does, and only with those."""
    array = cupy.zeros(100, np.uint8)
    send(cupy, array, pinned, cupy.cuda.Stream())

    assert array.sum().item() == 100


def test_a_device_is_waited_for_with_all_its_streams(cupy, pinned, stream):
    """Everything is done then."""
    array = cupy.zeros(100, np.uint8)
    send(cupy, array, pinned, stream)
    cupy.cuda.Device().synchronize()

    assert array.sum().item() == 100


def test_addresses_must_be_of_their_kind(cupy, stream):
    """What is not inside live device memory is no place to copy to or from."""
    array = cupy.zeros(512, np.uint8)
    host = np.zeros(1024, np.uint8)
    copy = cupy.cuda.runtime.memcpyAsync
    here, there = host.ctypes.data, array.data.ptr
    for arguments in (
        (here, here, 8, 1),
        (there, there, 8, 1),
        (there + 508, here, 8, 1),
        (here, here, 8, 2),
        (here, there - 1, 8, 2),
        (there, here, 8, 3),
    ):
        with pytest.raises(cupy.cuda.runtime.CUDARuntimeError, match="illegal memory access"):
            copy(*arguments, stream.ptr)
    copy(0, 0, 0, 1, stream.ptr)


def test_memory_in_use_on_another_stream_must_be_kept(cupy, pinned, stream):
    """Letting go of it too early breaks the device, for good."""
    array = cupy.zeros(100, np.uint8)
    send(cupy, array, pinned, stream)
    del array
    for act in (stream.synchronize, stream.synchronize, lambda: cupy.zeros(1)):
        with pytest.raises(cupy.cuda.runtime.CUDARuntimeError, match="illegal memory access"):
            act()


def test_memory_may_go_once_its_own_stream_waits(cupy, pinned, stream):
    """Then it is used again only after that work."""
    array = cupy.zeros(100, np.uint8)
    send(cupy, array, pinned, stream)
    cupy.cuda.get_current_stream().wait_event(stream.record())
    used = cupy.get_default_memory_pool().used_bytes()
    del array
    stream.synchronize()

    assert used == 512
    assert cupy.get_default_memory_pool().used_bytes() == 0


def test_pinned_memory_in_use_must_be_kept(cupy, pinned, stream):
    """A copy does not find it otherwise."""
    array = cupy.zeros(100, np.uint8)
    send(cupy, array, pinned.copy(), stream)
    stream.synchronize()
    gone = np.frombuffer(cupy.cuda.alloc_pinned_memory(100), np.uint8, 100)
    send(cupy, array, gone, stream)
    del gone
    with pytest.raises(cupy.cuda.runtime.CUDARuntimeError, match="illegal memory access"):
        stream.synchronize()


def test_time_is_kept_between_events(cupy):
    """Unless an event was told to keep none."""
    stream = cupy.cuda.get_current_stream()
    first, second = stream.record(), stream.record()

    assert cupy.cuda.get_elapsed_time(first, second) >= 0
    quiet = stream.record(cupy.cuda.Event(disable_timing=True))
    with pytest.raises(cupy.cuda.runtime.CUDARuntimeError, match="invalid resource handle"):
        cupy.cuda.get_elapsed_time(first, quiet)


def test_a_stream_that_is_let_go_still_does_its_work(cupy, pinned, eventually):
    """It only has no name any more."""
    array = cupy.zeros(100, np.uint8)
    stream = cupy.cuda.Stream(non_blocking=True)
    send(cupy, array, pinned, stream)
    event = stream.record()
    del stream
    eventually(lambda: event.done)

    assert array.sum().item() == 100


def test_pinned_memory_is_given_in_powers_of_two(cupy):
    """More than was asked for, and junk."""
    memory = cupy.cuda.alloc_pinned_memory(513)

    assert memory.size() == 1024
    assert np.frombuffer(memory, np.uint8, 4).tolist() == [0xCB] * 4
    assert np.frombuffer(memory + 1000, np.uint8).size == 24
    with pytest.raises(TypeError):
        len(memory)
