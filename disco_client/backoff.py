"""Growing pauses between attempts, different for each of many clients that retry at once."""

from __future__ import annotations

import random

__all__ = ["Backoff"]


class Backoff:
    """The pauses between repeated attempts; each is at most twice as long as the last.

    Args:
        shortest: Seconds, of the first pause.
        longest: Seconds, of those after many attempts.
    """

    def __init__(self, shortest: float = 0.1, longest: float = 1.0) -> None:
        self._shortest = self._next = shortest
        self._longest = longest

    def pause(self) -> float:
        """How many seconds to wait now: between half of the current pause and all of it."""
        seconds, self._next = self._next, min(self._next * 2, self._longest)
        return seconds * random.uniform(0.5, 1.0)  # noqa: S311  (no secret)

    def reset(self) -> None:
        """Begins with the shortest pause again, after an attempt that succeeded."""
        self._next = self._shortest
