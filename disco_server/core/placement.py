"""Which ranks go to which slots: pure, and the same answer for the same state."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from disco_server.settings import GPU_LIBRARIES

__all__ = ["EvenLayout", "FreeSlots", "NodeShare", "Placer", "kind_for", "kind_of", "place"]


def kind_of(device: str) -> str:
    """The kind of a slot's device: "cpu", "cuda" or "rocm"."""
    return device.partition(":")[0]


def kind_for(ccl: str) -> str:
    """The kind of devices that a collective library needs; empty where any serves."""
    return GPU_LIBRARIES.get(ccl, "")


@dataclass(frozen=True, slots=True)
class FreeSlots:
    """The free slots of one node: (slot number, device) each."""

    node: str
    slots: tuple[tuple[int, str], ...]

    def of_kind(self, kind: str) -> FreeSlots:
        """Those of them whose device is of a kind."""
        return FreeSlots(self.node, tuple(each for each in self.slots if kind_of(each[1]) == kind))


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


Placer: TypeAlias = Callable[[int, Sequence[FreeSlots]], tuple[NodeShare, ...] | None]
"""Places all ranks of a session, or none, as :func:`place` does."""


@dataclass(frozen=True, slots=True)
class EvenLayout:
    """Equally many ranks on each node, for a controller with one session of its own.

    Attributes:
        first: The node that gets the first ranks; the others follow as they came.
        nodes: How many nodes the session has.
        per_node: How many ranks each of them gets; its other slots stay empty.
    """

    first: str
    nodes: int
    per_node: int

    def place(self, num_workers: int, free: Sequence[FreeSlots]) -> tuple[NodeShare, ...] | None:
        """Places the session node by node; None until enough nodes are there."""
        able = [node for node in free if len(node.slots) >= self.per_node]
        able.sort(key=lambda node: node.node != self.first)
        chosen = able[: self.nodes]
        if len(chosen) * self.per_node != num_workers or chosen[0].node != self.first:
            return None
        return tuple(
            _share(node, index * self.per_node, self.per_node) for index, node in enumerate(chosen)
        )


def _share(node: FreeSlots, first: int, count: int) -> NodeShare:
    taken = node.slots[:count]
    return NodeShare(
        node.node,
        tuple(range(first, first + count)),
        tuple(slot for slot, _ in taken),
        tuple(device for _, device in taken),
    )
