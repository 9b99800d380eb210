"""Streams of work that happens as late as the program allows.

Work that is put on a stream stays undone until something needs it: a
synchronisation, work on the host side of the same stream, another stream that waits
for it. So a program that forgets to wait finds old data, every time.

What copies to the host do is seen there later still: only when the host has waited.
"""

from __future__ import annotations

import atexit
import itertools
import threading
import time
from collections import deque
from dataclasses import dataclass
from typing import Any

import numpy as np

from cupy._machine import faults

__all__ = ["Arrival", "Free", "Keep", "Mark", "Op", "Queue", "Wait"]


ending = threading.Event()
"""Set when the interpreter ends, when no thread can be started any more."""
atexit.register(ending.set)


class Op:
    """One piece of work on a stream."""

    def start(self) -> None:
        """Does the part that other devices need; may be called again."""

    def run(self, queue: Queue) -> None:
        """Does it, or the rest of it."""
        raise NotImplementedError


@dataclass
class Arrival:
    """Bytes that a copy has brought to the host, where they are seen once it has waited."""

    target: np.ndarray
    content: np.ndarray
    seen: bool = False

    def show(self) -> None:
        """Lets the host see them."""
        if not self.seen:
            self.seen = True
            self.target[:] = self.content


class Queue:
    """The work of one stream.

    Args:
        device: The device of the stream.
        handle: The number by which the library knows the stream.
        blocking: Whether it keeps in order with the null stream.

    Attributes:
        ticks: How much was put on it; see `races`.
        seen: After how much of other streams its further work comes.
        enqueued: How many pieces of work were put on it, those that were done at once left out.
        completed: How many of them are done.
    """

    def __init__(self, device: Any, handle: int, *, blocking: bool) -> None:
        self.device = device
        self.handle = handle
        self.blocking = blocking
        self._arrivals: list[tuple[int, Arrival]] = []
        self.ticks = 0
        self.seen: dict[Any, int] = {}
        self.enqueued = 0
        self.completed = 0
        self._pending: deque[Op] = deque()
        self._running = False
        self._kicked = 0
        self._changed = threading.Condition(threading.RLock())

    @property
    def idle(self) -> bool:
        """Whether all work on it is done."""
        return self.completed == self.enqueued

    def push(self, op: Op) -> int:
        """Adds work, and returns its position: how much is done when it is done."""
        with self._changed:
            self._pending.append(op)
            self.enqueued += 1
            return self.enqueued

    def run(self, position: int) -> None:
        """Does all work up to a position, in this thread, or waits for who is at it.

        Other streams for which it will have to wait go first, as far as they do not wait for
        this one: so they find old data if they should have waited.
        """
        with self._changed:
            ahead = list(itertools.islice(self._pending, max(0, position - self.completed)))
        for op in ahead:
            if isinstance(op, Wait):
                op.advance(self)
        while True:
            op = self._take(position)
            if op is None:
                return
            try:
                if self.device.error is None:
                    op.run(self)
            except Exception as error:  # noqa: BLE001 - what a device does fails on the device
                self.device.fail(error)
            except BaseException:  # an interrupt of the waiting thread; the work stays
                self._give_up()
                raise
            self._finish()

    def start(self, position: int) -> None:
        """Does what others need of the work at a position, and all that comes before it."""
        self.run(position - 1)
        with self._changed:
            if self._running or self.completed >= position:
                return  # it is being done altogether
            self._running = True
            op = self._pending[0]
        try:
            if self.device.error is None:
                op.start()
        except Exception as error:  # noqa: BLE001 - as in run
            self.device.fail(error)
        finally:
            self._give_up()

    def force(self, position: int | None = None) -> None:
        """What the host does to wait for the work up to a position, or for all.

        Raises:
            Exception: What went wrong on the device.
        """
        position = self.enqueued if position is None else position
        self.run(position)
        self.device.check()
        self._show(position)

    def done(self, position: int) -> bool:
        """Whether the work up to a position is done; if not, it goes on in the background.

        Raises:
            Exception: What went wrong on the device.
        """
        self.device.check()
        if self.completed >= position:
            self._show(position)
            return True
        self.kick(position)
        return False

    def kick(self, position: int) -> None:
        """Lets the work up to a position go on without anybody waiting for it."""
        with self._changed:
            if position <= max(self._kicked, self.completed) or ending.is_set():
                return
            self._kicked = position
        threading.Thread(target=self.run, args=(position,), daemon=True).start()

    def arrive(self, arrivals: list[Arrival]) -> None:
        """Notes what the work being done brings to the host."""
        with self._changed:
            self._arrivals += [(self.completed + 1, arrival) for arrival in arrivals]

    def arrived(self, position: int) -> list[Arrival]:
        """What the work up to a position has brought to the host, unseen there so far."""
        with self._changed:
            return [arrival for at, arrival in self._arrivals if at <= position]

    def show_overlapping(self, address: int, size: int) -> None:
        """Lets work on the stream read what came to the host before it on the stream."""
        for arrival in self.arrived(self.completed):
            begin = arrival.target.ctypes.data
            if begin < address + size and address < begin + arrival.target.nbytes:
                arrival.show()

    def _show(self, position: int) -> None:
        for arrival in self.arrived(position):
            arrival.show()
        with self._changed:
            self._arrivals = [entry for entry in self._arrivals if not entry[1].seen]

    def _take(self, position: int) -> Op | None:
        with self._changed:
            while self._running and self.completed < position:
                self._changed.wait()
            if self.completed >= position:
                return None
            self._running = True
            return self._pending[0]

    def _finish(self) -> None:
        with self._changed:
            self._pending.popleft()
            self.completed += 1
            self._running = False
            self._changed.notify_all()

    def _give_up(self) -> None:
        with self._changed:
            self._running = False
            self._changed.notify_all()


class Wait(Op):
    """Waits for the work on another stream up to a position."""

    def __init__(self, other: Queue, position: int) -> None:
        self._other = other
        self._position = position

    def advance(self, queue: Queue) -> None:
        """Does that work."""
        if self._other is not queue:
            self._other.run(self._position)

    def run(self, queue: Queue) -> None:
        """Does that work, and passes on what it brought to the host."""
        if self._other is queue:
            return
        self.advance(queue)
        if self._other.device.error is not None:
            raise faults.again(self._other.device.error)
        queue.arrive(self._other.arrived(self._position))


class Mark(Op):
    """Notes the time at which the work before it was done."""

    def __init__(self) -> None:
        self.time: float | None = None

    def run(self, queue: Queue) -> None:
        """Notes it."""
        self.time = time.perf_counter()


class Keep(Op):
    """Keeps something until the work before it is done."""

    def __init__(self, kept: Any) -> None:
        self._kept = kept

    def run(self, queue: Queue) -> None:
        """Lets go of it."""
        self._kept = None


class Free(Op):
    """Gives memory back when the work before it is done."""

    def __init__(self, block: Any, blocks: Any) -> None:
        self._block = block
        self._blocks = blocks

    def run(self, queue: Queue) -> None:
        """Gives it back."""
        self._blocks.remove(self._block)
