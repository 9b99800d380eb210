"""How messages for people put things."""

from __future__ import annotations

__all__ = ["many"]


def many(number: int, what: str) -> str:
    """A number of things: ``1 node``, ``2 nodes``."""
    return f"{number} {what}{'s' * (number != 1)}"
