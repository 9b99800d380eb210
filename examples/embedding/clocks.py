"""How long a rank computes, and how long it is in reductions.

A CPU is done when a call returns. A GPU has hardly begun then: the host would see
how long asking takes. So its own clock is read, by events between the pieces of
work, and waited for only when the times are read.
"""

from __future__ import annotations

import time
from collections import deque
from typing import Any, Protocol

__all__ = ["Clock", "DeviceClock", "HostClock", "clock_for"]


class Clock(Protocol):
    """Measures forward passes, one after the other."""

    def begin(self) -> None:
        """A forward pass begins."""
        ...

    def pause(self) -> None:
        """A reduction begins."""
        ...

    def resume(self) -> None:
        """The reduction is done."""
        ...

    def end(self) -> None:
        """The forward pass ends."""
        ...

    def read(self) -> tuple[float, float]:
        """The seconds so far: in forward passes less reductions, and in reductions."""
        ...


class HostClock:
    """See `Clock`; for work that is done when its call returns."""

    def __init__(self) -> None:
        self._compute = self._collectives = 0.0
        self._started = self._paused = self._waited = 0.0

    def begin(self) -> None:
        """See `Clock.begin`."""
        self._waited = 0.0
        self._started = time.perf_counter()

    def pause(self) -> None:
        """See `Clock.pause`."""
        self._paused = time.perf_counter()

    def resume(self) -> None:
        """See `Clock.resume`."""
        self._waited += time.perf_counter() - self._paused

    def end(self) -> None:
        """See `Clock.end`."""
        self._compute += time.perf_counter() - self._started - self._waited
        self._collectives += self._waited

    def read(self) -> tuple[float, float]:
        """See `Clock.read`."""
        return self._compute, self._collectives


class DeviceClock:
    """See `Clock`; for work on a GPU, in the order of the current stream.

    A pass counts from where the GPU begins with it to where it is done: pauses in
    which the GPU has nothing to do, because the host has not asked yet, count as
    computing. A reduction counts from where this GPU is ready for it.

    Args:
        cuda: The module ``cupy.cuda``.
    """

    def __init__(self, cuda: Any) -> None:
        self._cuda = cuda
        self._compute = self._collectives = 0.0
        self._marks: list[Any] = []
        self._passes: deque[list[Any]] = deque()
        self._spare: list[Any] = []

    def begin(self) -> None:
        """See `Clock.begin`."""
        self._marks = []
        self._mark()

    def pause(self) -> None:
        """See `Clock.pause`."""
        self._mark()

    def resume(self) -> None:
        """See `Clock.resume`."""
        self._mark()

    def end(self) -> None:
        """See `Clock.end`; counts earlier passes that are done by now."""
        self._mark()
        self._passes.append(self._marks)
        while self._passes and self._passes[0][-1].done:
            self._count(self._passes.popleft())

    def read(self) -> tuple[float, float]:
        """See `Clock.read`; waits until the GPU is done with all of them."""
        while self._passes:
            marks = self._passes.popleft()
            marks[-1].synchronize()
            self._count(marks)
        return self._compute, self._collectives

    def _mark(self) -> None:
        event = self._spare.pop() if self._spare else self._cuda.Event()
        event.record(self._cuda.get_current_stream())
        self._marks.append(event)

    def _count(self, marks: list[Any]) -> None:
        between = self._cuda.get_elapsed_time  # milliseconds
        # The first, the last, and between them one before and one after each reduction.
        reduced = sum(
            between(before, after)
            for before, after in zip(marks[1:-1:2], marks[2:-1:2], strict=True)
        )
        self._compute += (between(marks[0], marks[-1]) - reduced) / 1e3
        self._collectives += reduced / 1e3
        self._spare += marks


def clock_for(xp: Any) -> Clock:
    """Chooses for a module of arrays: numpy or cupy."""
    return HostClock() if xp.__name__ == "numpy" else DeviceClock(xp.cuda)
