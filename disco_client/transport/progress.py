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

    def knows(self, worker: int, seq: int) -> bool:
        """Whether noting a command of a worker would change nothing."""
        return seq <= self.each[worker] and self._at_slowest > 0

    def note(self, worker: int, seq: int) -> bool:
        """Notes a command of a worker; returns whether the slowest are further now.

        A call that an exception interrupts may be repeated.
        """
        former = self.each[worker]
        if seq > former:
            # Without a call, between which an exception may come.
            self.each[worker] = seq
            if seq > self.fastest:  # noqa: PLR1730  (max() is a call)
                self.fastest = seq
            if former <= self.slowest:
                self._at_slowest -= 1
        if self._at_slowest > 0:
            return False
        slowest = min(self.each)
        count = self.each.count(slowest)
        self.slowest = slowest
        self._at_slowest = count
        return True
