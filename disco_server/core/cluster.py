"""Every decision of a controller: events in, effects out.

No I/O, clock or randomness here: time and ids are arguments, and what should
happen comes back as a list of effects for the daemon to carry out in order.

``now`` is everywhere the time in which the controller ran: where it stood still, ``now``
did too, so that no lease or silence is counted while it read nothing.
"""

from __future__ import annotations

import functools
import math
from collections import Counter, OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from disco_client.errors import describe_exit, describe_worker_end
from disco_client.text import ids_beginning_with, many, natural, some
from disco_server.core.access import EVERYBODY, Identity
from disco_server.core.fair_queue import FairQueue, QueuePlace
from disco_server.core.lifetime import LimitStep, limit_of, next_step, note_quiet
from disco_server.core.nodes import (
    FreeSlots,
    Membership,
    Node,
    NodeShare,
    Placer,
    kind_for,
    kind_of,
    place,
)
from disco_server.core.quotas import DEFAULT_LIMITS, SessionLimits
from disco_server.core.session_state import (
    End,
    EndReason,
    SessionEvent,
    SessionState,
    SessionTable,
)

__all__ = [
    "LATELY_S",
    "AskIfQuiet",
    "Cluster",
    "CordonNode",
    "DropNode",
    "Effect",
    "EndOnNode",
    "Rejoined",
    "SessionGone",
    "StartSession",
    "TellDraining",
    "TellEnded",
    "TellExpiring",
    "TellQueued",
    "TellReady",
    "no_room",
]


# What a controller should do about something that happened, in the order of a list.


@dataclass(frozen=True, slots=True)
class StartSession:
    """Start the session's ranks on all its nodes."""

    session: SessionTable


@dataclass(frozen=True, slots=True)
class EndOnNode:
    """End the session's ranks on this node."""

    node: str
    session: int


@dataclass(frozen=True, slots=True)
class TellQueued:
    """Tell the client what it waits for."""

    session: SessionTable
    place: QueuePlace


@dataclass(frozen=True, slots=True)
class TellReady:
    """Tell the client that every rank runs."""

    session: SessionTable


@dataclass(frozen=True, slots=True)
class TellDraining:
    """Tell the client which of the session's nodes take no new sessions, or that one does again."""

    session: SessionTable
    again: str = ""


@dataclass(frozen=True, slots=True)
class CordonNode:
    """Tell a daemon that it is drained, and why, or with nothing that it is not any more."""

    node: str
    drained: str


@dataclass(frozen=True, slots=True)
class AskIfQuiet:
    """Ask the session's nodes since when no rank has run a command."""

    session: SessionTable


@dataclass(frozen=True, slots=True)
class TellExpiring:
    """Tell the client when a limit ends the session; with no reason, that none will soon."""

    session: SessionTable
    reason: EndReason | None
    seconds: float
    limit_s: float


@dataclass(frozen=True, slots=True)
class TellEnded:
    """Tell the client that the session is over; its exchange fails too."""

    session: SessionTable
    end: End


@dataclass(frozen=True, slots=True)
class DropNode:
    """Close the stream of a node that fell silent."""

    node: str
    message: str


@dataclass(frozen=True, slots=True)
class Rejoined:
    """A node that runs ranks of the session is connected again; use its new stream."""

    session: SessionTable
    node: str


@dataclass(frozen=True, slots=True)
class SessionGone:
    """Nothing is left of the session; forget it."""

    session: int


Effect: TypeAlias = (
    StartSession
    | EndOnNode
    | TellQueued
    | TellReady
    | TellDraining
    | AskIfQuiet
    | TellExpiring
    | CordonNode
    | TellEnded
    | DropNode
    | Rejoined
    | SessionGone
)


# Why a session has no room, and what to do about it: a text for the session's client.


def no_room(
    asked: SessionTable,
    members: Membership,
    sessions: Iterable[SessionTable],
    now: float,
    *,
    never: bool,
) -> str:
    """Says how many slots there are, which sessions hold them, and how to go on.

    Args:
        asked: The session that has none.
        members: The nodes.
        sessions: Those that may hold slots.
        now: The time.
        never: Whether it would not fit although all slots were free, and no others come.
    """
    kinds, wanted = members.slots_by_kind, kind_for(asked.ccl)
    by_kind = ", ".join(f"{count} {kind}" for kind, count in kinds.items())
    what = f"{f'{wanted} ' * bool(wanted)}workers"
    there = (
        f"the cluster has {many(members.total_slots, 'slot')}"
        f"{f' ({by_kind})' * (bool(wanted) or len(kinds) > 1)} on "
        f"{many(len(members.nodes), 'node')}"
    )
    text = f"no room for {asked.num_workers} {what}"
    if never:
        more = _go_on(asked, members, "start it with more nodes or slots")
        return f"{text}: {there}, and there will be no others; {more}"
    text += f" in time: {there}, {members.free_slots} of them free"
    held = [
        f"{each.name!r} holds {each.num_workers} ({each.owner}{_away(each, now)})"
        for each in sessions
        if each.shares and each is not asked
    ]
    if held:
        text += f"; session {some(held)}"
    return f"{text}{_draining(members)}; {_go_on(asked, members, 'add nodes or slots')}"


def _draining(members: Membership) -> str:
    """Says which nodes take no sessions, and who wanted that."""
    told: list[str] = []
    for name in sorted((n.name for n in members.nodes.values() if n.draining), key=natural):
        node = members.nodes[name]
        why = f" ({node.drained})" * bool(node.drained)
        told.append(f"node {name!r} drains with {many(len(node.devices), 'slot')}{why}")
    return f"; {some(told)}" if told else ""


def _go_on(asked: SessionTable, members: Membership, more: str) -> str:
    kinds, wanted = members.slots_by_kind, kind_for(asked.ccl)
    most = kinds.get(wanted, 0) if wanted else max(kinds.values(), default=0)
    if not members.nodes:
        return "start a worker daemon: disco-worker --controller HOST:PORT"
    if most < asked.num_workers and any(node.draining for node in members.nodes.values()):
        more = f"{more}, or let a node take sessions again (disco drain NODE --undo),"
    if most >= asked.num_workers:
        return "wait longer (timeout=...) or end a session"
    if wanted:
        return f"{more} with --devices {wanted}, ask for fewer, or leave out ccl"
    one_kind = " (those of one session have devices of one kind)" if len(kinds) > 1 else ""
    return f"{more}, or ask for fewer workers{one_kind}"


def _held_by_lost(sessions: Iterable[SessionTable], now: float) -> str:
    """Says which sessions whose programs are away hold slots, and for how long at most."""
    told: list[str] = []
    for each in sessions:
        if (left := each.lease_left(now)) is not None:
            # In steps: what is told again and again is shown where it has changed.
            left = min(each.patience, math.ceil(left / _STEP_S) * _STEP_S)
            why = "is detached" if each.detached else "has lost its program"
            told.append(f"session {each.name!r} {why}, its slots are free in at most {left:g} s")
    return some(told) if told else ""


def _away(session: SessionTable, now: float) -> str:
    """Says for how long a session whose program is away still holds its slots."""
    if session.state is not SessionState.DETACHED:
        return ""
    return f", which is away; free in {max(0.0, session.deadline - now):.0f} s unless it comes back"


_STEP_S = 10.0

LATELY_S = 600.0
"""For how many seconds lists still have a session that has ended."""

_RETURN_TRIPS = 9
"""How often a message crosses a link and back until a node is back: to notice; for TCP, TLS
and HTTP/2; for a connection of frames to be admitted, made, encrypted and begun; to register."""

_TOLD_AT_ONCE = 64
"""In a longer queue those that come are told their places together, with the next tick."""

_REMEMBERED = 1024
"""How many sessions that are gone are remembered."""


class Cluster:
    """Nodes and sessions of one controller.

    Args:
        session_lease: Seconds that a session outlives its client's connection.
        node_lease: Seconds of silence after which a node counts as lost.
        placer: Decides which ranks go where.
        min_slots: How many slots a node must offer to be let in.
        node_return: Seconds in which a node whose connection broke may come back; what
            its link takes for that is added.
        limits: How many sessions there may be, and how large.
        expect_nodes: How many nodes there will ever be; 0 if unknown.

    Attributes:
        limits: The same.
        members: The nodes.
        sessions: Those that are not gone, by id.
        queue: Those of them that wait for slots.
        over: The latest of those that are gone, for requests about them.
        draining: Whether nothing new begins.
    """

    def __init__(
        self,
        session_lease: float,
        node_lease: float,
        *,
        placer: Placer = place,
        min_slots: int = 1,
        node_return: float = 2.0,
        limits: SessionLimits = DEFAULT_LIMITS,
        expect_nodes: int = 0,
    ) -> None:
        self._place = placer
        self._expect_nodes = expect_nodes
        self.limits = limits
        self._owned: dict[str, dict[int, SessionTable]] = {}
        self._node_return = node_return
        self._session_lease = session_lease
        self._node_lease = node_lease
        self.members = Membership(min_slots)
        self.sessions: dict[int, SessionTable] = {}
        self.over: OrderedDict[int, SessionTable] = OrderedDict()
        self.queue = FairQueue(self._slots_of)
        self._untold: list[SessionTable] = []
        self.draining = False

    def _slots_of(self, session: SessionTable) -> int:
        """How many slots its owner may hold; the limits may be replaced by others."""
        return self.limits.slots(session)

    # Nodes ---------------------------------------------------------------------

    def node_joined(
        self, node: Node, runs: Sequence[SessionTable] = (), now: float = 0.0
    ) -> list[Effect]:
        """A daemon registered, for the first time or again.

        Args:
            node: What it offers.
            runs: The sessions that it runs, as it knows them: this controller may have
                been started after them.
            now: The time.

        Raises:
            NodeRefused: It may not join.
        """
        known = self.members.nodes.get(node.name)
        effects: list[Effect] = []
        if known is not None and known.incarnation == node.incarnation:
            self.members.replace(node)
            effects += self._missing_after_return(node.name, {run.session for run in runs})
        else:
            if known is not None and known.away_since is not None:
                effects += self.node_left(node.name, "its daemon was started again")
            self.members.join(node)
        for run in runs:
            effects += self._recall(node.name, run, now)
        effects += self._agree_on_drain(node)
        if node.cordoned:
            effects += self._tell_draining(node.name)
        return effects + self._place_waiting()

    def _agree_on_drain(self, node: Node) -> list[Effect]:
        """What a daemon says of its drain counts only where this controller knows nothing of it."""
        said, known = node.drained, self.members.drained.get(node.name)
        if known is None:
            if said:  # an earlier controller told it
                self.members.drained[node.name] = said
            return []
        if known == said:
            return []
        # What it takes upon itself stays, unless an administrator undid that with the rest.
        node.cordoned, node.drained = bool(known) or (node.cordoned and not said), known
        return [CordonNode(node.name, known)]

    def _missing_after_return(self, name: str, runs: set[int]) -> list[Effect]:
        """Ends sessions whose ranks a node has ended while it was disconnected."""
        message = f"node {name!r} ended its workers while it had no connection"
        end = End(EndReason.NODE_LOST, message, node=name)
        effects: list[Effect] = []
        for session in list(self.sessions.values()):
            if session.session in runs or not session.runs_on(name):
                continue
            if session.alive:
                effects += self.end(session.session, end)
            if session.state is SessionState.ENDING:
                effects += self.gone_on_node(session.session, name)
        return effects

    def _recall(self, name: str, run: SessionTable, now: float) -> list[Effect]:
        """Takes over a session that a node runs, or ends it there."""
        session = self.sessions.get(run.session)
        if session is None and (run.session in self.over or self.draining):
            return [EndOnNode(name, run.session)]
        if session is None:
            session = run
            self._note(session)
            self.queue.hold(session)
            session.deadline = now + self._node_lease
            session.waiting_for = set(run.nodes)
        if not session.alive or not session.runs_on(name):
            return [EndOnNode(name, run.session)]
        for share in session.shares:
            if share.node == name:
                self.members.take(session.session, name, share.slots)
        session.ranks.update(run.ranks)
        if session.state is SessionState.RETURNING:
            session.waiting_for.discard(name)
            if not session.waiting_for:
                session.step(SessionEvent.READY)
                session.deadline, session.patience = now + session.lease, session.lease
        return [Rejoined(session, name)]

    def node_away(self, name: str, now: float) -> list[Effect]:
        """A daemon's stream broke, and the daemon did not leave: it may reconnect soon."""
        node = self.members.nodes.get(name)
        if node is None:
            return []
        if node.leaving or not any(s.runs_on(name) for s in self.sessions.values()):
            return self.node_left(name, "its connection closed")
        node.away_since = now
        message = f"lost node {name!r}: its connection closed while workers were started"
        starting = [s for s in self.sessions.values() if s.state is SessionState.STARTING]
        return self._end_all_on(name, End(EndReason.NODE_LOST, message, node=name), starting)

    def node_heard(self, name: str, now: float) -> None:
        """A message from a daemon has arrived."""
        self.members.heard(name, now)

    def node_answered(self, name: str, seconds: float) -> None:
        """A daemon has answered a heartbeat, so many seconds after it was sent."""
        node = self.members.nodes.get(name)
        if node is not None:
            node.round_trip = seconds

    def node_cordoned(self, name: str) -> list[Effect]:
        """A daemon wants no new sessions; its running ones go on."""
        node = self.members.nodes.get(name)
        if node is None:
            return []
        node.cordoned = True
        return self._tell_draining(name)

    def node_drained(self, name: str, why: str) -> list[Effect]:
        """An administrator lets a node take no new sessions; its daemon may start again meanwhile.

        Args:
            name: The node, which need not be connected.
            why: Who wants that, and why.
        """
        self.members.drained[name] = why
        node = self.members.nodes.get(name)
        if node is None:
            return []
        node.cordoned, node.drained = True, why
        return [CordonNode(name, why), *self._tell_draining(name)]

    def node_undrained(self, name: str) -> list[Effect]:
        """An administrator lets a node take sessions again, whoever has let it take none."""
        self.members.drained[name] = ""
        node = self.members.nodes.get(name)
        if node is None or not node.cordoned:
            return []
        node.cordoned, node.drained = False, ""
        return [
            CordonNode(name, ""),
            *self._tell_draining(name, again=True),
            *self._place_waiting(),
        ]

    def _tell_draining(self, name: str, *, again: bool = False) -> list[Effect]:
        running = (s for s in self.sessions.values() if s.alive and s.runs_on(name) and s.ranks)
        return [TellDraining(session, name * again) for session in running]

    def draining_ranks(self, session: SessionTable) -> list[int]:
        """The first rank of each of a session's nodes that takes no new sessions."""
        first: dict[str, int] = {}
        for worker, node, *_ in sorted(session.ranks.values()):
            first.setdefault(node, worker)
        nodes = self.members.nodes
        return [worker for node, worker in first.items() if node in nodes and nodes[node].draining]

    def node_leaving(self, name: str) -> list[Effect]:
        """A daemon is about to leave: no new sessions, its running ones end."""
        node = self.members.nodes.get(name)
        if node is None:
            return []
        node.leaving = True
        message = f"node {name!r} is shutting down"
        return self._end_all_on(name, End(EndReason.NODE_LOST, message, node=name))

    def node_left(self, name: str, why: str) -> list[Effect]:
        """A daemon's stream closed; its ranks are gone or out of reach."""
        if self.members.leave(name) is None:
            return []
        message = f"lost node {name!r}: {why}"
        effects = self._end_all_on(name, End(EndReason.NODE_LOST, message, node=name))
        for session in list(self.sessions.values()):
            if session.state is SessionState.ENDING and name in session.waiting_for:
                effects += self.gone_on_node(session.session, name)
        return effects + self._place_waiting()

    def _end_all_on(
        self, name: str, end: End, sessions: Sequence[SessionTable] | None = None
    ) -> list[Effect]:
        effects: list[Effect] = []
        for session in list(self.sessions.values()) if sessions is None else sessions:
            if session.alive and session.runs_on(name):
                effects += self.end(session.session, end)
        return effects

    # Sessions -------------------------------------------------------------------

    def requested(self, session: SessionTable) -> list[Effect]:
        """A client asked for a session."""
        own = self._note(session)
        session.lease = self._session_lease
        if self.draining:
            message = "the controller is shutting down and takes no new sessions"
            return self.end(session.session, End(EndReason.DRAINED, message))
        if (end := self.limits.refusal(session, len(self.sessions), own.values())) is not None:
            return self.end(session.session, end)
        self.queue.add(session)
        effects = self._place_waiting()
        if session.state is SessionState.QUEUED:
            self._untold.append(session)
            if len(self.queue) <= _TOLD_AT_ONCE:
                effects += self._tell_new()
        return effects

    def _note(self, session: SessionTable) -> dict[int, SessionTable]:
        """Notes a new session; returns those of its owner."""
        self.sessions[session.session] = session
        own = self._owned.setdefault(session.owner_key, {})
        own[session.session] = session
        return own

    def _disown(self, session: SessionTable) -> None:
        own = self._owned[session.owner_key]
        del own[session.session]
        if not own:
            del self._owned[session.owner_key]

    def _holding(self, owner: str) -> list[SessionTable]:
        """The sessions of an owner that hold slots."""
        return [each for each in self._owned.get(owner, {}).values() if each.shares]

    def limit(self, limits: SessionLimits) -> list[Effect]:
        """Other limits hold from now on, also for those that wait and for those that run."""
        self.limits = limits
        self.queue.requota()
        holding = functools.cache(self._holding)
        beyond = [
            (each, limits.slots_refusal(each, holding(each.owner_key), never=True))
            for each in self.queue
            if 0 < limits.slots(each) < each.num_workers
        ]
        return self._end_waiting(beyond) or self._place_waiting()

    def _place_waiting(self) -> list[Effect]:
        """Places waiting sessions whose turn it is, until one does not fit."""
        effects: list[Effect] = []
        while not self.draining and (session := self.queue.next()) is not None:
            shares = self._find_place(session)
            if shares is None:
                if self.members.free_slots:
                    self.queue.keep_turn(session)
                break
            self.queue.remove(session.session)
            session.num_workers = sum(len(share.workers) for share in shares)
            self.queue.hold(session)
            session.step(SessionEvent.PLACE)
            session.shares = shares
            session.waiting_for = set(session.nodes)
            for share in shares:
                self.members.take(session.session, share.node, share.slots)
            effects.append(StartSession(session))
        return effects

    def _find_place(self, session: SessionTable) -> tuple[NodeShare, ...] | None:
        """Finds slots for a session, all with devices of one kind; None for no room now."""
        free = [node.free for node in self.members.nodes.values()]
        if session.most_workers <= session.num_workers:
            return self._fit(session, session.num_workers, free)
        wish = session.most_workers
        if limit := self._slots_of(session):
            wish = min(wish, limit - self.queue.held(session.owner_key))
        there = Counter(kind_of(device) for node in free for _, device in node.slots)
        wanted = kind_for(session.ccl)
        most = min(wish, there[wanted] if wanted else max(there.values(), default=0))
        if most < wish and any(s.state is SessionState.ENDING for s in self.sessions.values()):
            return None  # their slots may be enough for more, and are free soon
        count = most - most % session.num_groups
        return self._fit(session, count, free) if count >= session.num_workers else None

    def _will_never_fit(self, session: SessionTable) -> bool:
        """Whether all nodes are there, and have too few slots even if all were free."""
        nodes = self.members.nodes.values()
        if not 0 < self._expect_nodes <= len(nodes):
            return False
        return self._fit(session, session.num_workers, [node.slots for node in nodes]) is None

    def _fit(
        self, session: SessionTable, num_workers: int, free: Sequence[FreeSlots]
    ) -> tuple[NodeShare, ...] | None:
        wanted = kind_for(session.ccl)
        kinds = dict.fromkeys(kind_of(device) for node in free for _, device in node.slots)
        for kind in [wanted] if wanted else kinds:
            shares = self._place(num_workers, [each.of_kind(kind) for each in free])
            if shares is not None:
                return shares
        return None

    def tell_queue(self) -> list[Effect]:
        """Tells every waiting session its place.

        Changes are not told one by one: of a thousand that wait, each would be told of a
        thousand.
        """
        self._untold.clear()
        places = self.queue.places()
        return [TellQueued(self.sessions[each], place) for each, place in places.items()]

    def _tell_new(self) -> list[Effect]:
        """Tells those their place that have come since this was called last."""
        untold, self._untold = self._untold, []
        new = [session for session in untold if session.session in self.queue]
        if not new:
            return []
        places = self.queue.places()
        return [TellQueued(session, places[session.session]) for session in new]

    def ready_on_node(
        self, session_id: int, node: str, ranks: list[tuple[int, str, int, str]]
    ) -> list[Effect]:
        """A node has started its ranks of a session: (worker, node, pid, device) each."""
        session = self.sessions.get(session_id)
        if session is None or session.state is not SessionState.STARTING:
            return []
        session.waiting_for.discard(node)
        session.ranks.update((rank[0], rank) for rank in ranks)
        if session.waiting_for:
            return []
        session.step(SessionEvent.READY)
        session.activity.acted = True
        return [TellReady(session)]

    def rank_exited(
        self,
        session_id: int,
        node: str,
        worker: int,
        status: int,
        output: tuple[str, ...],
        *,
        at_start: bool,
        cause: str = "",
    ) -> list[Effect]:
        """A rank process of a live session ended by itself; the cause says why, if known."""
        session = self.sessions.get(session_id)
        if session is None or not session.alive:
            return []
        how = cause or describe_exit(status)
        message = describe_worker_end(worker, how, session.name, node, at_start=at_start)
        reason = EndReason.START_FAILED if at_start else EndReason.RANK_LOST
        return self.end(session_id, End(reason, message, worker, node, status, output))

    def end(self, session_id: int, end: End) -> list[Effect]:
        """Ends a session, whatever state it is in."""
        session = self.sessions.get(session_id)
        if session is None or not session.alive:
            return []
        if session.state is SessionState.QUEUED:
            return self._end_waiting([(session, end)])
        session.end = end
        session.step(SessionEvent.END)
        effects: list[Effect] = [TellEnded(session, end)]
        session.waiting_for = set(session.nodes)
        members = self.members.nodes
        effects += [EndOnNode(s.node, session_id) for s in session.shares if s.node in members]
        for share in session.shares:
            if share.node not in members:
                effects += self.gone_on_node(session_id, share.node)
        return effects

    def gone_on_node(self, session_id: int, node: str) -> list[Effect]:
        """No process of an ended session is left on a node."""
        session = self.sessions.get(session_id)
        if session is None or session.state is not SessionState.ENDING:
            return []
        self.members.give_back(session_id, node)
        session.waiting_for.discard(node)
        effects: list[Effect] = []
        if not session.waiting_for:
            session.step(SessionEvent.GONE)
            effects += self._forget(session)
        return effects + self._place_waiting()

    def _forget(self, session: SessionTable) -> list[Effect]:
        self.over[session.session] = self.sessions.pop(session.session)
        self._disown(session)
        if session.shares:
            self.queue.let_go(session)
        while len(self.over) > _REMEMBERED:
            self.over.popitem(last=False)
        return [SessionGone(session.session)]

    def client_left(self, session_id: int, now: float, lease: float | None = None) -> list[Effect]:
        """A client's stream broke, or it detached with a `lease`, for another to attach."""
        session = self.sessions.get(session_id)
        if session is None or not session.alive:
            return []
        if session.state is not SessionState.RUNNING or session.lease <= 0:
            return self.end(session_id, End(EndReason.CLOSED, "its client went away"))
        session.step(SessionEvent.DETACH)
        session.detached = lease is not None
        session.patience = session.lease if lease is None else lease
        session.deadline = now + session.patience
        return []

    def client_back(self, session_id: int, owner: str) -> None:
        """A client has attached to a session, which runs or waits for one."""
        session = self.sessions[session_id]
        if session.state is SessionState.DETACHED:
            session.step(SessionEvent.ATTACH)
        session.activity.acted = True
        session.activity.ends_by = None  # this client is to be warned too
        session.owner = owner or session.owner
        if not session.principal and session.owner_key != session.owner:
            self._change_owner(session)

    def _change_owner(self, session: SessionTable) -> None:
        """Counts a session of nobody that is authenticated for the program that has it now."""
        self._disown(session)
        self.queue.let_go(session)
        session.owner_key = session.owner
        self._note(session)
        self.queue.hold(session)

    def find(
        self, name: str, who: Identity = EVERYBODY, *, ended: bool = False
    ) -> SessionTable | None:
        """Finds a session by its name, or by its id in hexadecimal or a beginning of that.

        Args:
            name: The name, the id, or as many of its digits as no other one begins with.
            who: The caller's identity: its own sessions come first.
            ended: Whether a session that is gone may be returned if no other matches.

        Returns:
            The newest of several of that name; the caller must check whether `who` may use it.

        Raises:
            LookupError: Several ids begin so; the text has them.
        """
        tables = [*self.over.values()] if ended else []
        tables += self.sessions.values()
        found = [s for s in tables if name in (s.name, f"{s.session:016x}")]
        if not found:
            return self._begins_with(name, who, ended=ended)
        return max(
            found,
            key=lambda s: (who.owns(s.principal), s.session in self.sessions, s.created),
        )

    def _begins_with(self, given: str, who: Identity, *, ended: bool) -> SessionTable | None:
        """Finds a session by the beginning of its id: those that run first, then the caller's."""
        for tables in (self.sessions, self.over if ended else {}):
            found = ids_beginning_with(tables, given)
            own = [each for each in found if who.owns(tables[each].principal)]
            if len(own or found) > 1:
                several = [f"{each:016x} ({tables[each].name!r})" for each in own or found]
                raise LookupError(
                    f"expected one session, got {given!r}, with which several ids begin: "
                    f"{some(sorted(several))}"
                )
            if found:
                return tables[(own or found)[0]]
        return None

    def held_by_lost(self, now: float) -> str:
        """Which sessions hold slots although their programs are away, in words; may be empty."""
        return _held_by_lost(self.sessions.values(), now)

    def waiting(self, now: float) -> dict[int, str]:
        """What room each session that waits needs and there is, in words, by its id."""
        if not self.queue:
            return {}
        members, why = self.members, _draining(self.members)
        if held := self.held_by_lost(now):
            why += f"; {held}"
        there = f"{members.free_slots} of {many(members.total_slots, 'slot')} free{why}"
        return {s.session: f"needs {s.num_workers}, {there}" for s in self.queue}

    def lately_over(self, now: float) -> list[SessionTable]:
        """The sessions that have ended in the last ten minutes, of those that are remembered."""
        return [s for s in self.over.values() if now - s.ended <= LATELY_S]

    # Time ---------------------------------------------------------------------------

    def tick(self, now: float) -> list[Effect]:
        """Time has passed: waits, leases and silences that are over."""
        effects: list[Effect] = [*self._tell_new(), *self._give_up_waiting(now)]
        timed = self.limits.timed
        for session in list(self.sessions.values()):
            if session.state is SessionState.DETACHED and now >= session.deadline:
                message = f"its client did not come back within {session.patience:g} s"
                effects += self.end(session.session, End(EndReason.CLOSED, message))
            elif session.state is SessionState.RETURNING and now >= session.deadline:
                effects += self._give_up_return(session)
            elif session.state in (SessionState.RUNNING, SessionState.DETACHED):
                known = session.activity
                if timed or known.began is None or known.ends_by is not None:
                    effects += self._check_limits(session, now)
        for node in list(self.members.nodes.values()):
            slow = min(_RETURN_TRIPS * node.round_trip, self._node_lease)
            patience = self._node_return + slow
            if node.away_since is not None and now - node.away_since >= patience:
                effects += self.node_left(node.name, "its connection closed")
        for name in self.members.silent(now, self._node_lease):
            why = f"it was silent for more than {self._node_lease:g} s"
            effects += [DropNode(name, why), *self.node_left(name, why)]
        return effects

    def _give_up_waiting(self, now: float) -> list[Effect]:
        """Ends the sessions that have waited in vain.

        A thousand may at once, so what depends on all sessions or nodes is found once for all that
        ask for the same, and not for each.
        """
        never: dict[tuple[int, str], bool] = {}
        texts: dict[tuple[int, str], str] = {}
        holding = functools.cache(self._holding)
        late: list[tuple[SessionTable, End]] = []
        for session in self.queue:
            asked = session.num_workers, session.ccl
            if asked not in never:
                never[asked] = self._will_never_fit(session)
            if not never[asked] and now < session.deadline:
                continue
            if self.queue.is_held_back(session) and not never[asked]:
                holders = holding(session.owner_key)
                end = self.limits.slots_refusal(session, holders, never=False)
            else:
                if asked not in texts:
                    everybody = self.sessions.values()
                    texts[asked] = no_room(
                        session, self.members, everybody, now, never=never[asked]
                    )
                end = End(EndReason.NO_SLOTS, texts[asked])
            late.append((session, end))
        return self._end_waiting(late)

    def _end_waiting(self, ending: Sequence[tuple[SessionTable, End]]) -> list[Effect]:
        """Ends sessions that have no slots, and then lets others have their turn."""
        effects: list[Effect] = []
        for session, end in ending:
            session.end = end
            session.step(SessionEvent.END)
            self.queue.remove(session.session)
            effects += [TellEnded(session, end), *self._forget(session)]
        return [*effects, *self._place_waiting()] if ending else []

    def _check_limits(self, session: SessionTable, now: float) -> list[Effect]:
        """Warns or ends a session that has lasted too long, or whose client does nothing."""
        quota, known = self.limits.of(session), session.activity
        step = next_step(session, quota, self.limits.warning_s, now)
        if step is None:
            return []
        if step is LimitStep.ASK:
            return [AskIfQuiet(session)]
        reason = known.ends_by
        if reason is None:
            return [TellExpiring(session, None, 0.0, 0.0)]
        limit_s = limit_of(quota, reason)
        if step is LimitStep.TELL:
            return [TellExpiring(session, reason, known.ends_at - now, limit_s)]
        what, option = (
            ("has held its slots", "session_limit_s")
            if reason is EndReason.EXPIRED
            else ("had a client that did nothing", "idle_limit_s")
        )
        message = (
            f"session {session.name!r} {what} for {limit_s:g} s, as long as one of "
            f"{session.owner} may; open another one, or "
            f"{self.limits.how_to_raise(session, option)}"
        )
        return self.end(session.session, End(reason, message, limit_s=limit_s))

    def nodes_said(self, session_id: int, now: float, seconds: float | None) -> None:
        """The nodes of a session have said for how long no rank has run a command, or not."""
        session = self.sessions.get(session_id)
        if session is not None:
            quota = self.limits.of(session)
            note_quiet(session, quota, self.limits.warning_s, now, seconds)

    def _give_up_return(self, session: SessionTable) -> list[Effect]:
        node = min(session.waiting_for)
        message = f"node {node!r} did not come back to a controller that was started again"
        return self.end(session.session, End(EndReason.NODE_LOST, message, node=node))

    def drain(self) -> list[Effect]:
        """The controller is about to leave: every session ends, none begins."""
        self.draining = True
        end = End(EndReason.DRAINED, "the controller is shutting down")
        effects: list[Effect] = []
        for session_id in list(self.sessions):
            effects += self.end(session_id, end)
        return effects
