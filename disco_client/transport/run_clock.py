"""The time in which a process ran, for timeouts of silent peers.

A process that was stopped, or whose machine was suspended, finds afterwards that it has
received nothing from any peer for a long time. The peers were not silent: their messages
wait unread in its sockets. It cannot detect the standstill directly, only that its own
turns came late; so between two turns at most the longest time of a turn is counted.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Generator

from disco_client.clock import monotonic
from disco_client.reentry import Event
from disco_client.threads import ThreadRefused, start_thread

__all__ = ["RunClock"]


class RunClock:
    """Seconds in which this process ran; goes on with the real time, and never back.

    May be used from several threads.

    Args:
        longest: How many seconds count at most between two turns.
        real: The real time, which never goes back.
    """

    def __init__(self, longest: float, real: Callable[[], float] = monotonic) -> None:
        self._longest = longest
        self._real = real
        now = real()
        self._turned = now, now  # the last turn, in real time and in this one

    def __call__(self) -> float:
        """The time now."""
        real, own = self._turned
        return own + min(self._real() - real, self._longest)

    def turn(self) -> float:
        """The time now, at a turn: a thread that checks for silent peers calls this repeatedly."""
        real, own = self._turned
        now = self._real()
        own += min(now - real, self._longest)
        self._turned = now, own
        return own

    @contextlib.contextmanager
    def turning(self) -> Generator[None]:
        """Turns from a thread of its own while the block runs, whose calls may block for long.

        Where the system starts no thread, only as much counts as the block's own turns show.
        """
        over = Event()

        def turn() -> None:
            while not over.wait(self._longest / 4):
                self.turn()

        self.turn()
        with contextlib.suppress(ThreadRefused):
            start_thread(threading.Thread(target=turn, name="disco-clock", daemon=True))
        try:
            yield
        finally:
            over.set()
