"""The sessions that wait for slots, and whose turn it is.

A session of a higher class goes before all of a lower one. Within a class owners take turns:
next is the first session of the owner whose sessions hold the fewest slots, in all classes
together; of several owners with as few, the one whose session came first. An owner's sessions
of one class go in the order in which they came.

Two rules keep that from starving anybody within a class. A session whose turn comes while
slots are free, but too few for it, keeps its turn until it is placed or gives up: small sessions
do not overtake a large one for ever. And a session that its owner's quota holds back has no
turn, so that nobody waits behind it. A lower class does wait for as long as a higher one has
sessions whose turn may come; see docs/quotas.md.

Finding the next session costs the logarithm of how many wait, and so does each change; the
order of all is computed once for all that ask, and only after a change.
"""

from __future__ import annotations

import enum
import heapq
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from operator import itemgetter
from typing import Final

from disco_server.core.session_state import Priority, SessionTable

__all__ = ["FairQueue", "QueuePlace", "WaitReason"]


class WaitReason(enum.IntEnum):
    """What a session in the queue waits for; the numbers are those of the wire."""

    NO_SLOTS = 1
    TURN = 2
    HIGHER_CLASS = 3
    OWNER_SLOTS = 4


@dataclass(frozen=True, slots=True)
class QueuePlace:
    """The place of a session in the queue.

    Attributes:
        ahead: How many sessions go first, as things are now.
        why: What it waits for.
        owner_slots: How many slots its owner's sessions hold.
        owner_limit: How many they may hold; 0 for any number.
    """

    ahead: int
    why: WaitReason
    owner_slots: int = 0
    owner_limit: int = 0


_Waiting = OrderedDict[int, tuple[int, SessionTable]]
"""An owner's sessions of one class by id: the number of the arrival, and the session."""

_Entry = tuple[int, int, str]
"""How many slots an owner holds, the arrival of its first session, and the owner."""

_SPARE: Final = 64
"""How many outdated entries a heap may have beyond two for each owner."""


class _Line:
    """The sessions of one class.

    The heap has the present entry of each owner, unless its first session is held back, and
    outdated ones, which are dropped when they come up.
    """

    def __init__(self) -> None:
        self.owners: dict[str, _Waiting] = {}
        self.heap: list[_Entry] = []
        self.turn: SessionTable | None = None

    def enter(self, owner: str, held: Mapping[str, int]) -> None:
        """Notes the present state of an owner, if it has sessions here."""
        waiting = self.owners.get(owner)
        if waiting:
            heapq.heappush(self.heap, _entry(owner, waiting, held))
        if len(self.heap) > 2 * len(self.owners) + _SPARE:
            self.heap = [_entry(each, w, held) for each, w in self.owners.items()]
            heapq.heapify(self.heap)

    def next(
        self, held: Mapping[str, int], may: Callable[[SessionTable], bool]
    ) -> SessionTable | None:
        """The session whose turn it is; None if all are held back, or there are none."""
        if self.turn is not None and may(self.turn):
            return self.turn
        self.turn = None
        while self.heap:
            owner = self.heap[0][2]
            waiting = self.owners.get(owner)
            if waiting and self.heap[0] == _entry(owner, waiting, held):
                session = _first(waiting)
                if may(session):
                    return session
            heapq.heappop(self.heap)
        return None

    def in_order(
        self, held: Mapping[str, int], may: Callable[[SessionTable], bool]
    ) -> tuple[list[SessionTable], list[SessionTable]]:
        """Those that may begin, in the order of their turns, and those that are held back."""
        owners = {owner: list(w.values()) for owner, w in self.owners.items()}
        blocked = {owner for owner, w in owners.items() if not may(w[0][1])}
        late = sorted((e for owner in blocked for e in owners[owner]), key=itemgetter(0))
        holds = {owner: held.get(owner, 0) for owner in owners.keys() - blocked}
        at = dict.fromkeys(holds, 0)
        heap = [(holds[owner], owners[owner][0][0], owner) for owner in holds]
        if self.turn is not None and self.turn.owner_key in holds:
            # Before all others, whatever its owner holds.
            owner = self.turn.owner_key
            heap.append((-1, 0, owner))
            heap.remove((holds[owner], owners[owner][0][0], owner))
        heapq.heapify(heap)
        order: list[SessionTable] = []
        while heap:
            owner = heap[0][2]
            session = owners[owner][at[owner]][1]
            order.append(session)
            at[owner] += 1
            holds[owner] += session.num_workers
            if at[owner] < len(owners[owner]):
                heapq.heapreplace(heap, (holds[owner], owners[owner][at[owner]][0], owner))
            else:
                heapq.heappop(heap)
        return order, [session for _, session in late]


def _first(waiting: _Waiting) -> SessionTable:
    return next(iter(waiting.values()))[1]


def _entry(owner: str, waiting: _Waiting, held: Mapping[str, int]) -> _Entry:
    return held.get(owner, 0), next(iter(waiting.values()))[0], owner


class FairQueue:
    """Waiting sessions, and how many slots the sessions of each owner hold.

    Args:
        slots: How many slots the owner of a session may hold; 0 for any number.
    """

    def __init__(self, slots: Callable[[SessionTable], int]) -> None:
        self._slots = slots
        self._held: Counter[str] = Counter()
        self._lines = {priority: _Line() for priority in sorted(Priority, reverse=True)}
        self._arrivals = 0
        self._waiting: dict[int, SessionTable] = {}
        self._order: dict[int, QueuePlace] | None = None

    def __len__(self) -> int:
        return len(self._waiting)

    def __contains__(self, session_id: int) -> bool:
        return session_id in self._waiting

    def __iter__(self) -> Iterator[SessionTable]:
        return iter(self._waiting.values())

    def held(self, owner: str) -> int:
        """How many slots an owner's sessions hold."""
        return self._held[owner]

    def add(self, session: SessionTable) -> None:
        """Puts a session at the end of its owner's."""
        self._order = None
        self._arrivals += 1
        self._waiting[session.session] = session
        line = self._lines[session.priority]
        waiting = line.owners.setdefault(session.owner_key, _Waiting())
        waiting[session.session] = self._arrivals, session
        if len(waiting) == 1:
            line.enter(session.owner_key, self._held)

    def remove(self, session_id: int) -> None:
        """Takes a session out, because it is placed or has given up; nothing if it is not in."""
        session = self._waiting.pop(session_id, None)
        if session is None:
            return
        self._order = None
        line, owner = self._lines[session.priority], session.owner_key
        if line.turn is session:
            line.turn = None
        waiting = line.owners[owner]
        del waiting[session_id]
        if waiting:
            line.enter(owner, self._held)
        else:
            del line.owners[owner]

    def hold(self, session: SessionTable) -> None:
        """Notes that a session holds its slots from now on."""
        self._change(session.owner_key, session.num_workers)

    def let_go(self, session: SessionTable) -> None:
        """Notes that a session holds its slots no longer."""
        self._change(session.owner_key, -session.num_workers)

    def _change(self, owner: str, slots: int) -> None:
        self._order = None
        self._held[owner] += slots
        if not self._held[owner]:
            del self._held[owner]
        for line in self._lines.values():
            line.enter(owner, self._held)

    def requota(self) -> None:
        """Takes note of other quotas."""
        self._order = None
        for line in self._lines.values():
            for owner in line.owners:
                line.enter(owner, self._held)

    def next(self) -> SessionTable | None:
        """The session whose turn it is; None if no session may begin, however many are free."""
        for line in self._lines.values():
            if (session := line.next(self._held, self._may)) is not None:
                return session
        return None

    def is_held_back(self, session: SessionTable) -> bool:
        """Whether a waiting session, or that of its owner before it, waits for a quota."""
        waiting = self._lines[session.priority].owners[session.owner_key]
        return not self._may(_first(waiting))

    def keep_turn(self, session: SessionTable) -> None:
        """Lets a session that is the next one be the next of its class until it is removed.

        Only a quota takes that from it, and only a higher class goes before it.
        """
        self._order = None
        self._lines[session.priority].turn = session

    def places(self) -> Mapping[int, QueuePlace]:
        """The place of each waiting session by its id, the next one first."""
        if self._order is None:
            self._order = dict(self._places())
        return self._order

    def _places(self) -> Iterable[tuple[int, QueuePlace]]:
        ahead = 0
        held_back: list[SessionTable] = []
        for line in self._lines.values():
            higher = ahead
            turns, late = line.in_order(self._held, self._may)
            held_back += late
            for session in turns:
                why = WaitReason.HIGHER_CLASS if higher else WaitReason.TURN
                yield self._place(session, ahead, why if ahead else WaitReason.NO_SLOTS)
                ahead += 1
        for session in held_back:
            yield self._place(session, ahead, WaitReason.OWNER_SLOTS)
            ahead += 1

    def _place(self, session: SessionTable, ahead: int, why: WaitReason) -> tuple[int, QueuePlace]:
        used, limit = self._held[session.owner_key], self._slots(session)
        return session.session, QueuePlace(ahead, why, used, limit)

    def _may(self, session: SessionTable) -> bool:
        limit = self._slots(session)
        return not limit or self._held[session.owner_key] + session.num_workers <= limit
