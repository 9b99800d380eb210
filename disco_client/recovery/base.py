"""A session that continues with other workers when its own are lost.

One set of workers after another is an incarnation of the session. What the program sees of
a loss, and what the next workers begin with, is for the subclasses of
:class:`Recovering` to decide: they do everything again (:mod:`~disco_client.recovery.replay`), or
the program makes its state anew (:mod:`~disco_client.recovery.rebuild`).
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from disco_client import errors
from disco_client.clock import monotonic
from disco_client.errors import Recovery, SessionClosed, SessionError, SessionLost, why_ended
from disco_client.locks import make_lock
from disco_client.output import logger_of
from disco_client.reentry import Condition, owned
from disco_client.telemetry.base import NO_SPAN, Span
from disco_client.threads import ThreadRefused, start_thread
from disco_client.transport.base import (
    AnswerLost,
    AskedInterrupt,
    ClientEnd,
    Expiry,
    Transport,
    Welcome,
)
from disco_client.transport.progress import Progress
from disco_client.transport.sent_log import SentLog
from disco_client.wire.batch import OutgoingBatch, SentBatch
from disco_client.wire.codec import EncodedReply, EncodedValue, inner_values

if TYPE_CHECKING:
    from disco_client.tracing.ring_cuts import Since
    from disco_client.wire.reports import Inspection

__all__ = [
    "MAX_CRASHES",
    "TICKETS",
    "Incarnation",
    "Owner",
    "Recovering",
    "Successor",
    "because",
]


MAX_CRASHES = 3
"""How often the same thing may end workers before it is given up."""


# One set of workers of a session that may have several, one after another.


TICKETS = 48
"""Bits of a worker's ticket; those above are the number of its incarnation."""

_INCARNATION_LOOK_S = 0.2


class Owner(Protocol):
    """The owner of incarnations."""

    def take(self, incarnation: Incarnation, kills: bool) -> OutgoingBatch | None:
        """Returns the program's next commands for an incarnation."""
        ...

    def lost(self, incarnation: Incarnation, error: SessionError) -> None:
        """Called when the workers are gone."""
        ...

    def retain(self, batch: SentBatch) -> None:
        """Keeps a batch that does not need to be sent again over a connection."""
        ...

    def is_news(self, worker: int, reply: EncodedReply) -> bool:
        """Whether a failure that a worker reports is one that the program is to know of."""
        ...


class Incarnation:
    """What one set of workers has been sent, and what it has executed.

    Args:
        owner: The owner.
        number: Which one it is, from 0.
        transport: The transport to them.
        client: The session's own end.
        changed: Its lock guards this object; notified when workers make progress.
    """

    def __init__(
        self,
        owner: Owner,
        number: int,
        transport: Transport,
        client: ClientEnd,
        changed: threading.Condition,
    ) -> None:
        self.number = number
        self.transport = transport
        self.done: Progress = Progress(len(transport.welcome.ranks), 0)
        self.target = 0
        self.sent: SentLog = SentLog(
            transport.welcome.session,
            self.next_batch,
            client.batch_left,
            lambda: self.acked,
            owner.retain,
            changed,
            window=transport.welcome.window,
        )
        self.holding: bool = number > 0
        self.passed: set[int] = set()
        self.error: SessionError | None = None
        self.on_complete: Callable[[], None] | None = None
        self._owner = owner
        self._client = client
        self._changed = changed

    @property
    def acked(self) -> int:
        """The newest command that all of its workers have executed."""
        return self.done.slowest

    @property
    def complete(self) -> bool:
        """Whether the workers have executed everything that the former ones had been sent."""
        return not self.holding and self.acked >= self.target

    def has_done(self, seq: int, worker: int | None) -> bool:
        """Whether a worker, or all of them, have executed everything up to a command."""
        return (self.acked if worker is None else self.done.each[worker]) >= seq

    # As the transport sees it -------------------------------------------------------------

    @property
    def issued(self) -> int:
        """The newest command of the program."""
        return self._client.issued

    @property
    def unattended(self) -> bool:
        """False: its transport has threads of its own."""
        return False

    def mark(self) -> None:
        """Issues a command that workers acknowledge."""
        self._client.mark()

    def nudge(self) -> None:
        """Wakes the threads that wait for something to send."""
        self._client.nudge()
        if self.holding or self.sent.holds:
            with self._changed:
                self._changed.notify_all()

    # Sending --------------------------------------------------------------------------

    def await_commands(self) -> bool:
        """Waits until there may be something to send; False once there never will be."""
        if self.error is not None:
            return False  # only the farewell is still sent
        if self.sent.holds:
            with self._changed:
                if self.sent.is_held():
                    self._changed.wait(_INCARNATION_LOOK_S)
            return True
        if self.holding:
            with self._changed:
                if self.holding and not self.sent.num_unsent:
                    self._changed.wait(_INCARNATION_LOOK_S)
            return True
        return self._client.await_commands()

    def next_envelope(self) -> bytes | None:
        """Returns the next envelope to send, the same until it has left, or None."""
        with self._changed:
            if self.error is not None:
                return None
            return self.sent.send()

    def envelope_left(self) -> None:
        """Notes that this envelope is on its way."""
        with self._changed:
            self.sent.sent()
            if self.holding:
                self._changed.notify_all()

    def rewind(self, seq: int, worker: int | None = None) -> None:
        """Sends everything beyond a command again, to the node of a worker, or to all."""
        self.sent.rewind(seq, worker)

    def batch_left(self, seq: int) -> None:
        """Notes that a batch of the program is on its way."""
        self._client.batch_left(seq)

    def next_batch(self, kills: bool) -> OutgoingBatch | None:
        """Returns the program's next commands, once the replay is over; the lock is held."""
        return None if self.holding else self._owner.take(self, kills)

    # Receiving ------------------------------------------------------------------------

    def reply(self, worker: int, reply: EncodedReply) -> None:
        """Takes a reply of a worker."""
        if self.number and reply.WhichOneof("outcome") == "value":
            self._retag(reply.value)
        if reply.ack > self.done.each[worker]:
            self._note(worker, reply.ack)
        if reply.HasField("failure") and not self._owner.is_news(worker, reply):
            self._client.acknowledge(worker, reply.ack)
            return
        self._client.reply(worker, reply)

    def live(self, worker: int, seq: int, value: Any) -> None:
        """Takes an answer that is an object of this process."""
        self._client.live(worker, seq, value)

    def acknowledge(self, worker: int, seq: int) -> None:
        """Notes that a worker has executed everything up to a command."""
        self._client.acknowledge(worker, seq)

    def printed(self, worker: int, node: str, is_error: bool, lines: list[str]) -> None:
        """Takes what a worker has printed, unless others have taken its place."""
        if self.error is None:
            self._client.printed(worker, node, is_error, lines)

    def interrupt_asked(self, asked: AskedInterrupt) -> None:
        """Begins an interrupt that somebody else than the program wants."""
        self._client.interrupt_asked(asked)

    def is_open(self, seq: int) -> bool:
        """Whether the answer to a command is still awaited."""
        return self._client.is_open(seq)

    def reopen(self) -> None:
        """Prepares for other workers to answer once more what is still awaited."""
        self._client.reopen()

    def lost(self, error: SessionError) -> None:
        """Takes the error that ended the session of these workers."""
        self._owner.lost(self, error)

    def _note(self, worker: int, ack: int) -> None:
        if self.done.note(worker, ack):
            self.sent.settle()
        if self.holding or self.sent.holds:
            with self._changed:
                self._changed.notify_all()
        if not self.holding and self.on_complete is not None:
            self.tell_complete()

    def tell_complete(self) -> None:
        """Calls ``on_complete``, once, when the workers have replayed everything."""
        with self._changed:
            call = self.on_complete if self.complete else None
            if call is not None:
                self.on_complete = None
        if call is not None:
            call()

    def _retag(self, value: EncodedValue) -> None:
        """Adds the number of the incarnation to the tickets of an answer."""
        if value.array.WhichOneof("data") == "ticket":
            value.array.ticket |= self.number << TICKETS
        for item in inner_values(value):
            self._retag(item)


_END_S = 2.0
"""How long a transfer that failed waits for the report that its session was lost."""

_CLOSE_S = 5.0
_MASK = (1 << TICKETS) - 1
_RECOVERABLE = (errors.WorkerLost, errors.NodeLost, errors.ControllerLost)

_logger = logger_of(__name__)


class Successor(Protocol):
    """Opens sessions like the first one."""

    def open(self) -> Transport:
        """Requests another session, and waits until its workers are ready.

        Raises:
            DiscoError: No session can be opened.
        """
        ...

    def abandon(self) -> None:
        """Ends a wait in :meth:`open`, from another thread."""
        ...


class Recovering(ABC):
    """A transport over several others, one after another.

    Args:
        first: Opened, and not yet started.
        successor: Opens the others.
        span: The session's; those of recoveries are parts of it.

    Attributes:
        recovers_alone: Whether no function of the program runs in the thread that recovers.
        recoveries: What happened so far.
    """

    recovers_alone: ClassVar[bool] = False
    pump = None
    progress = None

    def __init__(self, first: Transport, successor: Successor, span: Span = NO_SPAN) -> None:
        self._span = span
        self._successor = successor
        self._lock = make_lock("sent")
        self._changed = Condition(self._lock)
        self._owned: Callable[[], bool] = owned(self._lock)
        self._transport = first
        self._recovering = False
        self._leaving = False
        self._ended: SessionError | None = None
        self._thread: threading.Thread | None = None
        self.recoveries: tuple[Recovery, ...] = ()

    @property
    def entered(self) -> bool:
        """Whether the calling thread is in the middle of sending or reading."""
        return self._owned() or self._transport.entered

    @property
    def welcome(self) -> Welcome:
        """Which session this is now, and where its workers run."""
        return self._transport.welcome

    @property
    def draining(self) -> tuple[str, ...]:
        """The nodes of its present workers that take no new sessions."""
        return self._transport.draining

    @property
    def expiry(self) -> Expiry | None:
        """When a limit of the controller's will end the present session."""
        return self._transport.expiry

    def start(self, client: ClientEnd) -> None:
        """Starts sending what ``client`` yields and delivering what arrives."""
        self._client = client
        self._begin(self._transport)

    def _begin(self, transport: Transport) -> Incarnation:
        with self._lock:
            number = 0 if transport is self._transport else self._incarnation.number + 1
            incarnation = Incarnation(self, number, transport, self._client, self._changed)
            self._incarnation, self._transport = incarnation, transport
        transport.start(incarnation)
        return incarnation

    # How a session goes on ----------------------------------------------------------------

    @abstractmethod
    def _prospect(self) -> str:
        """What is about to happen with other workers, for the log."""

    @abstractmethod
    def _count(self) -> int:
        """How many commands are executed again."""

    @abstractmethod
    def _judge(self, incarnation: Incarnation, error: SessionLost) -> SessionError | None:
        """Returns the final error, if other workers would not help."""

    @abstractmethod
    def _continue(
        self, incarnation: Incarnation, first: SessionLost, began: float
    ) -> SessionError | None:
        """Lets new workers continue; returns the error if they could not, or None.

        Args:
            incarnation: Theirs.
            first: Why the first ones of this recovery were lost.
            began: When that was noticed.
        """

    # What the program sends -------------------------------------------------------------

    def take(self, incarnation: Incarnation, kills: bool) -> OutgoingBatch | None:
        """Returns the program's next commands; the lock is held."""
        return self._client.next_batch(kills) if incarnation is self._incarnation else None

    @abstractmethod
    def retain(self, batch: SentBatch) -> None:
        """Keeps what workers were sent, or forgets it; the lock is held."""

    @abstractmethod
    def is_news(self, worker: int, reply: EncodedReply) -> bool:
        """Whether a failure that a worker reports is one that the program is to know of."""

    @abstractmethod
    def upload(self, ticket: int, worker: int, data: memoryview) -> None:
        """Sends an array's bytes to a worker; returns when they may be changed."""

    @abstractmethod
    def give_up(self, uploads: Sequence[tuple[int, int]], why: str = "") -> None:
        """Reports arrays, by ticket and worker, that will not arrive, or not completely."""

    def decline(self, downloads: Sequence[tuple[int, int]]) -> None:
        """Reports arrays, by ticket and worker, that will not be downloaded any more."""
        incarnation = self._incarnation
        theirs = [
            (t & _MASK, worker) for t, worker in downloads if t >> TICKETS == incarnation.number
        ]
        if theirs and incarnation.error is None:
            incarnation.transport.decline(theirs)

    def download(self, ticket: int, worker: int, into: memoryview) -> None:
        """Fills a buffer with the array that a worker offered.

        Raises:
            AnswerLost: Its workers are gone; the answer is awaited once more.
        """
        incarnation = self._incarnation
        if ticket >> TICKETS != incarnation.number or incarnation.error is not None:
            raise AnswerLost
        try:
            incarnation.transport.download(ticket & _MASK, worker, into)
        except SessionError:
            if not self._is_over(incarnation):
                raise
            raise AnswerLost from None

    def _is_over(self, incarnation: Incarnation) -> bool:
        """Whether the workers of a transfer that failed were lost, and will be replaced."""
        with self._changed:
            self._changed.wait_for(lambda: incarnation.error is not None, _END_S)
            return incarnation.error is not None and self._ended is None

    # When workers are lost ------------------------------------------------------------------

    def lost(self, incarnation: Incarnation, error: SessionError) -> None:
        """Called when an incarnation is over; requests other workers, or the session is lost."""
        self._client.reopen()
        with self._changed:
            incarnation.error = error
            incarnation.sent.retain_all()
            self._changed.notify_all()
            if self._recovering and incarnation is self._incarnation:
                return  # the recovering thread sees it
            if not self._leaving and isinstance(error, _RECOVERABLE):
                thread = threading.Thread(
                    target=self._recover,
                    args=(incarnation, error),
                    name="disco-recovery",
                    daemon=True,
                )
                self._recovering, self._thread = True, thread
                try:
                    start_thread(thread, serves=self.recovers_alone)
                except ThreadRefused as refused:
                    self._thread = None
                    error = because(error, f"it could not go on with other workers: {refused}")
                else:
                    return
        self._finish(error)

    def _finish(self, error: SessionError) -> None:
        with self._changed:
            self._recovering = False
            self._ended = error
            self._end_incarnation(error)
        self._client.lost(error)
        self._client.nudge()

    def _end_incarnation(self, why: SessionError) -> None:
        """Ends the use of the present workers, also while they are prepared; the lock is held."""
        if self._incarnation.error is None:
            self._incarnation.error = why
        self._changed.notify_all()

    def _recover(self, incarnation: Incarnation, error: SessionLost) -> None:
        facts = {"disco.lost": str(error), "disco.commands": self._count()}
        with self._span.within("disco.recover", facts) as span:
            try:
                end = self._try_to_recover(incarnation, error)
            except Exception as broke:
                _logger.exception("the recovery of session %s failed", self.welcome.name)
                end = SessionLost(f"{error}\nits recovery failed: {broke!r}")
            if end is not None:
                span.fail(end)
        if end is not None:
            self._finish(end)

    def _try_to_recover(self, incarnation: Incarnation, first: SessionLost) -> SessionError | None:
        """Requests workers until some have continued; or returns the final error."""
        began = monotonic()
        error: SessionError = first
        while True:
            if not isinstance(error, _RECOVERABLE):
                return error
            end = self._judge(incarnation, error)
            if end is not None:
                return end
            _logger.warning(
                "session %s: %s; %s", self.welcome.name, why_ended(error), self._prospect()
            )
            incarnation.transport.close(_CLOSE_S)
            try:
                transport = self._successor.open()
            except (errors.DiscoError, OSError) as refused:
                return because(error, f"it could not go on with other workers: {refused}")
            incarnation = self._begin(transport)
            with self._changed:
                if self._leaving:
                    self._end_incarnation(self._closed())
            found = self._continue(incarnation, first, began)
            if found is None:
                return None
            error = found

    def _closed(self) -> SessionClosed:
        return SessionClosed(f"session {self.welcome.name!r} was shut down")

    # The rest ---------------------------------------------------------------------------

    def check_alive(self) -> None:
        """Raises the session's error if nothing was received for too long."""
        incarnation = self._incarnation
        if incarnation.error is None and not incarnation.holding:
            incarnation.transport.check_alive()

    def interrupt(self, until: int, workers: Sequence[int], *, force: bool = False) -> bool:
        """Interrupts commands; to be said again where workers take the place of others just now."""
        incarnation = self._incarnation
        if self._may_interrupt(incarnation):
            incarnation.transport.interrupt(until, workers, force=force)
        return True

    def cancel(self, commands: Sequence[tuple[int, int]]) -> None:
        """Cancels commands; to be said again, as an interrupt is."""
        incarnation = self._incarnation
        if self._may_interrupt(incarnation):
            incarnation.transport.cancel(commands)

    def _may_interrupt(self, incarnation: Incarnation) -> bool:
        """Whether these workers execute what the program has issued since."""
        return incarnation.error is None and not self._recovering

    def room(self) -> int:
        """How many slots are free for more workers like those of the session."""
        return self._transport.room()

    def inspect(
        self, *, stacks: bool, flights: bool, since: Sequence[Since] | None = None
    ) -> Inspection:
        """Finds out what the ranks do, without asking them; for any thread, at any time."""
        return self._transport.inspect(stacks=stacks, flights=flights, since=since)

    def check_detachable(self) -> None:  # noqa: B027  (it is a method of every transport)
        """Does nothing: a controller daemon keeps the session."""

    def detach(self, lease: float) -> None:
        """Lets :meth:`close` leave the session as it is, for others to attach."""
        self._leaving = True
        self._transport.detach(lease)

    def close(self, timeout: float) -> None:
        """Waits until pending messages are sent, then ends; idempotent."""
        with self._changed:
            self._leaving = True
            thread = self._thread if self._recovering else None
            if thread is not None:
                self._end_incarnation(self._closed())
        if thread is not None:
            self._successor.abandon()
            if thread is not threading.current_thread():  # what it calls may end the session
                thread.join(timeout)
        self._transport.close(timeout)


def because(error: SessionLost, why: str) -> SessionLost:
    """The error with a sentence that says why the session could not continue."""
    error.args = (f"{error}\n{why}",)
    return error
