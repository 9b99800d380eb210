"""The interface between a session and the transport of its commands."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NoReturn, Protocol

from disco_client.clock import monotonic
from disco_client.errors import ConfigError, SessionError
from disco_client.wire.batch import OutgoingBatch
from disco_client.wire.codec import EncodedReply
from disco_client.wire.limits import WINDOW_COMMANDS

if TYPE_CHECKING:
    import threading

    from disco_client.pb import controller_pb2
    from disco_client.tracing.ring_cuts import Since
    from disco_client.wire.reports import Inspection

__all__ = [
    "AnswerLost",
    "ArrayEndpoint",
    "AskedInterrupt",
    "Bound",
    "ClientEnd",
    "EndpointLost",
    "Expiry",
    "ForeignTransport",
    "Live",
    "Pump",
    "QueuePosition",
    "RankPlace",
    "TransferFailed",
    "TransferRefused",
    "Transport",
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
        owner: ``user@host:pid``, to be shown as the owner of the slots.
        timeout: Seconds to wait for slots.
        priority: The class in the queue: ``low``, ``normal`` or ``high``; empty for the usual one.
        most_workers: How many workers it takes where there is room; 0 for no more.
        secrets: Variables that its workers have, and nobody else sees.
    """

    num_workers: int
    num_groups: int
    ccl: str
    name: str
    owner: str
    timeout: float
    priority: str = ""
    most_workers: int = 0
    secrets: Mapping[str, str] = field(default_factory=dict[str, str], repr=False)


@dataclass(frozen=True, slots=True)
class QueuePosition:
    """The state of the queue, for a session that waits for slots.

    Attributes:
        ahead: Sessions that are served first.
        total_slots: Slots of the cluster.
        free_slots: Those of them that no session holds.
        reason: What it waits for, in words; empty where only slots are missing.
    """

    ahead: int
    total_slots: int
    free_slots: int
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Expiry:
    """When the controller will end a session.

    Attributes:
        limit: ``"length"``, or ``"idle"`` where the next command prevents it.
        limit_s: That limit, in seconds.
        at: When, by ``time.monotonic()``.
    """

    limit: str
    limit_s: float
    at: float

    @property
    def seconds_left(self) -> float:
        """In how many seconds."""
        return max(self.at - monotonic(), 0.0)


@dataclass(frozen=True, slots=True)
class RankPlace:
    """Where one worker runs."""

    worker: int
    node: str
    pid: int
    device: str


@dataclass(frozen=True, slots=True)
class Welcome:
    """The facts about a session whose workers are ready.

    Attributes:
        session: Its id.
        name: What lists call it.
        ranks: Where each worker runs.
        first_seq: The number that its next command has.
        num_groups: Into how many equal groups its workers are divided.
        ccl: As requested by the program that created it, where that is another one.
        window: How many commands may be under way.
    """

    session: int
    name: str
    ranks: tuple[RankPlace, ...]
    first_seq: int = 1
    num_groups: int = 1
    ccl: str = ""
    window: int = WINDOW_COMMANDS


class AnswerLost(SessionError):
    """The worker that offered an array is gone; another one will send its answer again."""


class Live:
    """An answer without encoding, because worker and client share memory."""

    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value: Any = value


@dataclass(frozen=True, slots=True)
class AskedInterrupt:
    """An interrupt of the session that somebody has asked its controller for.

    Attributes:
        who: Who has.
        grace: How many seconds the workers have to react.
        force: Whether the processes of those that do not are ended then.
        answer: Takes the workers that have not reacted; for any thread.
    """

    who: str
    grace: float
    force: bool
    answer: Callable[[Sequence[int]], object]


class ClientEnd(Protocol):
    """The client's end of a session, as its transport sees it; for any thread."""

    def await_commands(self) -> bool:
        """Blocks until there may be a batch or an envelope to send; False ends the sending."""
        ...

    def nudge(self) -> None:
        """Wakes a thread that blocks in :meth:`await_commands`."""
        ...

    def mark(self) -> None:
        """Issues a command that workers acknowledge."""
        ...

    def next_batch(self, kills: bool) -> OutgoingBatch | None:
        """Returns what to send now, the same until it has left, or None.

        Args:
            kills: Whether freed registers alone are reason enough.
        """
        ...

    def batch_left(self, seq: int) -> None:
        """Notes that the batch is on its way whose last command this is."""
        ...

    def next_envelope(self) -> bytes | None:
        """Returns the next envelope to send, the same until it has left, or None.

        It is kept until it is executed: this is :meth:`next_batch` for connections that may
        lose it.
        """
        ...

    def envelope_left(self) -> None:
        """Notes that this envelope is on its way."""
        ...

    def rewind(self, seq: int, worker: int | None = None) -> None:
        """Sends everything beyond a command again, to the node of a worker, or to all."""
        ...

    @property
    def issued(self) -> int:
        """The newest command of all."""
        ...

    @property
    def acked(self) -> int:
        """The newest command that every worker has executed."""
        ...

    def reply(self, worker: int, reply: EncodedReply) -> None:
        """Takes a reply of a worker, and may change it."""
        ...

    def live(self, worker: int, seq: int, value: Any) -> None:
        """Takes the answer of a worker that shares memory with the client.

        Everything up to it is executed there.
        """
        ...

    def acknowledge(self, worker: int, seq: int) -> None:
        """Notes that a worker has executed everything up to a command."""
        ...

    def printed(self, worker: int, node: str, is_error: bool, lines: list[str]) -> None:
        """Takes what a worker has printed."""
        ...

    def interrupt_asked(self, asked: AskedInterrupt) -> None:
        """Begins an interrupt that somebody else than the program wants; does not wait."""
        ...

    @property
    def unattended(self) -> bool:
        """Whether an answer is awaited for which no thread waits."""
        ...

    def is_open(self, seq: int) -> bool:
        """Whether the answer to a command is still awaited."""
        ...

    def reopen(self) -> None:
        """Notes that everything that is still awaited will be answered once more."""
        ...

    def lost(self, error: SessionError) -> None:
        """Takes the error that ended the session, once."""
        ...


class Pump(Protocol):
    """The part of a transport that lets a waiting thread do the I/O.

    A command that is awaited then costs no hand-over between threads.

    Attributes:
        sends_lone: Whether a lone command leaves in the thread that issues it.
    """

    sends_lone: bool

    @property
    def entered(self) -> bool:
        """Whether the calling thread is in the middle of sending or reading."""
        ...

    def flush(self) -> None:
        """Sends what was issued."""
        ...

    def send(self) -> None:
        """Sends what was issued; its answer will be received though no thread waits."""
        ...

    def wait(self, waiter: threading.Lock, seconds: float) -> bool:
        """Sends what was issued, and waits up to ``seconds`` for a lock to be free.

        Returns:
            Whether this thread holds the lock now.
        """
        ...


class ProgressPump(Pump, Protocol):
    """A pump that learns how far a worker is without a command for it."""

    def ask(self, worker: int, waiter: threading.Lock) -> None:
        """Sends what was issued; the worker frees a lock when it has executed all of it.

        The lock is also freed when the session ends.
        """
        ...

    def wait(self, waiter: threading.Lock, seconds: float, ask: int | None = None) -> bool:
        """Sends what was issued, and waits up to ``seconds`` for a lock to be free.

        Args:
            waiter: The lock.
            seconds: How long to wait at most.
            ask: A worker to :meth:`ask` first.

        Returns:
            Whether this thread holds the lock now, or with ``ask`` need not, because
            the worker is known to have executed what was issued.
        """
        ...


class Bound:
    """The part of a transport whose workers end with this process."""

    @property
    def expiry(self) -> None:
        """None: no controller limits it."""
        return None

    def room(self) -> int:
        """0: the session has all workers that there are."""
        return 0

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
    def entered(self) -> bool:
        """Whether the calling thread is in the middle of sending or reading."""
        ...

    @property
    def pump(self) -> Pump | None:
        """Lets waiting threads send and receive; None where others do that."""
        ...

    @property
    def progress(self) -> ProgressPump | None:
        """The pump, where it can ask workers how far they are."""
        ...

    @property
    def draining(self) -> tuple[str, ...]:
        """The session's nodes that take no new sessions, because they are about to go."""
        ...

    @property
    def expiry(self) -> Expiry | None:
        """When a limit of the controller's will end the session; None if none will soon."""
        ...

    def room(self) -> int:
        """How many slots are free for more workers like those of the session.

        Raises:
            AccessDenied: The controller refuses these credentials.
            ConnectionFailed: It does not answer.
        """
        ...

    def start(self, client: ClientEnd) -> None:
        """Starts sending what the client has and delivering what arrives."""
        ...

    def upload(self, ticket: int, worker: int, data: memoryview) -> None:
        """Sends an array's bytes to a worker; returns when they may be changed.

        Where this raises, the worker may wait for the rest until it is given up.
        """
        ...

    def give_up(self, uploads: Sequence[tuple[int, int]], why: str = "") -> None:
        """Reports arrays, by ticket and worker, that will not arrive, or not completely.

        It needs no new descriptor or thread: a lack of them may be why an upload failed.
        """
        ...

    def decline(self, downloads: Sequence[tuple[int, int]]) -> None:
        """Reports arrays, by ticket and worker, that will not be downloaded any more."""
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

    def interrupt(self, until: int, workers: Sequence[int], *, force: bool = False) -> bool:
        """Interrupts commands that were issued, whatever workers do; may be repeated.

        Args:
            until: The last of them. Workers leave out those that they have not begun.
            workers: Who also ends the one that it executes.
            force: The processes of these workers are ended instead.

        Returns:
            Whether it can do that; False for workers that are threads, with ``force``.
        """
        ...

    def cancel(self, commands: Sequence[tuple[int, int]]) -> None:
        """Interrupts some of the commands that were issued, whatever workers do; may be repeated.

        Args:
            commands: The first and the last of each run of them. Workers end the one of them that
                they execute, and leave the others out.
        """
        ...

    def check_alive(self) -> None:
        """Raises the session's error if nothing was received for too long."""
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
            SessionError: The controller could not be asked.
        """
        ...

    def close(self, timeout: float) -> None:
        """Waits until pending messages are sent, then ends; idempotent."""
        ...


class ForeignTransport:
    """The transport of a session in a forked child: refuses each use.

    Args:
        welcome: Which session it was, and where its workers run.
        why: What is raised.
    """

    pump = None
    entered = False

    def __init__(self, welcome: Welcome, why: SessionError) -> None:
        self.welcome = welcome
        self._why = why

    def __getattr__(self, name: str) -> NoReturn:
        # The same error is raised each time, with the traceback of this time.
        raise self._why.with_traceback(None)


# Endpoints through which host arrays reach a worker: their interface and errors.


class TransferFailed(Exception):
    """An array could not be transferred; the text says why."""


class TransferRefused(TransferFailed):
    """The daemon cannot transfer this array; its session continues."""


class EndpointLost(TransferFailed):
    """No daemon answers at this endpoint, or not any more; the transfer may be retried.

    Attributes:
        unreached: Whether nothing says that a daemon is still there.
    """

    def __init__(self, text: str, *, unreached: bool = False) -> None:
        super().__init__(text)
        self.unreached = unreached


class ArrayEndpoint(Protocol):
    """One path to worker daemons; may be used from several threads.

    Attributes:
        spoiled: Whether it is unusable, so that :meth:`close` must not wait for it.
    """

    spoiled: bool

    def upload(self, transfer: controller_pb2.Transfer, data: memoryview) -> None:
        """Sends an array's bytes to a worker; returns when they may be changed.

        Raises:
            TransferFailed: The worker does not get them.
            OSError, RuntimeError: The system has no descriptor, memory or thread for it.
        """
        ...

    def download(self, transfer: controller_pb2.Transfer, into: memoryview) -> int:
        """Fills a buffer with the array that a worker offered.

        Returns:
            The array's size in bytes; where it is not the buffer's, the buffer holds
            no array.

        Raises:
            TransferFailed: It cannot be fetched.
            OSError, RuntimeError: As for :meth:`upload`.
        """
        ...

    def close(self) -> None:
        """Closes it; pending transfers fail."""
        ...
