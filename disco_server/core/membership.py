"""Which nodes there are, what they offer, and which of them fell silent.

Time is an argument everywhere: seconds of any clock that never goes back.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from disco_client.wording import many
from disco_server.core.placement import FreeSlots, kind_of

__all__ = ["Membership", "Node", "NodeRefused"]


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
        heard: When it last said anything.
        taken: Slot number to the session that holds it.
        cordoned: It takes no new sessions; those that it has go on.
        leaving: It is about to end, and so are its sessions.
        away_since: When its connection broke, until it is back.
        joined: When it came.
    """

    name: str
    devices: tuple[str, ...]
    incarnation: int
    version: str
    host: str
    heard: float
    taken: dict[int, int] = field(default_factory=dict[int, int])
    cordoned: bool = False
    leaving: bool = False
    array_address: str = ""
    host_id: str = ""
    away_since: float | None = None
    joined: float = 0.0

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


class Membership:
    """The nodes of one controller, in their order of arrival.

    Args:
        min_slots: How many slots a node must offer to be let in.
    """

    def __init__(self, min_slots: int = 1) -> None:
        self._min_slots = min_slots
        self.nodes: dict[str, Node] = {}

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
        node.taken, node.joined = former.taken, former.joined
        self.nodes[node.name] = node

    def leave(self, name: str) -> Node | None:
        """Removes a node and returns it."""
        return self.nodes.pop(name, None)

    def heard(self, name: str, now: float) -> None:
        """Notes that a node said something."""
        node = self.nodes.get(name)
        if node is not None:
            node.heard = now

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
        return sum(len(node.free.slots) for node in self.nodes.values())

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
