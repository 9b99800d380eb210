"""Which ranks go to which slots: pure, and the same answer for the same state."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["FreeSlots", "NodeShare", "place"]


@dataclass(frozen=True, slots=True)
class FreeSlots:
    """The free slots of one node: (slot number, device) each."""

    node: str
    slots: tuple[tuple[int, str], ...]


@dataclass(frozen=True, slots=True)
class NodeShare:
    """The ranks of one session on one node, with their slots and devices."""

    node: str
    workers: tuple[int, ...]
    slots: tuple[int, ...]
    devices: tuple[str, ...]


def place(num_workers: int, free: Sequence[FreeSlots]) -> tuple[NodeShare, ...] | None:
    """Places all ranks of a session, or none.

    Consecutive ranks fill a node before the next begins, so that neighbours, and
    with them the groups, share a machine where they can. A node that has room
    for the whole session is preferred to splitting it.

    Args:
        num_workers: How many slots are needed.
        free: The nodes in their order of arrival.

    Returns:
        One share for each node used, in rank order; None when there is no room.
    """
    for node in free:
        if len(node.slots) >= num_workers:
            return (_share(node, 0, num_workers),)
    if sum(len(node.slots) for node in free) < num_workers:
        return None
    shares: list[NodeShare] = []
    placed = 0
    for node in free:
        count = min(len(node.slots), num_workers - placed)
        if count:
            shares.append(_share(node, placed, count))
            placed += count
    return tuple(shares)


def _share(node: FreeSlots, first: int, count: int) -> NodeShare:
    taken = node.slots[:count]
    return NodeShare(
        node.node,
        tuple(range(first, first + count)),
        tuple(slot for slot, _ in taken),
        tuple(device for _, device in taken),
    )
