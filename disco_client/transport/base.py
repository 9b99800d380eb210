"""What a session asks of whatever carries its commands."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from disco_client.errors import ConfigError, SessionError
from disco_client.wire.codec import EncodedBatch, EncodedCommand, Kind, envelope
from disco_client.wire.flight_cuts import Since
from disco_client.wire.inspection import Inspection

__all__ = [
    "Bound",
    "Events",
    "Interrupted",
    "Live",
    "OutgoingBatch",
    "Pump",
    "RankPlace",
    "Transport",
    "Waiting",
    "Welcome",
    "Wish",
]


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
    """What a session learns when its workers are ready.

    Attributes:
        session: Its id.
        name: What lists call it.
        ranks: Where each worker runs.
        first_seq: The number that its next command has.
        num_groups, ccl: What it was asked for with, where that was by another program.
    """

    session: int
    name: str
    ranks: tuple[RankPlace, ...]
    first_seq: int = 1
    num_groups: int = 1
    ccl: str = ""


@dataclass(frozen=True, slots=True)
class OutgoingBatch:
    """Commands that leave together; what travels of them is made when asked for.

    Attributes:
        session: The session's id.
        first_seq, last_seq: The numbers of the first and the last of them.
        calls: The column of plain calls, or empty (see commands.proto).
        commands: The others.
        bulk: How many bytes of inline arrays and the like are among them.
    """

    session: int
    first_seq: int
    last_seq: int
    calls: list[int]
    commands: list[EncodedCommand]
    bulk: int = 0

    @property
    def concerns(self) -> int | None:
        """The one worker that has anything to do for them; None for all workers."""
        if self.calls:
            return None
        workers = {command.worker_plus_one for command in self.commands}
        if len(workers) != 1 or any(command.released for command in self.commands):
            return None
        return workers.pop() - 1 if 0 not in workers else None

    def payload(self) -> bytes:
        """Encodes them alone."""
        return EncodedBatch(commands=self.commands, calls=self.calls).SerializeToString()

    def envelope(self) -> bytes:
        """Encodes them as they travel."""
        return envelope(
            Kind.BATCH,
            self.payload(),
            session=self.session,
            first_seq=self.first_seq,
            last_seq=self.last_seq,
        )


class Interrupted(SessionError):
    """The worker that offered an array is gone; its answer comes again from another one."""


class Live:
    """An answer that needed no encoding, because worker and client share memory."""

    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value


@dataclass(frozen=True, slots=True)
class Events:
    """Where a transport delivers; every one may be called from a thread of its own.

    Attributes:
        await_commands: Blocks until there may be something for ``take_batch``;
            False ends the sending.
        nudge: Wakes a thread that blocks in ``await_commands``.
        acked: Returns the newest command that every worker has executed.
        take_batch: Gets whether freed registers alone are reason enough; returns
            what should leave now, or None. See ``CommandLog``.
        reply: Gets (worker, encoded reply).
        live: Gets (worker, seq, value): the answer of a worker that shares memory
            with the client, with everything up to it executed.
        acknowledge: Gets (worker, seq): everything up to it is executed there.
        log: Gets (worker, node, to standard error, lines).
        lost: Gets the error that ended the session, once.
        disown: Ends the session in a forked child, with this error; takes no lock
            that a thread of the parent may hold.
        reopen: Everything that is still waited for will be answered once more.
        is_open: Whether the answer to a command is still waited for.
        mark: Issues a command that says how far workers are.
    """

    await_commands: Callable[[], bool]
    nudge: Callable[[], None]
    acked: Callable[[], int]
    take_batch: Callable[[bool], OutgoingBatch | None]
    reply: Callable[[int, bytes], None]
    live: Callable[[int, int, Any], None]
    acknowledge: Callable[[int, int], None]
    log: Callable[[int, str, bool, list[str]], None]
    lost: Callable[[SessionError], None]
    disown: Callable[[SessionError], None]
    reopen: Callable[[], None] = lambda: None
    is_open: Callable[[int], bool] = lambda _seq: False
    mark: Callable[[], object] = lambda: None


class Pump(Protocol):
    """The part of a transport that lets the thread that waits do the work.

    A command that is waited for then costs no hand-over between threads.
    """

    def ask(self, worker: int, gate: threading.Lock) -> None:
        """Sends what was issued; the worker frees a lock when it has executed all of it.

        The lock is also freed when the session ends.
        """
        ...

    def wait(self, gate: threading.Lock, seconds: float, ask: int | None = None) -> bool:
        """Sends what was issued, and waits up to ``seconds`` for a lock to be free.

        Args:
            gate: The lock.
            seconds: How long to wait at most.
            ask: A worker to :meth:`ask` first.

        Returns:
            Whether this thread holds the lock now, or with ``ask`` need not, because
            the worker is known to have executed what was issued.
        """
        ...


class Bound:
    """The part of a transport whose workers end with this process."""

    def check_detachable(self) -> None:
        """Refuses to leave the session.

        Raises:
            ConfigError: Always.
        """
        msg = (
            "the workers of this session end with this process, so nobody could attach to it;"
            " open it with disco_client.connect() on a cluster"
        )
        raise ConfigError(msg)

    def detach(self, lease: float) -> None:  # noqa: ARG002  (no lease would do)
        """Refuses to leave the session.

        Raises:
            ConfigError: Always.
        """
        self.check_detachable()


class Transport(Protocol):
    """Carries one session; opened before it is given to a session."""

    @property
    def welcome(self) -> Welcome:
        """Which session this is, and where its workers run."""
        ...

    @property
    def pump(self) -> Pump | None:
        """Lets waiting threads send and receive; None where others do that."""
        ...

    def start(self, events: Events) -> None:
        """Begins to send what ``events`` yields and to deliver what comes."""
        ...

    def upload(self, ticket: int, worker: int, data: memoryview) -> None:
        """Sends an array's bytes to a worker; returns when they may be changed.

        Where this raises, the worker does not wait for the array.
        """
        ...

    def give_up(self, uploads: Sequence[tuple[int, int]]) -> None:
        """Says of arrays, by ticket and worker, that no upload of them will begin."""
        ...

    def download(self, ticket: int, worker: int, into: memoryview) -> None:
        """Fills a buffer with the array that a worker offered."""
        ...

    def check_detachable(self) -> None:
        """Refuses to leave a session that ends with this process.

        Raises:
            ConfigError: It does.
        """
        ...

    def detach(self, lease: float) -> None:
        """Lets :meth:`close` leave the session as it is, for others to attach."""
        ...

    def check_alive(self) -> None:
        """Raises the session's error when nothing has been heard for too long."""
        ...

    def inspect(
        self, *, stacks: bool, flights: bool, since: Sequence[Since] | None = None
    ) -> Inspection:
        """Finds out what the ranks do, without asking them; for any thread, at any time.

        Args:
            stacks: Whether to fetch their Python stacks.
            flights: Whether to fetch what their flight recorders hold.
            since: How far ranks were followed; instead of all the above, what they have
                recorded since then is fetched.

        Raises:
            SessionError: Nobody could be asked.
        """
        ...

    def close(self, timeout: float) -> None:
        """Waits until what was sent has left, then ends; idempotent."""
        ...
