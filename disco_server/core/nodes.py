"""Which nodes there are, what they offer, and which of them fell silent.

Time is an argument everywhere: seconds in which the controller ran.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from disco_client.text import beginning_with, many, natural, some
from disco_client.wire.limits import WINDOW_COMMANDS
from disco_server.core.load import Load, LoadHistory
from disco_server.settings import GPU_LIBRARIES

__all__ = [
    "EvenLayout",
    "FreeSlots",
    "Membership",
    "Node",
    "NodeRefused",
    "NodeShare",
    "Placer",
    "kind_for",
    "kind_of",
    "place",
]


# Which ranks go to which slots: pure, and the same answer for the same state.


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
        numbered: Whether the others follow by the numbers at the ends of their names instead.
    """

    first: str
    nodes: int
    per_node: int
    numbered: bool = False

    def place(self, num_workers: int, free: Sequence[FreeSlots]) -> tuple[NodeShare, ...] | None:
        """Places the session node by node; None until enough nodes are there."""
        able = [node for node in free if len(node.slots) >= self.per_node]
        if self.numbered:
            able.sort(key=lambda node: int(node.node.rpartition("-")[2]))
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


class NodeRefused(Exception):
    """A node cannot join; the message says why and what to do."""


@dataclass(slots=True)
class Node:
    """One worker daemon.

    Attributes:
        name: Unique in the cluster.
        devices: The device of each slot.
        incarnation: Made anew at each start of the daemon.
        version: Its release.
        host: The machine's name.
        host_id: The same for daemons whose ranks can share memory.
        array_address: Where it serves arrays to clients; may be empty.
        heard: When its last message arrived.
        taken: Slot number to the session that holds it.
        cordoned: It takes no new sessions; those that it has go on.
        drained: Who wanted that, and why, where an administrator did.
        leaving: It is about to end, and so are its sessions.
        away_since: When its connection broke, until it is back.
        joined: When it came.
        round_trip: How many seconds its newest answer to the controller took; 0 for unknown.
        carrier: What carries its stream: ``frames`` or ``grpc``.
        load: What its machine did in the last hour.
        window: How many commands of a session it takes that its ranks have not executed.
    """

    name: str
    devices: tuple[str, ...]
    incarnation: int
    version: str
    host: str
    heard: float
    taken: dict[int, int] = field(default_factory=dict[int, int])
    cordoned: bool = False
    drained: str = ""
    leaving: bool = False
    array_address: str = ""
    host_id: str = ""
    away_since: float | None = None
    joined: float = 0.0
    round_trip: float = 0.0
    carrier: str = ""
    load: LoadHistory = field(default_factory=LoadHistory)
    window: int = WINDOW_COMMANDS

    @property
    def draining(self) -> bool:
        """Whether it takes no new sessions."""
        return self.cordoned or self.leaving

    @property
    def state(self) -> str:
        """Whether it takes sessions, in a word: ``ready``, ``draining`` or ``away``."""
        if self.away_since is not None:
            return "away"
        return "draining" if self.draining else "ready"

    @property
    def slots(self) -> FreeSlots:
        """All its slots, as if no session held any."""
        return FreeSlots(self.name, tuple(enumerate(self.devices)))

    @property
    def free(self) -> FreeSlots:
        """The slots that no session holds."""
        if self.draining or self.away_since is not None:
            return FreeSlots(self.name, ())
        return FreeSlots(
            self.name,
            tuple((i, dev) for i, dev in enumerate(self.devices) if i not in self.taken),
        )

    @property
    def num_free(self) -> int:
        """How many they are."""
        if self.draining or self.away_since is not None:
            return 0
        return len(self.devices) - len(self.taken)


class Membership:
    """The nodes of one controller, in their order of arrival.

    Args:
        min_slots: How many slots a node must offer to be let in.

    Attributes:
        nodes: They, by name.
        drained: Who drained which node, and why, by the node's name, and empty for one where
            that was undone. Also of those that are not here: a daemon that is started again,
            or was not connected, is told.
    """

    def __init__(self, min_slots: int = 1) -> None:
        self._min_slots = min_slots
        self.nodes: dict[str, Node] = {}
        self.drained: dict[str, str] = {}

    def join(self, node: Node) -> None:
        """Adds a node.

        Raises:
            NodeRefused: It offers too little, or another live daemon has its name.
        """
        if len(node.devices) < self._min_slots:
            msg = (
                f"expected a node with at least {many(self._min_slots, 'slot')}, "
                f"got {len(node.devices)}; see --slots and --devices"
            )
            raise NodeRefused(msg)
        known = self.nodes.get(node.name)
        if known is not None:
            msg = (
                f"a node named {node.name!r} is connected already (from {known.host}); "
                "start this daemon with another --name"
            )
            raise NodeRefused(msg)
        self.nodes[node.name] = node

    def replace(self, node: Node) -> None:
        """Puts a node in the place of the same daemon, which has come back."""
        former = self.nodes[node.name]
        node.taken, node.joined, node.round_trip = former.taken, former.joined, former.round_trip
        node.load = former.load
        self.nodes[node.name] = node

    def find(self, name: str) -> str:
        """Finds a node, or one that was drained and is not here, by a beginning of its name.

        Returns:
            Its name.

        Raises:
            LookupError: There is none, or several; the text says which there are.
        """
        known = dict.fromkeys((*self.nodes, *(each for each, why in self.drained.items() if why)))
        found = [name] if name in known else beginning_with(known, name)
        if len(found) == 1:
            return found[0]
        shown = some(sorted(found or known, key=natural)) or "none"
        if found:
            raise LookupError(f"expected one node, got {name!r}, with which several begin: {shown}")
        raise LookupError(f"expected a node, got {name!r}; there are: {shown}")

    def leave(self, name: str) -> Node | None:
        """Removes a node and returns it."""
        return self.nodes.pop(name, None)

    def heard(self, name: str, now: float) -> None:
        """Notes that a message from a node has arrived."""
        node = self.nodes.get(name)
        if node is not None:
            node.heard = now

    def sampled(self, name: str, now: float, sample: Load) -> None:
        """Keeps what the machine of a node did."""
        node = self.nodes.get(name)
        if node is not None:
            node.load.add(now, sample)

    def silent(self, now: float, lease: float) -> list[str]:
        """Names the nodes not heard of for longer than ``lease`` seconds."""
        return [
            name
            for name, node in self.nodes.items()
            if node.away_since is None and now - node.heard > lease
        ]

    @property
    def total_slots(self) -> int:
        """The slots of all nodes that take sessions."""
        return sum(len(node.devices) for node in self.nodes.values() if not node.draining)

    @property
    def free_slots(self) -> int:
        """Those of them that no session holds."""
        return sum(node.num_free for node in self.nodes.values())

    @property
    def slots_by_kind(self) -> dict[str, int]:
        """How many slots there are with each kind of device, in the order of arrival."""
        counts: dict[str, int] = {}
        for node in self.nodes.values():
            for device in () if node.draining else node.devices:
                counts[kind_of(device)] = counts.get(kind_of(device), 0) + 1
        return counts

    def take(self, session: int, node: str, slots: tuple[int, ...]) -> None:
        """Gives slots of a node to a session."""
        for slot in slots:
            self.nodes[node].taken[slot] = session

    def give_back(self, session: int, node: str) -> None:
        """Frees a session's slots on a node."""
        known = self.nodes.get(node)
        if known is not None:
            known.taken = {slot: s for slot, s in known.taken.items() if s != session}
