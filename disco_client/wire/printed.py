"""Detects missing lines of ranks' output: each batch carries the number of lines before it."""

from __future__ import annotations

from collections.abc import Iterable

from disco_client.text import dropped

__all__ = ["LineCounter"]


class LineCounter:
    """Counts the lines of each rank of a session at a receiver.

    Args:
        from_first: Whether it receives them from the first on. Otherwise what a rank
            printed before its first batch here does not count as missing.
    """

    def __init__(self, *, from_first: bool = True) -> None:
        self._from_first = from_first
        self._seen: dict[int, int] = {}

    def seen(self, worker: int) -> int:
        """How many lines a rank has printed, as far as is known here."""
        return self._seen.get(worker, 0)

    def receive(self, worker: int, first: int, lines: Iterable[str]) -> list[str]:
        """Returns the received lines, after one that says how many are missing before them.

        Args:
            worker: The worker that printed them.
            first: How many lines of this worker came before these.
            lines: The lines.
        """
        received = list(lines)
        expected = self._seen.get(worker, 0 if self._from_first else first)
        self._seen[worker] = max(expected, first + len(received))
        return [dropped(first - expected), *received] if first > expected else received
