"""The event loop of daemons, whose time stands still while the process does.

Every timer, timeout and lease in a daemon uses its loop's time. So no peer, client or
worker is charged with the time in which the daemon itself was stopped, suspended or busy,
and did not read their messages.
"""

from __future__ import annotations

import asyncio
import selectors
from typing import Any

from disco_client.transport.run_clock import RunClock

__all__ = ["RunLoop"]


_TURN_S = 0.25
"""The loop turns at least this often, so that a longer turn can be noticed."""

_LONGEST_S = 1.0
"""A turn that takes longer, callbacks included, counts as one in which nothing was read."""


class RunLoop(asyncio.SelectorEventLoop):
    """An event loop whose :meth:`time` counts only while the process runs."""

    def __init__(self) -> None:
        self._clock = RunClock(_LONGEST_S)
        super().__init__(_Turning(self._clock))

    def time(self) -> float:
        """The seconds for which this process has run."""
        return self._clock()


class _Turning(selectors.DefaultSelector):
    """Notifies a clock of each turn of the loop."""

    def __init__(self, clock: RunClock) -> None:
        super().__init__()
        self._clock = clock

    def select(self, timeout: float | None = None) -> list[Any]:
        """Waits until a file is readable or writable, or for the timeout."""
        found = super().select(_TURN_S if timeout is None else min(timeout, _TURN_S))
        self._clock.turn()
        return found
