"""The event loop of daemons, whose time stands still while the process does.

Every timer, timeout and lease in a daemon uses its loop's time. So no peer, client or
worker is charged with the time in which the daemon itself was stopped, suspended or busy,
and did not read their messages.

What is written to connections leaves at the end of a turn, with all that was posted in it.
"""

from __future__ import annotations

import asyncio
import math
import selectors
from collections.abc import Callable
from typing import Any

from disco_client.output import logger_of
from disco_client.transport.run_clock import RunClock
from disco_server.settings import DEBUG

__all__ = ["RunLoop", "at_end_of_turn"]


_logger = logger_of("disco")
_TURN_S = 0.25
"""The loop turns at least this often, so that a longer turn can be noticed."""

_LONGEST_S = 1.0
"""A turn that takes longer, callbacks included, counts as one in which nothing was read."""


class RunLoop(asyncio.SelectorEventLoop):
    """An event loop whose :meth:`time` counts only while the process runs.

    With ``DISCO_DEBUG=1`` it refuses what other threads give it to do, but by
    ``call_soon_threadsafe``.
    """

    def __init__(self) -> None:
        self._clock = RunClock(_LONGEST_S)
        self._turning = _Turning(self._clock)
        super().__init__(self._turning)
        self.set_debug(self.get_debug() or DEBUG.value())
        self.slow_callback_duration = math.inf  # how long one takes is no fault

    def time(self) -> float:
        """The seconds for which this process has run."""
        return self._clock()

    def at_end_of_turn(self, callback: Callable[[], object]) -> None:
        """Calls a function once when nothing else is left to do before the loop waits.

        It costs no further turn, as a callback of :meth:`call_soon` does. So what it makes
        ready by that waits for the next event, and at most for the length of a turn.
        """
        self._turning.due.append(callback)


def at_end_of_turn(callback: Callable[[], object]) -> None:
    """Calls a function once at the end of the running loop's turn; of any loop."""
    loop = asyncio.get_running_loop()
    if isinstance(loop, RunLoop):
        loop.at_end_of_turn(callback)
    else:
        loop.call_soon(callback)


class _Turning(selectors.DefaultSelector):
    """Notifies a clock of each turn of the loop."""

    def __init__(self, clock: RunClock) -> None:
        super().__init__()
        self._clock = clock
        self.due: list[Callable[[], object]] = []

    def select(self, timeout: float | None = None) -> list[Any]:
        """Waits until a file is readable or writable, or for the timeout."""
        if self.due:
            due, self.due = self.due, []
            for callback in due:
                try:
                    callback()
                except Exception:
                    _logger.exception("what was due at the end of a turn failed")
        found = super().select(_TURN_S if timeout is None else min(timeout, _TURN_S))
        self._clock.turn()
        return found
