"""The version of the protocol, and what two versions say to each other."""

from __future__ import annotations

__all__ = ["PROTOCOL", "mismatch"]

PROTOCOL = 2
"""Raised by one whenever a peer of the former version would misunderstand."""


def mismatch(mine: str, my_protocol: int, theirs: str, their_protocol: int) -> str | None:
    """Says why two peers cannot talk, or None when they can.

    Args:
        mine: The side that judges, with its release: ``"controller 0.1.0"``.
        my_protocol: The protocol it speaks.
        theirs: The other side, likewise.
        their_protocol: The protocol that the other side speaks.
    """
    if my_protocol == their_protocol:
        return None
    older = mine if my_protocol < their_protocol else theirs
    return (
        f"{mine} speaks protocol {my_protocol}, {theirs} speaks protocol {their_protocol}; "
        f"upgrade the {older.split()[0]} so that both are the same"
    )
