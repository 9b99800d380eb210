"""A session that continues with other workers when its own are lost.

What it sent is kept (:mod:`~disco_client.recovery.journal`). When its workers are
lost, a new session is requested, and gets all of it again; what the program issues
meanwhile waits behind it. Answers and failures that the program has received are not
reported again.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from disco_client import errors
from disco_client.errors import (
    EncodingError,
    PoisonCommand,
    SessionClosed,
    SessionError,
    SessionLost,
    WorkerLost,
    why_ended,
)
from disco_client.recovery.journal import (
    Journal,
    PruneRequest,
    Segment,
    Upload,
    maker_of,
    plan_pruning,
    split_at_waits,
)
from disco_client.telemetry.base import NO_SPAN, Span
from disco_client.transport.base import Events, Interrupted, OutgoingBatch, Transport, Welcome
from disco_client.transport.sent_log import SentBatch, SentLog
from disco_client.wire.codec import EncodedCommand, EncodedReply, EncodedValue

if TYPE_CHECKING:
    from disco_client.tracing.ring import Since
    from disco_client.wire.reports import Inspection

__all__ = [
    "MAX_CRASHES",
    "TICKETS",
    "CrashLoopDetector",
    "Incarnation",
    "KnownFailures",
    "Owner",
    "Recovery",
    "Replayer",
    "Replaying",
    "Successor",
]


# One set of workers of a session that may have several, one after another.


TICKETS = 48
"""Bits of a worker's ticket; those above are the number of its incarnation."""

_INCARNATION_LOOK_S = 0.2


@dataclass(slots=True)
class KnownFailures:
    """Known failures, so that they are not reported again when they occur again.

    Attributes:
        told: The commands that failed, each with the worker.
        deadly: The command without which a replay is impossible; 0 for none.
        why_dead: Its error message.
    """

    told: set[tuple[int, int]] = field(default_factory=set[tuple[int, int]])
    deadly: int = 0
    why_dead: str = ""


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


class Incarnation:
    """What one set of workers has been sent, and what it has executed.

    Args:
        owner: The owner.
        number: Which one it is, from 0.
        transport: The transport to them.
        events: The session's own.
        failures: What failed so far, in all incarnations.
        changed: Its lock guards this object; notified when workers make progress.
    """

    def __init__(
        self,
        owner: Owner,
        number: int,
        transport: Transport,
        events: Events,
        failures: KnownFailures,
        changed: threading.Condition,
    ) -> None:
        self.number = number
        self.transport = transport
        self.acks = [0] * len(transport.welcome.ranks)
        self.acked = 0
        self.target = 0
        self.sent = SentLog(
            transport.welcome.session, self._take, lambda: self.acked, owner.retain, changed
        )
        self.replaying = number > 0
        self.passed: set[int] = set()
        self.error: SessionError | None = None
        self.on_complete: Callable[[], None] | None = None
        self._owner = owner
        self._events = events
        self._failures = failures
        self._changed = changed

    @property
    def complete(self) -> bool:
        """Whether the workers have executed everything that the former ones had been sent."""
        return not self.replaying and self.acked >= self.target

    def has_done(self, seq: int, worker: int | None) -> bool:
        """Whether a worker, or all of them, have executed everything up to a command."""
        return (self.acked if worker is None else self.acks[worker]) >= seq

    def events(self) -> Events:
        """What its transport is started with."""
        own = self._events
        forward: Callable[..., Any] = self._if_current(own.log)
        return Events(
            await_commands=self._await_commands,
            nudge=self._nudge,
            acked=lambda: self.acked,
            take_batch=self._take,
            send=self._send,
            resend=self.sent.rewind,
            reply=self._reply,
            live=own.live,
            acknowledge=own.acknowledge,
            log=forward,
            lost=lambda error: self._owner.lost(self, error),
            issued=own.issued,
        )

    def _if_current(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def forward(*args: Any) -> None:
            if self.error is None:
                call(*args)

        return forward

    def _nudge(self) -> None:
        self._events.nudge()
        if self.replaying:
            with self._changed:
                self._changed.notify_all()

    # Sending --------------------------------------------------------------------------

    def _await_commands(self) -> bool:
        if self.error is not None:
            return False  # only the farewell is still sent
        if self.replaying:
            with self._changed:
                if self.replaying and not self.sent.num_unsent:
                    self._changed.wait(_INCARNATION_LOOK_S)
            return True
        return self._events.await_commands()

    def _send(self) -> bytes | None:
        with self._changed:
            if self.error is not None:
                return None
            raw = self.sent.send()
            if self.replaying:
                self._changed.notify_all()
            return raw

    def _take(self, kills: bool) -> OutgoingBatch | None:
        """Returns the program's next commands, once the replay is over; the lock is held."""
        return None if self.replaying else self._owner.take(self, kills)

    # Receiving ------------------------------------------------------------------------

    def _reply(self, worker: int, reply: EncodedReply) -> None:
        if self.number and reply.WhichOneof("outcome") == "value":
            self._retag(reply.value)
        if reply.ack > self.acks[worker]:
            self._note(worker, reply.ack)
        if reply.HasField("failure") and not self._is_news(worker, reply):
            self._events.acknowledge(worker, reply.ack)
            return
        self._events.reply(worker, reply)

    def _note(self, worker: int, ack: int) -> None:
        self.acks[worker] = ack
        acked, self.acked = self.acked, min(self.acks)
        if self.acked > acked:
            self.sent.settle()
        if self.replaying:
            with self._changed:
                self._changed.notify_all()
        elif self.on_complete is not None:
            self.tell_complete()

    def tell_complete(self) -> None:
        """Calls ``on_complete``, once, when the workers have replayed everything."""
        with self._changed:
            call = self.on_complete if self.complete else None
            if call is not None:
                self.on_complete = None
        if call is not None:
            call()

    def _is_news(self, worker: int, reply: EncodedReply) -> bool:
        """Whether to report a failure; known ones are reported only to a waiting caller."""
        failures, key = self._failures, (reply.failure.seq, worker)
        if reply.failure.seq == failures.deadly:
            with self._changed:
                failures.why_dead = failures.why_dead or reply.failure.message
                self._changed.notify_all()
            return False
        if reply.seq not in (0, reply.failure.seq) and not self._events.is_open(reply.seq):
            return True  # a command that was skipped, which is not reported by itself
        told = key in failures.told
        failures.told.add(key)
        return not told or self._events.is_open(reply.seq)

    def _retag(self, value: EncodedValue) -> None:
        """Adds the number of the incarnation to the tickets of an answer."""
        kind = value.WhichOneof("kind")
        if kind == "array":
            if value.array.WhichOneof("data") == "ticket":
                value.array.ticket |= self.number << TICKETS
            return
        for item in {"list": value.list.items, "map": value.map.items.values()}.get(kind or "", ()):
            self._retag(item)


# Replays a journal on other workers than before.


_AHEAD_BATCHES = 8
_AHEAD_COMMANDS = 64 * 1024
"""How much may be in flight before the slowest worker has executed it."""

_REPLAY_LOOK_S = 1.0


class Replayer:
    """Sends a journal to the workers of a new incarnation, in its order.

    Args:
        incarnation: Of the new workers.
        journal: What the former workers had been sent; it may grow meanwhile.
        events: The session's.
        failures: What failed so far.
        changed: Its lock guards all of these.
    """

    def __init__(
        self,
        incarnation: Incarnation,
        journal: Journal,
        events: Events,
        failures: KnownFailures,
        changed: threading.Condition,
    ) -> None:
        self._incarnation = incarnation
        self._journal = journal
        self._events = events
        self._failures = failures
        self._changed = changed
        self._last = 0

    def run(self, done: Callable[[], None]) -> SessionError | None:
        """Sends everything; returns the error if it could not, or None.

        Args:
            done: Called with the lock held when the workers have been sent all that the
                former ones were; from then on they get what the program issues.
        """
        at = 0
        while True:
            with self._changed:
                end = self._end()
                if end is not None:
                    return end
                if at < len(self._journal.segments):
                    segment, late = self._journal.segments[at], []
                else:
                    segment, late = None, self._left_over()
                if segment is None and not late:
                    self._incarnation.target = self._last
                    self._incarnation.replaying = False
                    done()
                    break
            if segment is not None:
                self._send(segment)
                at += 1
            self._bring(late)
        self._events.mark()
        self._events.nudge()
        return None

    def _end(self) -> SessionError | None:
        """The error for which the replay cannot continue."""
        if self._incarnation.error is not None:
            return self._incarnation.error
        if self._failures.why_dead:
            return SessionLost(
                "the session could not go on with other workers, because they cannot read its"
                f" checkpoint: {self._failures.why_dead}"
            )
        return None

    def _send(self, segment: Segment) -> None:
        """Sends some commands, and the arrays that belong to them, at the workers' pace."""
        incarnation = self._incarnation
        for piece in split_at_waits(segment, self._events.is_open):
            with self._changed:
                incarnation.sent.add(piece.encode())
                self._last = piece.last
                self._changed.notify_all()
            for ticket in piece.tickets:
                self._bring(self._take(ticket))
            if piece.awaited:
                self._await(lambda ahead=piece: incarnation.has_done(ahead.last, ahead.by))
            else:
                self._await(lambda ahead=piece: ahead.last - incarnation.acked < _AHEAD_COMMANDS)
            if incarnation.error is not None:
                return
        self._await(lambda: incarnation.sent.num_unsent < _AHEAD_BATCHES)

    def _take(self, ticket: int) -> list[Upload]:
        """The parts of an array that these workers lack; a later upload sends its own part."""
        number = self._incarnation.number
        with self._changed:
            self._incarnation.passed.add(ticket)
            found = [
                each for each in self._journal.uploads.get(ticket, ()) if each.incarnation != number
            ]
            for each in found:
                each.incarnation = number
        return found

    def _left_over(self) -> list[Upload]:
        """Arrays of commands that the program has issued, and that have not been sent."""
        number = self._incarnation.number
        left = [each for found in self._journal.uploads.values() for each in found]
        left = [each for each in left if each.incarnation != number]
        for each in left:
            each.incarnation = number
        return left

    def _bring(self, uploads: list[Upload]) -> None:
        """Sends arrays to workers.

        The log has marks among them, which a caller awaits, so not too much is in flight.
        """
        for each in uploads:
            if self._incarnation.error is not None:
                return
            try:
                self._incarnation.transport.upload(each.ticket, each.worker, memoryview(each.data))
            except SessionError:
                self._await(lambda: False, 2 * _REPLAY_LOOK_S)
                if self._incarnation.error is None:
                    raise

    def _await(self, ready: Callable[[], bool], limit: float | None = None) -> None:
        """Waits until a condition holds, or the workers are lost."""
        waited = 0.0
        while limit is None or waited < limit:
            with self._changed:
                over = self._incarnation.error is not None or bool(self._failures.why_dead)
                if over or ready() or (self._changed.wait(_REPLAY_LOOK_S) and ready()):
                    return
            waited += _REPLAY_LOOK_S
            self._incarnation.transport.check_alive()


# Why workers were lost repeatedly: by chance, or by the same command.


MAX_CRASHES = 3
"""How often the same command may end workers before it is given up."""


@dataclass(frozen=True, slots=True)
class _Crash:
    """One loss.

    Attributes:
        seq: The command at which it happened, or after which if that is not known.
        exact: Whether that is known.
        what: What the command does, or nothing.
        error: The error of the loss.
    """

    seq: int
    exact: bool
    what: str
    error: SessionLost


class CrashLoopDetector:
    """The losses of a session since it last made progress."""

    def __init__(self) -> None:
        self._row: list[_Crash] = []

    def judge(self, incarnation: Incarnation, error: SessionLost) -> PoisonCommand | None:
        """Notes a loss; returns the error if it is time to give up."""
        death = _examine(incarnation, error)
        if death is None or (self._row and not _same(self._row[-1], death)):
            self._row.clear()
        if death is None:
            return None
        self._row.append(death)
        if len(self._row) < MAX_CRASHES:
            return None
        what = f" ({death.what})" if death.what else ""
        where = "at" if death.exact else "soon after"
        lines = [str(each.error).partition("\n")[0] for each in self._row]
        told = "\n".join(f"  {number}. {line}" for number, line in enumerate(lines, 1))
        return PoisonCommand(
            f"given up, because workers were lost {where} command #{death.seq}{what}"
            f" {MAX_CRASHES} times in a row:\n{told}\n{_output(error)}".rstrip(),
            seq=death.seq,
            function=death.what,
            deaths=[each.error for each in self._row],
        )


def _same(one: _Crash, other: _Crash) -> bool:
    if one.exact and other.exact:
        return one.seq == other.seq
    return other.seq <= one.seq


def _examine(incarnation: Incarnation, error: SessionLost) -> _Crash | None:
    """Finds out at which command workers were lost; None where they had nothing to do."""
    if isinstance(error, WorkerLost):
        try:
            ranks = incarnation.transport.inspect(stacks=False, flights=False).ranks
        except SessionError:
            ranks = ()
        for rank in ranks:
            if rank.worker != error.worker:
                continue
            if rank.current is None:
                return None
            return _Crash(rank.current.seq, exact=True, what=rank.current.what, error=error)
    if incarnation.number == 0 or incarnation.complete:
        return None
    return _Crash(incarnation.acked, exact=False, what="", error=error)


def _output(error: SessionLost) -> str:
    lines = error.output if isinstance(error, WorkerLost) else ()
    return "\n".join(("its last output:", *(f"  {line}" for line in lines))) if lines else ""


_END_S = 2.0
"""How long a transfer that failed waits for the report that its session was lost."""

_CLOSE_S = 5.0
_MASK = (1 << TICKETS) - 1
_RECOVERABLE = (errors.WorkerLost, errors.NodeLost, errors.ControllerLost)

_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Recovery:
    """One recovery of a session with other workers.

    Attributes:
        lost: Why the former ones were lost.
        commands: How many commands the new ones were given again.
        seconds: From when the loss was noticed until the new workers had executed these
            commands; while they do, or where they were lost too, until those had been sent.
    """

    lost: SessionLost
    commands: int
    seconds: float


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


class Replaying:
    """A transport over several others, one after another.

    Args:
        first: Opened, and not yet started.
        successor: Opens the others.
        limit: How many bytes of commands and arrays are kept.
        span: The session's; those of recoveries are parts of it.

    Attributes:
        recoveries: What happened so far.
    """

    pump = None

    def __init__(
        self, first: Transport, successor: Successor, limit: int, span: Span = NO_SPAN
    ) -> None:
        self._span = span
        self._successor = successor
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)
        self._journal = Journal(limit)
        self._failures = KnownFailures()
        self._given_up: dict[tuple[int, int], str] = {}
        self._transport = first
        self._crash_loop = CrashLoopDetector()
        self._recovering = False
        self._leaving = False
        self._ended: SessionError | None = None
        self._thread: threading.Thread | None = None
        self._told_of_limit = False
        self.recoveries: tuple[Recovery, ...] = ()

    @property
    def welcome(self) -> Welcome:
        """Which session this is now, and where its workers run."""
        return self._transport.welcome

    @property
    def draining(self) -> tuple[str, ...]:
        """The nodes of its present workers that take no new sessions."""
        return self._transport.draining

    def start(self, events: Events) -> None:
        """Starts sending what ``events`` yields and delivering what arrives."""
        self._events = events
        self._begin(self._transport)

    def _begin(self, transport: Transport) -> Incarnation:
        with self._lock:
            number = 0 if transport is self._transport else self._incarnation.number + 1
            incarnation = Incarnation(
                self, number, transport, self._events, self._failures, self._changed
            )
            self._incarnation, self._transport = incarnation, transport
            given_up = sorted(self._given_up.items())
        transport.start(incarnation.events())
        for upload, why in given_up:  # its workers reach the commands of these too
            transport.give_up([upload], why)
        return incarnation

    # What the program sends -------------------------------------------------------------

    def take(self, incarnation: Incarnation, kills: bool) -> OutgoingBatch | None:
        """Returns the program's next commands; the lock is held."""
        return self._events.take_batch(kills) if incarnation is self._incarnation else None

    def retain(self, batch: SentBatch) -> None:
        """Keeps what workers were sent until a checkpoint; the lock is held."""
        self._journal.append(batch)
        self._tell_of_limit()

    def _tell_of_limit(self) -> None:
        if self._told_of_limit or self._journal.whole:
            return
        self._told_of_limit = True
        _logger.warning(
            "session %s: its commands and arrays are more than the %s bytes that are kept to do"
            " them again (recover_limit_bytes), so lost workers end it from now on, until"
            " session.checkpoint(path) has saved what they hold",
            self.welcome.name,
            f"{self._journal.limit:,}",
        )

    def upload(self, ticket: int, worker: int, data: memoryview) -> None:
        """Sends an array's bytes to a worker; returns when they may be changed."""
        copy = self._journal.copy_of(ticket, data)
        with self._lock:
            incarnation = self._incarnation
            kept = self._journal.add_upload(ticket, worker, copy, incarnation.number)
            self._tell_of_limit()
            gone = incarnation.error is not None
            if kept is not None and self._recovering and (gone or ticket not in incarnation.passed):
                kept.incarnation = -1  # the replay sends it
                return
        try:
            incarnation.transport.upload(ticket, worker, data)
        except SessionError:
            if kept is None or not self._is_over(incarnation):
                raise
            # Other workers get it from the journal.

    def give_up(self, uploads: Sequence[tuple[int, int]], why: str = "") -> None:
        """Reports arrays, by ticket and worker, that will not arrive, or not completely."""
        with self._lock:
            for ticket, worker in uploads:
                self._given_up[ticket, worker] = why
                self._journal.drop_upload(ticket, worker)
            transport = self._transport
        transport.give_up(uploads, why)

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
            Interrupted: Its workers are gone; the answer will be sent again.
        """
        incarnation = self._incarnation
        if ticket >> TICKETS != incarnation.number or incarnation.error is not None:
            raise Interrupted
        try:
            incarnation.transport.download(ticket & _MASK, worker, into)
        except SessionError:
            if not self._is_over(incarnation):
                raise
            raise Interrupted from None

    def _is_over(self, incarnation: Incarnation) -> bool:
        """Whether the workers of a transfer that failed were lost, and will be replaced."""
        with self._changed:
            self._changed.wait_for(lambda: incarnation.error is not None, _END_S)
            return incarnation.error is not None and self._ended is None

    # When workers are lost ------------------------------------------------------------------

    def lost(self, incarnation: Incarnation, error: SessionError) -> None:
        """Called when an incarnation is over; requests other workers, or the session is lost."""
        self._events.reopen()
        with self._changed:
            incarnation.error = error
            incarnation.sent.retain_all()
            self._changed.notify_all()
            if self._recovering and incarnation is self._incarnation:
                return  # the recovering thread sees it
            if not self._leaving and isinstance(error, _RECOVERABLE):
                self._recovering = True
                self._thread = threading.Thread(
                    target=self._recover,
                    args=(incarnation, error),
                    name="disco-recovery",
                    daemon=True,
                )
                self._thread.start()
                return
        self._finish(error)

    def _finish(self, error: SessionError) -> None:
        with self._changed:
            self._recovering = False
            self._ended = error
            self._end_incarnation(error)
        self._events.lost(error)
        self._events.nudge()

    def _end_incarnation(self, why: SessionError) -> None:
        """Ends the use of the present workers, replay included; the lock is held."""
        if self._incarnation.error is None:
            self._incarnation.error = why
        self._changed.notify_all()

    def _recover(self, incarnation: Incarnation, error: SessionLost) -> None:
        facts = {"disco.lost": str(error), "disco.commands": self._journal.commands}
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
        """Requests workers until some have replayed everything; or returns the final error."""
        began = time.monotonic()
        error: SessionError = first
        while True:
            if not isinstance(error, _RECOVERABLE):
                return error
            end = self._crash_loop.judge(incarnation, error) or self._why_not(error)
            if end is not None:
                return end
            count = self._journal.commands
            _logger.warning(
                "session %s: %s; replaying %s commands on other workers",
                self.welcome.name,
                why_ended(error),
                f"{count:,}".replace(",", " "),
            )
            incarnation.transport.close(_CLOSE_S)
            try:
                transport = self._successor.open()
            except (errors.DiscoError, OSError) as refused:
                return _because(error, f"it could not go on with other workers: {refused}")
            incarnation = self._begin(transport)
            with self._changed:
                if self._leaving:
                    self._end_incarnation(self._closed())
            replayer = Replayer(
                incarnation, self._journal, self._events, self._failures, self._changed
            )
            going = partial(self._go_on, incarnation, first, count, began)
            found = replayer.run(going)
            if found is None:
                incarnation.tell_complete()  # in case its workers are done already
                return None
            error = found

    def _closed(self) -> SessionClosed:
        return SessionClosed(f"session {self.welcome.name!r} was shut down")

    def _go_on(
        self, incarnation: Incarnation, lost: SessionLost, commands: int, began: float
    ) -> None:
        """Sends the program's commands to the new workers from now on; the lock is held."""
        self._recovering = False
        place = len(self.recoveries)
        self.recoveries += (Recovery(lost, commands, time.monotonic() - began),)
        incarnation.on_complete = lambda: self._complete(place, began)

    def _complete(self, place: int, began: float) -> None:
        """Called when the new workers have executed the replayed commands."""
        seconds = time.monotonic() - began
        with self._lock:
            made = list(self.recoveries)
            made[place] = replace(made[place], seconds=seconds)
            self.recoveries = tuple(made)
        _logger.warning("session %s goes on after %.1f s", self.welcome.name, seconds)

    def _why_not(self, error: SessionLost) -> SessionError | None:
        if self._journal.whole:
            return None
        limit = f"{self._journal.limit:,}"
        return _because(
            error,
            f"it could not go on with other workers, because its commands and arrays are more"
            f" than the {limit} bytes that are kept (recover_limit_bytes);"
            " session.checkpoint(path) makes room",
        )

    # Checkpoints --------------------------------------------------------------------------

    def check_can_prune(self) -> None:
        """Makes sure that a checkpoint would make the session recoverable.

        Raises:
            EncodingError: Too much was issued before.
        """
        if self._journal.dropped:
            raise EncodingError(
                "cannot save the session: its commands alone are more than the"
                f" {self._journal.limit:,} bytes that are kept (recover_limit_bytes), so it is not"
                " known any more how its functions were made; save it earlier"
            )

    def maker_of(self, register: int) -> str:
        """The name of the function whose result is in a register; empty where none is known."""
        with self._lock:
            return maker_of(self._journal, register)

    def prune(
        self,
        made: Collection[int],
        published: Collection[str],
        live: Collection[int],
        restore: list[tuple[int, EncodedCommand]],
        last: int,
    ) -> None:
        """Drops everything up to a command, which a checkpoint makes superfluous.

        Args:
            made: Live registers that the checkpoint does not hold.
            published: Names of published values that it does not hold.
            live: All live registers.
            restore: The commands that read the checkpoint, with their numbers; their
                last one releases registers.
            last: The command.

        Raises:
            EncodingError: How something was made is not known any more.
            SessionError: The session was lost.
        """
        with self._changed:
            self._changed.wait_for(lambda: not self._recovering or self._ended is not None)
            self.check_can_prune()
            self._incarnation.sent.retain_all()
            told = self._failures.told.copy()  # the thread that reads replies adds to it
            base = plan_pruning(
                self._journal, PruneRequest(made, published, {seq for seq, _ in told}, last)
            )
            restore[-1][1].released.extend(base.written.difference(live))
            self._journal.prune(base.segments(restore), base.tickets, last)
            self._failures.deadly = restore[1][0]
            self._failures.told = {each for each in told if each[0] > last}
            self._told_of_limit = False

    # The rest ---------------------------------------------------------------------------

    def check_alive(self) -> None:
        """Raises the session's error if nothing was received for too long."""
        incarnation = self._incarnation
        if incarnation.error is None and not incarnation.replaying:
            incarnation.transport.check_alive()

    def inspect(
        self, *, stacks: bool, flights: bool, since: Sequence[Since] | None = None
    ) -> Inspection:
        """Finds out what the ranks do, without asking them; for any thread, at any time."""
        return self._transport.inspect(stacks=stacks, flights=flights, since=since)

    def check_detachable(self) -> None:
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
            thread.join(timeout)
        self._transport.close(timeout)

    def disown(self) -> None:
        """Closes a forked child's copies of descriptors to the present workers."""
        self._transport.disown()


def _because(error: SessionLost, why: str) -> SessionLost:
    """The error with a sentence that says why the session could not continue."""
    error.args = (f"{error}\n{why}",)
    return error
