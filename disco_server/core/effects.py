"""What a controller should do about something that happened, in the order of a list."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from disco_server.core.session_state import End, SessionTable

__all__ = [
    "DropNode",
    "Effect",
    "EndOnNode",
    "Rejoined",
    "SessionGone",
    "StartOnNode",
    "TellEnded",
    "TellQueued",
    "TellReady",
]


@dataclass(frozen=True, slots=True)
class StartOnNode:
    """Start the session's ranks on this node."""

    node: str
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
    ahead: int


@dataclass(frozen=True, slots=True)
class TellReady:
    """Tell the client that every rank runs."""

    session: SessionTable


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


@dataclass(frozen=True, slots=True)
class SessionGone:
    """Nothing is left of the session; forget it."""

    session: int


Effect: TypeAlias = (
    StartOnNode | EndOnNode | TellQueued | TellReady | TellEnded | DropNode | Rejoined | SessionGone
)
