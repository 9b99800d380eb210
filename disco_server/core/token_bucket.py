"""A limit on a rate that lets bursts through."""

from __future__ import annotations

__all__ = ["TokenBucket"]


class TokenBucket:
    """Holds tokens, which come back at a steady rate up to a limit.

    Args:
        burst: How many there are at first, and at most.
        rate: How many come back in a second.
        resume_at: Once none is left, none may be taken until so many have come back, so that
            what is limited does not come in tiny pieces.
        now: The present, in seconds of a clock that never goes back.
    """

    def __init__(self, burst: float, rate: float, resume_at: float, now: float) -> None:
        self._burst = burst
        self._rate = rate
        self._resume_at = resume_at
        self._tokens = burst
        self._at = now
        self._spent = False

    def left(self, now: float) -> float:
        """How many tokens may be taken."""
        self._tokens = min(self._burst, self._tokens + self._rate * (now - self._at))
        self._at = now
        if self._spent and self._tokens < self._resume_at:
            return 0.0
        self._spent = False
        return self._tokens

    def take(self, count: float) -> None:
        """Takes tokens, of those that are left."""
        self._tokens -= count
        if self._tokens < 1:
            self._spent = True
