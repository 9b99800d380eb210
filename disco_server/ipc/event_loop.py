"""The event loop of daemons, whose time stands still while they do.

Every timer, timeout and lease in a daemon goes by its loop's time. So whatever a daemon
judges, no peer, client or worker is charged with the time in which the daemon itself was
stopped, suspended or busy, and did not read what they said.
"""

from __future__ import annotations

import asyncio
import selectors
from typing import Any

from disco_client.transport.run_clock import RunClock

__all__ = ["RunLoop"]


_TURN_S = 0.25
"""The loop turns at least so often, that it may notice when it does not."""

_LONGEST_S = 1.0
"""A turn that takes longer, with all that it calls, is one in which nothing was read."""


class RunLoop(asyncio.SelectorEventLoop):
    """Its :meth:`time` is that in which the process ran."""

    def __init__(self) -> None:
        self._clock = RunClock(_LONGEST_S)
        super().__init__(_Turning(self._clock))

    def time(self) -> float:
        """Seconds in which this process ran."""
        return self._clock()


class _Turning(selectors.DefaultSelector):
    """Tells a clock of each turn."""

    def __init__(self, clock: RunClock) -> None:
        super().__init__()
        self._clock = clock

    def select(self, timeout: float | None = None) -> list[Any]:
        """Waits for what may be read and written, for a while."""
        found = super().select(_TURN_S if timeout is None else min(timeout, _TURN_S))
        self._clock.turn()
        return found
