"""The devices that a process sees, and which of them is current in a thread."""

from __future__ import annotations

import itertools
import os
import threading
from typing import Any

from cupy._machine import faults, races, settings
from cupy._machine.memory_map import blocks, graveyard
from cupy._machine.queues import Free, Op, Queue, Wait

__all__ = ["NULL_STREAM", "Machine", "machine"]

NULL_STREAM = 0
_LEGACY_STREAM = 1
_PER_THREAD_STREAM = 2
_handles = itertools.count(0x5550_0000, 16)


class OneDevice:
    """A device: its streams, and whether it still works.

    Attributes:
        index: Its number in this process.
        gpu: The GPU of the machine that it is.
        error: What went wrong on it, if anything did; from then on nothing works.
        queues: The work of its streams, by the numbers of the streams.
    """

    def __init__(self, index: int, gpu: settings.Gpu) -> None:
        self.index = index
        self.gpu = gpu
        self.error: Exception | None = None
        self.null = Queue(self, NULL_STREAM, blocking=False)
        self.queues = {NULL_STREAM: self.null, _LEGACY_STREAM: self.null}

    def fail(self, error: Exception) -> None:
        """Remembers the first that went wrong."""
        if self.error is None:
            self.error = error

    def check(self) -> None:
        """Raises what went wrong on it, if anything did."""
        if self.error is not None:
            raise faults.again(self.error)

    def new_queue(self, *, blocking: bool) -> Queue:
        """Makes a stream."""
        queue = Queue(self, next(_handles), blocking=blocking)
        self.queues[queue.handle] = queue
        return queue

    def push(self, queue: Queue, op: Op) -> int:
        """Adds work to a stream of it, in order with the null stream where that is promised."""
        self.order(queue)
        return queue.push(op)

    def order(self, queue: Queue) -> None:
        """Lets a stream wait where the null stream is involved."""
        if queue is self.null:
            others = [other for other in list(self.queues.values()) if other.blocking]
        else:
            others = [self.null] if queue.blocking else []
        for other in others:
            races.follow(queue, races.now(other))
            if not other.idle:
                queue.push(Wait(other, other.enqueued))


class Machine:
    """What this process sees of the machine.

    The driver is initialised by the first call that needs it, and does not survive a fork.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._devices: list[OneDevice] | None = None
        self._process = 0
        self._local = threading.local()

    def devices(self) -> list[OneDevice]:
        """The devices, each ready to be used.

        Raises:
            CUDARuntimeError: There is no driver, no device, or it was in use before a fork.
        """
        if self._devices is None:
            with self._lock:
                if self._devices is None:
                    self._devices = self._initialize()
                    self._process = os.getpid()
        if self._process != os.getpid():
            detail = "CUDA was in use before this process was forked"
            raise faults.cuda_fault(faults.INITIALIZATION, detail)
        return self._devices

    @staticmethod
    def _initialize() -> list[OneDevice]:
        if int(os.environ.get("STANDIN_GPUS", "4")) == 0:
            raise faults.CUDARuntimeError(faults.INSUFFICIENT_DRIVER)
        gpus = settings.visible_gpus()
        if not gpus:
            raise faults.CUDARuntimeError(faults.NO_DEVICE)
        return [OneDevice(index, gpu) for index, gpu in enumerate(gpus)]

    def device(self, index: int) -> OneDevice:
        """A device by its number.

        Raises:
            CUDARuntimeError: There is none of that number.
        """
        devices = self.devices()
        if not 0 <= index < len(devices):
            raise faults.CUDARuntimeError(faults.INVALID_DEVICE)
        return devices[index]

    @property
    def current(self) -> OneDevice:
        """The device that is current in this thread."""
        return self.device(getattr(self._local, "device", 0))

    def use(self, index: int) -> None:
        """Makes a device current in this thread."""
        self.device(index)
        self._local.device = index

    def current_stream(self, device: int) -> Any:
        """The stream object that was made current for a device in this thread, if any was."""
        return getattr(self._local, "streams", {}).get(device)

    def use_stream(self, device: int, stream: Any) -> None:
        """Makes a stream object current for a device in this thread."""
        self._local.__dict__.setdefault("streams", {})[device] = stream

    def queue(self, handle: int) -> Queue:
        """The work of a stream, by the stream's number; 0 to 2 are those of the current device.

        Raises:
            CUDARuntimeError: There is no such stream.
        """
        current = self.current
        if handle == _PER_THREAD_STREAM:
            handle = NULL_STREAM
        if handle in current.queues:
            return current.queues[handle]
        for device in self.devices():
            if handle in device.queues:
                return device.queues[handle]
        detail = f"there is no stream {handle:#x}"
        raise faults.cuda_fault(faults.INVALID_HANDLE, detail)

    def compute_queue(self) -> Queue:
        """The current stream's work on the current device."""
        device = self.current
        stream = self.current_stream(device.index)
        return device.null if stream is None else self.queue(stream.ptr)

    def catch_up(self) -> Queue:
        """Does what the current stream has before its next work, which happens at once."""
        self.reap()
        queue = self.compute_queue()
        queue.device.check()
        queue.device.order(queue)
        queue.run(queue.enqueued)
        queue.device.check()
        return queue

    def reap(self) -> None:
        """Gives back memory that was let go, in the order of the stream it is for."""
        while graveyard:
            block = graveyard.popleft()
            block.dropped = True
            if block.queue is None or block.queue.idle:
                blocks.remove(block)
            else:
                block.queue.push(Free(block, blocks))


machine = Machine()
