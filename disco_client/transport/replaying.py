"""A session that goes on with other workers when its own are lost.

What it sent is kept (:mod:`~disco_client.transport.journal`). When its workers are
lost, a new session is asked for, and gets all that once more; what the program issues
meanwhile waits behind it. Answers and failures that the program has had are not told
again.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Protocol

from disco_client import errors
from disco_client.errors import EncodingError, SessionClosed, SessionError, SessionLost
from disco_client.telemetry.base import NO_SPAN, Span
from disco_client.transport.again import Again
from disco_client.transport.base import Events, Interrupted, OutgoingBatch, Transport, Welcome
from disco_client.transport.deaths import Deaths
from disco_client.transport.journal import Journal
from disco_client.transport.life import TICKETS, Failures, Life
from disco_client.transport.slicing import Slice, cut
from disco_client.wire.codec import EncodedCommand
from disco_client.wire.flight_cuts import Since
from disco_client.wire.inspection import Inspection

__all__ = ["Recovery", "Replaying", "Successor"]

_END_S = 2.0
"""How long a transfer that failed waits to hear that its session was lost."""

_CLOSE_S = 5.0
_MASK = (1 << TICKETS) - 1
_RECOVERABLE = (errors.WorkerLost, errors.NodeLost, errors.ControllerLost)

_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Recovery:
    """One time that a session went on with other workers.

    Attributes:
        lost: Why the former ones were lost.
        commands: How many commands the new ones were given again.
        seconds: How long it took.
    """

    lost: SessionLost
    commands: int
    seconds: float


class Successor(Protocol):
    """Opens sessions like the first one."""

    def open(self) -> Transport:
        """Asks for another session, and waits until its workers are ready.

        Raises:
            DiscoError: It cannot be had.
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
        self._failures = Failures()
        self._given_up: set[tuple[int, int]] = set()
        self._transport = first
        self._deaths = Deaths()
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

    def start(self, events: Events) -> None:
        """Begins to send what ``events`` yields and to deliver what comes."""
        self._events = events
        self._begin(self._transport)

    def _begin(self, transport: Transport) -> Life:
        with self._lock:
            number = 0 if transport is self._transport else self._life.number + 1
            life = Life(self, number, transport, self._events, self._failures, self._changed)
            self._life, self._transport = life, transport
            given_up = sorted(self._given_up)
        transport.start(life.events())
        if given_up:  # its workers come to the commands of these too
            transport.give_up(given_up)
        return life

    # What the program sends -------------------------------------------------------------

    def take(self, life: Life, kills: bool) -> OutgoingBatch | None:
        """Returns the program's next commands, written down; the lock is held."""
        if life is not self._life:
            return None
        batch = self._events.take_batch(kills)
        if batch is None:
            return None
        kept = self._journal.append(batch, life.transport.welcome.session)
        self._tell_of_limit()
        return kept

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
            life = self._life
            kept = self._journal.add_upload(ticket, worker, copy, life.number)
            self._tell_of_limit()
            gone = life.error is not None
            if kept is not None and self._recovering and (gone or ticket not in life.passed):
                kept.life = -1  # who does the commands again comes to it
                return
        try:
            life.transport.upload(ticket, worker, data)
        except SessionError:
            if kept is None or not self._is_over(life):
                raise
            # Other workers get it; this one has been written down.

    def give_up(self, uploads: Sequence[tuple[int, int]]) -> None:
        """Says of arrays, by ticket and worker, that no upload of them will begin."""
        with self._lock:
            self._given_up.update(uploads)
            transport = self._transport
        transport.give_up(uploads)

    def download(self, ticket: int, worker: int, into: memoryview) -> None:
        """Fills a buffer with the array that a worker offered.

        Raises:
            Interrupted: Its workers are gone; the answer comes again.
        """
        life = self._life
        if ticket >> TICKETS != life.number or life.error is not None:
            raise Interrupted
        try:
            life.transport.download(ticket & _MASK, worker, into)
        except SessionError:
            if not self._is_over(life):
                raise
            raise Interrupted from None

    def _is_over(self, life: Life) -> bool:
        """Whether the workers of a transfer that failed were lost, and others come."""
        with self._changed:
            self._changed.wait_for(lambda: life.error is not None, _END_S)
            return life.error is not None and self._ended is None

    # When workers are lost ------------------------------------------------------------------

    def lost(self, life: Life, error: SessionError) -> None:
        """Hears that a life is over; others are asked for, or the session is lost."""
        self._events.reopen()
        with self._changed:
            life.error = error
            self._changed.notify_all()
            if self._recovering and life is self._life:
                return  # who recovers sees it
            if not self._leaving and isinstance(error, _RECOVERABLE):
                self._recovering = True
                self._thread = threading.Thread(
                    target=self._recover, args=(life, error), name="disco-recovery", daemon=True
                )
                self._thread.start()
                return
        self._finish(error)

    def _finish(self, error: SessionError) -> None:
        with self._changed:
            self._recovering = False
            self._ended = error
            self._end_life(error)
        self._events.lost(error)
        self._events.nudge()

    def _end_life(self, why: SessionError) -> None:
        """Nothing is done again, nor anew, by the present workers; the lock is held."""
        if self._life.error is None:
            self._life.error = why
        self._changed.notify_all()

    def _recover(self, life: Life, error: SessionLost) -> None:
        facts = {"disco.lost": str(error), "disco.commands": self._journal.commands}
        with self._span.within("disco.recover", facts) as span:
            try:
                end = self._try_to_recover(life, error)
            except Exception as broke:
                _logger.exception("the recovery of session %s failed", self.welcome.name)
                end = SessionLost(f"{error}\nits recovery failed: {broke!r}")
            if end is not None:
                span.fail(end)
        if end is not None:
            self._finish(end)

    def _try_to_recover(self, life: Life, first: SessionLost) -> SessionError | None:
        """Asks for workers until some have done everything again; or returns the end."""
        began = time.monotonic()
        error: SessionError = first
        while True:
            if not isinstance(error, _RECOVERABLE):
                return error
            end = self._deaths.judge(life, error) or self._why_not(error)
            if end is not None:
                return end
            count = self._journal.commands
            _logger.warning(
                "session %s: %s; replaying %s commands on other workers",
                self.welcome.name,
                str(error).partition("\n")[0].partition("; session ")[0],
                f"{count:,}".replace(",", " "),
            )
            life.transport.close(_CLOSE_S)
            try:
                transport = self._successor.open()
            except (errors.DiscoError, OSError) as refused:
                return _because(error, f"it could not go on with other workers: {refused}")
            life = self._begin(transport)
            with self._changed:
                if self._leaving:
                    self._end_life(self._closed())
            made = Recovery(first, count, time.monotonic() - began)
            again = Again(life, self._journal, self._events, self._failures, self._changed)
            found = again.run(lambda recovery=made: self._go_on(recovery))
            if found is None:
                _logger.warning(
                    "session %s goes on after %.1f s",
                    self.welcome.name,
                    time.monotonic() - began,
                )
                return None
            error = found

    def _closed(self) -> SessionClosed:
        return SessionClosed(f"session {self.welcome.name!r} was shut down")

    def _go_on(self, made: Recovery) -> None:
        """The program's commands go to the new workers from now on; the lock is held."""
        self._recovering = False
        self.recoveries += (made,)

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

    def check_can_cut(self) -> None:
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

    def cut(
        self,
        made: Collection[int],
        published: Collection[str],
        live: Collection[int],
        restore: list[tuple[int, EncodedCommand]],
        last: int,
    ) -> None:
        """Forgets everything up to a command, which a checkpoint makes superfluous.

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
            self.check_can_cut()
            told = self._failures.told.copy()  # the thread that reads replies adds to it
            base = cut(self._journal, Slice(made, published, {seq for seq, _ in told}, last))
            restore[-1][1].released.extend(base.written.difference(live))
            self._journal.begin_again(base.segments(restore), base.tickets, last)
            self._failures.deadly = restore[1][0]
            self._failures.told = {each for each in told if each[0] > last}
            self._told_of_limit = False

    # The rest ---------------------------------------------------------------------------

    def check_alive(self) -> None:
        """Raises the session's error when nothing has been heard for too long."""
        life = self._life
        if life.error is None and not life.replaying:
            life.transport.check_alive()

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
        """Waits until what was sent has left, then ends; idempotent."""
        with self._changed:
            self._leaving = True
            thread = self._thread if self._recovering else None
            if thread is not None:
                self._end_life(self._closed())
        if thread is not None:
            self._successor.abandon()
            thread.join(timeout)
        self._transport.close(timeout)


def _because(error: SessionLost, why: str) -> SessionLost:
    """The error with a sentence that says why the session did not go on."""
    error.args = (f"{error}\n{why}",)
    return error
