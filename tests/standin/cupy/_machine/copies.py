"""Copies, as work on a stream."""

from __future__ import annotations

import numpy as np

from cupy._machine import faults, races
from cupy._machine.devices import machine
from cupy._machine.memory_map import DEVICE, blocks, host_bytes
from cupy._machine.queues import Arrival, Op, Queue

__all__ = ["HOST_TO_DEVICE", "copy", "fill"]

HOST_TO_HOST, HOST_TO_DEVICE, DEVICE_TO_HOST, DEVICE_TO_DEVICE, DEFAULT = range(5)


class ToDevice(Op):
    """Copies to a device, from pinned memory or from what was in other memory at the call."""

    def __init__(self, target: int, source: int, size: int, content: np.ndarray | None) -> None:
        self._target = target
        self._source = source
        self._size = size
        self._content = content

    def run(self, queue: Queue) -> None:
        """Reads pinned memory now, whatever it has come to hold."""
        content = self._content
        if content is None:
            queue.show_overlapping(self._source, self._size)
            content = _pinned(self._source, self._size)
        blocks.device_bytes(self._target, self._size, "the target of a copy")[:] = content


class ToHost(Op):
    """Copies from a device to pinned memory, where it is seen when the host has waited."""

    def __init__(self, target: int, source: int, size: int) -> None:
        self._target = target
        self._source = source
        self._size = size

    def run(self, queue: Queue) -> None:
        """Takes what the device holds now."""
        content = blocks.device_bytes(self._source, self._size, "the source of a copy").copy()
        target = _pinned(self._target, self._size)
        queue.arrive([Arrival(target, content)])


class Across(Op):
    """Copies from device memory to device memory."""

    def __init__(self, target: int, source: int, size: int) -> None:
        self._target = target
        self._source = source
        self._size = size

    def run(self, queue: Queue) -> None:
        """Copies."""
        content = blocks.device_bytes(self._source, self._size, "the source of a copy").copy()
        blocks.device_bytes(self._target, self._size, "the target of a copy")[:] = content


class Fill(Op):
    """Fills device memory with a byte."""

    def __init__(self, target: int, value: int, size: int) -> None:
        self._target = target
        self._value = value
        self._size = size

    def run(self, queue: Queue) -> None:
        """Fills it."""
        blocks.device_bytes(self._target, self._size, "the target of memset")[:] = self._value


def _pinned(address: int, size: int) -> np.ndarray:
    block = blocks.find(address, size)
    if block is None:
        detail = f"pinned memory at {address:#x} was given back while a copy was on its way"
        raise faults.cuda_fault(faults.ILLEGAL_ADDRESS, detail)
    return block.view(address, size)


def fill(target: int, value: int, size: int, stream: int) -> None:
    """Puts a filling on a stream."""
    if size == 0:
        return
    queue = _queue(stream)
    block = blocks.device_block(target, size, "the target of memset")
    queue.device.order(queue)
    races.access(queue, block, "a memset", writes=True)
    queue.push(Fill(target, value & 0xFF, size))


def copy(target: int, source: int, size: int, kind: int, stream: int) -> None:
    """Puts a copy on a stream; one to memory that is not pinned is done when this returns.

    Raises:
        CUDARuntimeError: An address is not of the kind of memory that it should be.
    """
    queue = _queue(stream)
    if size == 0:
        return
    if kind == DEFAULT:
        kind = 2 * (source >= DEVICE) + (target >= DEVICE)
    to_device, from_device = kind in (1, 3), kind in (2, 3)
    queue.device.order(queue)
    _check(queue, target, size, "target", on_device=to_device)
    _check(queue, source, size, "source", on_device=from_device)
    if to_device and from_device:
        queue.push(Across(target, source, size))
    elif to_device:
        pinned = blocks.find(source, size) is not None
        content = None if pinned else host_bytes(source, size).copy()
        queue.push(ToDevice(target, source, size, content))
    elif from_device and blocks.find(target, size) is not None:
        queue.push(ToHost(target, source, size))
    else:
        queue.force()
        races.host_waited(races.now(queue))
        data = (
            blocks.device_bytes(source, size, "the source of a copy")
            if from_device
            else host_bytes(source, size)
        )
        host_bytes(target, size)[:] = data


def _queue(stream: int) -> Queue:
    machine.reap()
    queue = machine.queue(stream)
    queue.device.check()
    return queue


def _check(queue: Queue, address: int, size: int, what: str, *, on_device: bool) -> None:
    if on_device:
        block = blocks.device_block(address, size, f"the {what} of a copy")
        races.access(queue, block, "a copy", writes=what == "target")
    elif address >= DEVICE or address <= 0:
        detail = f"the {what} of a copy should be host memory, {address:#x} is not"
        raise faults.cuda_fault(faults.ILLEGAL_ADDRESS, detail)
