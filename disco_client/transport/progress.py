"""How far the workers of a session are, the slowest of them in particular."""

from __future__ import annotations

__all__ = ["Progress"]


class Progress:
    """The newest command that each worker is known to have executed.

    Noting one costs the same however many workers there are, where they keep together: the
    slowest are counted, and looked for again only when the last of them has gone on.

    Args:
        count: How many workers there are.
        seq: The command that all of them have executed.

    Attributes:
        each: Of each worker.
        slowest: What all of them have executed.
        fastest: The newest that any of them has.
    """

    def __init__(self, count: int, seq: int) -> None:
        self.each: list[int] = [seq] * count
        self.slowest: int = seq
        self.fastest: int = seq
        self._at_slowest = count

    def note(self, worker: int, seq: int) -> bool:
        """Notes a command of a worker; returns whether the slowest are further now."""
        former = self.each[worker]
        if seq <= former:
            return False
        self.each[worker] = seq
        self.fastest = max(self.fastest, seq)
        if former > self.slowest:
            return False
        self._at_slowest -= 1
        if self._at_slowest:
            return False
        self.slowest = min(self.each)
        self._at_slowest = self.each.count(self.slowest)
        return True
