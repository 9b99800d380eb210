"""What a session asks of whatever carries its commands."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from disco_client.errors import SessionError

__all__ = ["Events", "RankPlace", "Transport", "Waiting", "Welcome", "Wish"]


@dataclass(frozen=True, slots=True)
class Wish:
    """The session a client asks for.

    Attributes:
        num_workers, num_groups: How many workers, in how many groups.
        ccl: The collective library; empty lets the first collective choose.
        name: What lists call it; empty for a made-up one.
        owner: ``user@host:pid``, for whoever asks who holds the slots.
        timeout: Seconds to wait for slots.
    """

    num_workers: int
    num_groups: int
    ccl: str
    name: str
    owner: str
    timeout: float


@dataclass(frozen=True, slots=True)
class Waiting:
    """What a session that waits for slots is told.

    Attributes:
        ahead: Sessions that are served first.
        total_slots: Slots of the cluster.
        free_slots: Those of them that no session holds.
    """

    ahead: int
    total_slots: int
    free_slots: int


@dataclass(frozen=True, slots=True)
class RankPlace:
    """Where one worker runs."""

    worker: int
    node: str
    pid: int
    device: str


@dataclass(frozen=True, slots=True)
class Welcome:
    """What a session learns when its workers are ready."""

    session: int
    name: str
    ranks: tuple[RankPlace, ...]


@dataclass(frozen=True, slots=True)
class Events:
    """Where a transport delivers; every one may be called from its reader thread.

    Attributes:
        take: Blocks until an encoded envelope should leave; None ends the sending.
        reply: Gets (worker, encoded reply).
        log: Gets (worker, node, to standard error, lines).
        lost: Gets the error that ended the session, once.
    """

    take: Callable[[], bytes | None]
    reply: Callable[[int, bytes], None]
    log: Callable[[int, str, bool, list[str]], None]
    lost: Callable[[SessionError], None]


class Transport(Protocol):
    """Carries one session; opened before it is given to a session."""

    @property
    def welcome(self) -> Welcome:
        """Which session this is, and where its workers run."""
        ...

    def start(self, events: Events) -> None:
        """Begins to send what ``events.take`` yields and to deliver what comes."""
        ...

    def upload(self, ticket: int, worker: int, data: memoryview) -> None:
        """Sends an array's bytes to a worker; returns when they may be changed."""
        ...

    def download(self, ticket: int, worker: int, into: memoryview) -> None:
        """Fills a buffer with the array that a worker offered."""
        ...

    def check_alive(self) -> None:
        """Raises the session's error when nothing has been heard for too long."""
        ...

    def close(self, timeout: float) -> None:
        """Waits until what was sent has left, then ends; idempotent."""
        ...
