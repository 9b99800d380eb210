"""The last lines that a process printed, for the report of its death."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator

__all__ = ["KEPT_LINES", "LastLines"]

KEPT_LINES = 20
"""How many last lines of output are kept."""

_CRASH = "Fatal Python error: "
_CRASH_LINES = 40


class LastLines:
    """Keeps the end of what a process prints, and of a crash its beginning too.

    Where Python dies of a signal such as SIGSEGV it prints its stack, innermost frame
    first, so of a deep stack the last lines are the ones that say least.
    """

    def __init__(self) -> None:
        self._last: deque[str] = deque(maxlen=KEPT_LINES)
        self._crash: list[str] = []

    def extend(self, lines: Iterable[str]) -> None:
        """Adds what was printed."""
        for line in lines:
            if line.startswith(_CRASH):
                # A later one is the one that counts; user code may have printed the first.
                self._crash = [line]
                self._last.clear()
            elif self._crash and len(self._crash) < _CRASH_LINES:
                self._crash.append(line)
            else:
                self._last.append(line)

    def __iter__(self) -> Iterator[str]:
        yield from self._crash
        yield from self._last
