"""Streams and events as objects."""

from __future__ import annotations

import contextlib
from typing import Any

from cupy._machine import faults, races
from cupy._machine.devices import NULL_STREAM, machine
from cupy._machine.queues import Mark, Queue, Wait
from cupy.cuda import runtime

__all__ = ["Event", "Stream", "get_current_stream", "get_elapsed_time"]


def get_current_stream(device_id: int = -1) -> Any:
    """The stream that is current in this thread for a device, the current one if none is given."""
    device = runtime.getDevice() if device_id == -1 else machine.device(device_id).index
    stream = machine.current_stream(device)
    return Stream.null if stream is None else stream


class Event:
    """A place in the work of a stream.

    Args:
        block: Whether waiting sleeps; there is no difference here.
        disable_timing: Whether it keeps no time.
        interprocess: Not supported by the stand-in.
    """

    def __init__(
        self, block: bool = False, disable_timing: bool = False, interprocess: bool = False
    ) -> None:
        if interprocess:
            if not disable_timing:
                raise ValueError("Timing must be disabled for interprocess events")
            raise NotImplementedError("the stand-in has no events between processes")
        self._device = machine.current
        self._timing = not disable_timing
        self._queue: Queue | None = None
        self._position = 0
        self._clock: dict[Queue, int] = {}
        self._mark = Mark()
        self.ptr = id(self)

    @property
    def done(self) -> bool:
        """Whether all work that was on the stream is done; true if it was never recorded."""
        machine.reap()
        self._device.check()
        done = self._queue is None or self._queue.done(self._position)
        if done:
            races.host_waited(self._clock)
        return done

    def record(self, stream: Any = None) -> None:
        """Takes the present end of a stream's work as its place."""
        machine.reap()
        queue = machine.compute_queue() if stream is None else machine.queue(stream.ptr)
        if queue.device is not self._device:
            detail = "an event is of one device, the stream on which it is recorded of another"
            raise faults.cuda_fault(faults.INVALID_HANDLE, detail)
        queue.device.check()
        queue.device.order(queue)
        self._mark = Mark()
        if queue.idle:
            self._mark.run(queue)
            self._position = queue.enqueued
        else:
            self._position = queue.push(self._mark)
        self._queue = queue
        self._clock = races.now(queue)

    def synchronize(self) -> None:
        """Waits until it is done."""
        machine.reap()
        self._device.check()
        if self._queue is not None:
            self._queue.force(self._position)
            races.host_waited(self._clock)

    def _wait_in(self, queue: Queue) -> None:
        """Lets further work of a stream wait for it."""
        if self._queue is not None and self._queue is not queue:
            races.follow(queue, self._clock)
            queue.push(Wait(self._queue, self._position))

    def _time(self) -> float:
        """When it was done.

        Raises:
            CUDARuntimeError: It is not, or keeps no time.
        """
        if not self._timing or self._queue is None:
            raise faults.CUDARuntimeError(faults.INVALID_HANDLE)
        if self._mark.time is None:
            raise faults.CUDARuntimeError(faults.NOT_READY)
        return self._mark.time


def get_elapsed_time(start_event: Event, end_event: Event) -> float:
    """The milliseconds between two events."""
    return (end_event._time() - start_event._time()) * 1e3


class _BaseStream:
    """A stream; see the classes below.

    Attributes:
        ptr: The number by which the runtime knows it.
        device_id: Its device, -1 for the one that is current.
    """

    def __init__(self, ptr: int, device_id: int) -> None:
        self.ptr = ptr
        self.device_id = device_id
        self._before: list[Any] = []

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _BaseStream) and self.ptr == other.ptr

    def __hash__(self) -> int:
        return self.ptr

    def __enter__(self) -> _BaseStream:
        device = self._matching_device()
        self._before.append((device, machine.current_stream(device)))
        machine.use_stream(device, self)
        return self

    def __exit__(self, *exc: object) -> None:
        machine.use_stream(*self._before.pop())

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.ptr} (device {self.device_id})>"

    def __cuda_stream__(self) -> tuple[int, int]:
        """The protocol by which libraries hand streams to each other."""
        return (0, self.ptr)

    def _matching_device(self) -> int:
        current = runtime.getDevice()
        if self.device_id not in (-1, current):
            raise RuntimeError(
                f"The device that the stream is created on ({self.device_id})"
                f" does not match with the current device ({current})"
            )
        return current

    def use(self) -> _BaseStream:
        """Makes it current in this thread, for its device."""
        machine.use_stream(self._matching_device(), self)
        return self

    @property
    def done(self) -> bool:
        """Whether all its work is done."""
        return runtime.streamQuery(self.ptr) == 0

    def synchronize(self) -> None:
        """Waits for all its work."""
        runtime.streamSynchronize(self.ptr)

    def record(self, event: Event | None = None) -> Event:
        """Records an event on it, a new one if none is given."""
        event = Event() if event is None else event
        event.record(self)
        return event

    def wait_event(self, event: Event) -> None:
        """Lets its further work wait for an event, wherever that is recorded."""
        machine.reap()
        queue = machine.queue(self.ptr)
        queue.device.check()
        event._wait_in(queue)

    @property
    def is_non_blocking(self) -> bool:
        """Whether it is not in order with the null stream."""
        queue = machine.queue(self.ptr)
        return self.ptr != NULL_STREAM and not queue.blocking


class Stream(_BaseStream):
    """A stream of the current device.

    Args:
        null: The one that every device has.
        non_blocking: Whether it is not in order with the null stream.
        ptds: The null stream too, here.
        priority: No difference here.
    """

    null: Any = None
    ptds: Any = None

    def __init__(
        self,
        null: bool = False,
        non_blocking: bool = False,
        ptds: bool = False,
        priority: int | None = None,
    ) -> None:
        if null or ptds:
            super().__init__(NULL_STREAM if null else runtime.streamPerThread, -1)
        else:
            device = machine.current
            queue = device.new_queue(blocking=not non_blocking)
            super().__init__(queue.handle, device.index)

    def __del__(self) -> None:
        if getattr(self, "ptr", 0) > runtime.streamPerThread:
            with contextlib.suppress(Exception):  # after a fork, say
                runtime.streamDestroy(self.ptr)


Stream.null = Stream(null=True)
Stream.ptds = Stream(ptds=True)
