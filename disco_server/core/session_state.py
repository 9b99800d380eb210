"""The life of one session: a table of moves, and one function that applies it.

::

    QUEUED ──place──▶ STARTING ──ready──▶ RUNNING ◀──attach── DETACHED
      │                  │                  │ └────detach────▶   │
      └───────end────────┴───────end────────┴────────end─────────┘
                                 ▼
                              ENDING ──gone──▶ GONE

A controller that is started again learns of its sessions from their nodes: each is
``RETURNING`` until the last of them is back, and then ``DETACHED`` until its client is.

A session holds its slots from ``place`` until ``gone``: until every node has
reported that none of its processes is left.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from disco_client.wire.limits import WINDOW_COMMANDS

if TYPE_CHECKING:
    from disco_server.core.nodes import NodeShare

__all__ = [
    "Activity",
    "End",
    "EndReason",
    "PassedOn",
    "Priority",
    "QuotaUse",
    "SessionEvent",
    "SessionState",
    "SessionTable",
    "WrongStep",
]


class SessionState(enum.Enum):
    """Where a session is in its life."""

    QUEUED = "queued"
    STARTING = "starting"
    RUNNING = "running"
    RETURNING = "returning"
    DETACHED = "detached"
    ENDING = "ending"
    GONE = "gone"


class SessionEvent(enum.Enum):
    """What can happen to a session."""

    PLACE = "place"
    READY = "ready"
    DETACH = "detach"
    ATTACH = "attach"
    END = "end"
    GONE = "gone"


class EndReason(enum.IntEnum):
    """Why a session ended; the numbers are those of the wire."""

    CLOSED = 1
    NO_SLOTS = 2
    RANK_LOST = 3
    NODE_LOST = 4
    DRAINED = 5
    REFUSED = 6
    START_FAILED = 7
    STOPPED = 8
    QUOTA = 9
    EXPIRED = 10
    IDLE = 11
    WINDOW = 12


class Priority(enum.IntEnum):
    """The classes of sessions in the queue; the words are those of the wire."""

    LOW = 0
    NORMAL = 1
    HIGH = 2

    @property
    def word(self) -> str:
        """As it is written: ``low``, ``normal`` or ``high``."""
        return self.name.lower()


_MOVES: dict[SessionState, dict[SessionEvent, SessionState]] = {
    SessionState.QUEUED: {
        SessionEvent.PLACE: SessionState.STARTING,
        SessionEvent.END: SessionState.GONE,
    },
    SessionState.STARTING: {
        SessionEvent.READY: SessionState.RUNNING,
        SessionEvent.END: SessionState.ENDING,
    },
    SessionState.RUNNING: {
        SessionEvent.DETACH: SessionState.DETACHED,
        SessionEvent.END: SessionState.ENDING,
    },
    SessionState.RETURNING: {
        SessionEvent.READY: SessionState.DETACHED,
        SessionEvent.END: SessionState.ENDING,
    },
    SessionState.DETACHED: {
        SessionEvent.ATTACH: SessionState.RUNNING,
        SessionEvent.END: SessionState.ENDING,
    },
    SessionState.ENDING: {SessionEvent.GONE: SessionState.GONE},
    SessionState.GONE: {},
}


class WrongStep(Exception):
    """A step that a session in this state cannot take."""


@dataclass(frozen=True, slots=True)
class QuotaUse:
    """A quota that a request goes beyond.

    Attributes:
        name: ``sessions``, ``slots`` or ``priority``.
        limit: How many there may be; 0 for a class.
        used: How many there are.
        sessions: The names of the owner's sessions that use it.
    """

    name: str
    limit: int = 0
    used: int = 0
    sessions: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class End:
    """Why and how a session ended.

    Attributes:
        reason: The family of the end.
        message: A text for people to read.
        worker, node, exit_status, output: For a lost rank: which, where, how it
            ended (an exit code, or the negative of a signal's number), and its
            last lines.
        quota: The quota, if one is the reason.
        limit_s: The session's length or the idle time that is the reason, in seconds.
    """

    reason: EndReason
    message: str
    worker: int = 0
    node: str = ""
    exit_status: int = 0
    output: tuple[str, ...] = ()
    quota: QuotaUse | None = None
    limit_s: float = 0.0

    @property
    def as_wished(self) -> bool:
        """Whether the end was requested, and nothing failed."""
        return self.reason in (EndReason.CLOSED, EndReason.STOPPED, EndReason.DRAINED)


@dataclass(slots=True)
class Activity:
    """What is known about how long a session has lasted, and how long its client did nothing.

    Times are those in which the controller ran.

    Attributes:
        before_s: For how long it had its slots before this controller knew of it.
        began: When it got its slots, once that was noticed.
        acted: Whether its client has sent something since this was last looked at.
        active_at: When the client did something, or a command ended, as far as is known.
        asked: Whether its nodes are being asked if a command runs.
        quiet: Whether they have said that none does, and none was sent since.
        ends_at: When a limit will end it, once its client has been warned.
        ends_by: Which limit.
    """

    before_s: float = 0.0
    began: float | None = None
    acted: bool = True
    active_at: float = 0.0
    asked: bool = False
    quiet: bool = False
    ends_at: float = 0.0
    ends_by: EndReason | None = None


@dataclass(slots=True)
class PassedOn:
    """What a session's nodes are given as its client's request has it.

    Attributes:
        trace: The trace context of the request.
        secrets: Variables of its ranks that nobody else may see; empty once they start.
    """

    trace: dict[str, str] = field(default_factory=dict[str, str])
    secrets: dict[str, str] = field(default_factory=dict[str, str], repr=False)


@dataclass(slots=True)
class SessionTable:
    """One session as the controller knows it.

    Attributes:
        session: Its id: random, never zero.
        name: What lists call it.
        owner: ``user@host:pid`` of its client.
        principal: Its owner as authenticated, if at all; the owner and administrators may use it.
        num_workers, num_groups, ccl: What was asked for.
        most_workers: How many workers it takes where there is room; once it is placed,
            `num_workers` says how many it has.
        transfer_key: The secret that names its arrays.
        created: When it was asked for.
        deadline: Until when it waits for slots, or for its client or nodes to come back,
            by the time in which the controller ran.
        lease: Seconds that it waits for its client, or its ranks for a controller.
        patience: The same for the client that is away now, which may have asked for more.
        detached: Whether that client said that it goes.
        shares: Its ranks by node, once placed.
        waiting_for: Nodes that have not yet said "ready", or later "gone".
        ranks: (worker, node, pid, device) of each started rank.
        end: Why it ended, once it has.
        ended: When; set by the code that tells the client of the end.
        passed_on: What its nodes are given of the client's request.
        carrier: What carries, or carried last, the stream of its client: ``frames`` or ``grpc``.
        priority: Its class in the queue.
        window: How many commands may be under way; that of its nodes where that is less.
        activity: How long it has lasted, and what its client did.
        owner_key: Tells apart the owners of sessions: the principal, or without
            authentication the client's process by the name that it states.
    """

    session: int
    name: str
    owner: str
    num_workers: int
    num_groups: int
    ccl: str
    transfer_key: bytes
    created: float
    deadline: float
    principal: str = ""
    lease: float = 0.0
    patience: float = 0.0
    detached: bool = False
    state: SessionState = SessionState.QUEUED
    shares: tuple[NodeShare, ...] = ()
    waiting_for: set[str] = field(default_factory=set[str])
    ranks: dict[int, tuple[int, str, int, str]] = field(
        default_factory=dict[int, tuple[int, str, int, str]]
    )
    end: End | None = None
    ended: float = 0.0
    passed_on: PassedOn = field(default_factory=PassedOn)
    carrier: str = ""
    priority: Priority = Priority.NORMAL
    window: int = WINDOW_COMMANDS
    activity: Activity = field(default_factory=Activity)
    most_workers: int = 0
    owner_key: str = field(init=False)

    def __post_init__(self) -> None:
        self.owner_key = self.principal or self.owner

    @property
    def nodes(self) -> frozenset[str]:
        """The names of the nodes on which its ranks are placed."""
        return frozenset(share.node for share in self.shares)

    def step(self, step: SessionEvent) -> None:
        """Takes a step.

        Raises:
            WrongStep: The table has no such move; nothing changed.
        """
        after = _MOVES[self.state].get(step)
        if after is None:
            msg = f"session {self.name!r} is {self.state.value} and cannot {step.value}"
            raise WrongStep(msg)
        self.state = after

    def runs_on(self, node: str) -> bool:
        """Whether some of its ranks are placed on a node."""
        return any(share.node == node for share in self.shares)

    @property
    def attached(self) -> bool:
        """Whether it has a client."""
        return self.state in (SessionState.QUEUED, SessionState.STARTING, SessionState.RUNNING)

    @property
    def owner_name(self) -> str:
        """The name of its owner as authenticated; empty without authentication."""
        return self.principal.partition(":")[2]

    def lease_left(self, now: float) -> float | None:
        """For how many seconds it still waits for its client; None where it does not."""
        return max(self.deadline - now, 0.0) if self.state is SessionState.DETACHED else None

    @property
    def alive(self) -> bool:
        """Whether the session still may execute commands."""
        return self.state not in (SessionState.ENDING, SessionState.GONE)
