"""A session whose new workers do again what those before had done.

What it sent is kept (:mod:`~disco_client.recovery.journal`), and new workers get all of it
again; what the program issues meanwhile waits behind it. Answers and failures that the
program has received are not reported again.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from functools import partial

from disco_client.clock import monotonic
from disco_client.errors import EncodingError, Recovery, SessionError, SessionLost
from disco_client.output import logger_of
from disco_client.recovery.base import Incarnation, Recovering, Successor, because
from disco_client.recovery.crash_loops import CrashLoopDetector
from disco_client.recovery.journal import Journal, PruneRequest, maker_of, plan_pruning
from disco_client.recovery.replayer import NONE_YET, KnownFailures, Replayer
from disco_client.telemetry.base import NO_SPAN, Span
from disco_client.transport.base import Transport
from disco_client.wire.batch import SentBatch
from disco_client.wire.codec import EncodedCommand, EncodedReply, FailureKind, InterruptedAt

__all__ = ["Replaying"]


_logger = logger_of(__name__)


class Replaying(Recovering):
    """A transport that lets new workers execute again what those before had been sent.

    Args:
        first: Opened, and not yet started.
        successor: Opens the others.
        limit: How many bytes of commands and arrays are kept.
        span: The session's; those of recoveries are parts of it.
    """

    recovers_alone = True

    def __init__(
        self, first: Transport, successor: Successor, limit: int, span: Span = NO_SPAN
    ) -> None:
        super().__init__(first, successor, span)
        self._journal = Journal(limit)
        self._failures = KnownFailures()
        self._crash_loop = CrashLoopDetector()
        self._told_of_limit = False
        self._interrupting: dict[object, Collection[int]] = {}

    # What the program sends -------------------------------------------------------------

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

    def is_news(self, worker: int, reply: EncodedReply) -> bool:
        """Whether to report a failure; known ones are reported only to a waiting caller."""
        failures, key = self._failures, (reply.failure.seq, worker)
        if reply.failure.seq == failures.deadly:
            with self._changed:
                failures.why_dead = failures.why_dead or reply.failure.message
                self._changed.notify_all()
            return False
        if reply.seq not in (0, reply.failure.seq) and not self._client.is_open(reply.seq):
            return True  # a command that was skipped, which is not reported by itself
        if reply.failure.kind == FailureKind.TIME_LIMIT:
            # Other workers may be faster, and what has followed would be other than it was.
            self.leave_out({reply.failure.seq: InterruptedAt.WITHIN})
        told = key in failures.told
        failures.told.add(key)
        return not told or self._client.is_open(reply.seq)

    def upload(self, ticket: int, worker: int, data: memoryview) -> None:
        """Sends an array's bytes to a worker; returns when they may be changed."""
        copy = self._journal.copy_of(ticket, data)
        with self._lock:
            incarnation = self._incarnation
            kept = self._journal.add_upload(ticket, worker, copy, incarnation.number)
            self._tell_of_limit()
            gone = incarnation.error is not None
            if kept is not None and self._recovering and (gone or ticket not in incarnation.passed):
                kept.incarnation, kept.replayed = NONE_YET, True
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
            incarnation = self._incarnation
            number = NONE_YET if self._recovering else incarnation.number
            given_up = [self._journal.give_up(*upload, why, number) for upload in uploads]
            # The others are sent, or given up, by the replay.
            own = [
                (each.ticket, each.worker)
                for each in given_up
                if each.incarnation == incarnation.number and not each.replayed
            ]
        if own:
            incarnation.transport.give_up(own, why)

    # Interrupts -----------------------------------------------------------------------------

    def interrupt(self, until: int, workers: Sequence[int], *, force: bool = False) -> bool:
        """Interrupts commands, also those that other workers repeat just now and that never end."""
        incarnation, done = self._incarnation, self._client.acked
        if incarnation.error is not None:
            return True
        if force or incarnation.acked >= done:
            incarnation.transport.interrupt(until, workers, force=force)
        elif until > done:
            # They may still be in what all workers before had done, which is not interrupted.
            incarnation.transport.cancel([(done + 1, until)])
        return True

    def cancel(self, commands: Sequence[tuple[int, int]]) -> None:
        """Cancels commands, also those that other workers repeat just now."""
        incarnation = self._incarnation
        if incarnation.error is None:
            incarnation.transport.cancel(commands)

    def begin_interrupt(self, key: object, commands: Collection[int]) -> None:
        """Notes that commands are being interrupted: lost workers' successors leave them out.

        Args:
            key: Names the interrupt.
            commands: Their numbers. Not all workers had executed them.
        """
        self._interrupting[key] = commands
        with self._lock:
            if self._incarnation.error is not None:  # others are about to be sent everything
                self._leave_out_unknown(commands)

    def end_interrupt(self, key: object) -> None:
        """Notes that it is known what an interrupt has ended."""
        self._interrupting.pop(key, None)

    def leave_out(self, commands: Mapping[int, InterruptedAt]) -> None:
        """Lets workers that replay the session leave out what was interrupted.

        Args:
            commands: The numbers, each with how far workers had come.
        """
        with self._lock:
            self._incarnation.sent.retain_all()
            self._journal.leave_out(commands)

    def _leave_out_unknown(self, commands: Collection[int]) -> None:
        """Leaves out what is being interrupted where workers were lost; the lock is held.

        Nobody can say how far they had come: what is acknowledged may have been interrupted.
        """
        self._incarnation.sent.retain_all()
        unknown = self._journal.interruptible(commands)
        self._journal.leave_out(dict.fromkeys(unknown, InterruptedAt.WITHIN))

    def lost(self, incarnation: Incarnation, error: SessionError) -> None:
        """Called when an incarnation is over; requests other workers, or the session is lost."""
        with self._lock:
            if incarnation is self._incarnation:
                for commands in list(self._interrupting.values()):
                    self._leave_out_unknown(commands)
        super().lost(incarnation, error)

    # When workers are lost ------------------------------------------------------------------

    def _prospect(self) -> str:
        commands = f"{self._count():,}".replace(",", " ")
        return f"replaying {commands} commands on other workers"

    def _count(self) -> int:
        return self._journal.commands

    def _judge(self, incarnation: Incarnation, error: SessionLost) -> SessionError | None:
        end = self._crash_loop.judge(incarnation, error)
        if end is not None or self._journal.whole:
            return end
        limit = f"{self._journal.limit:,}"
        return because(
            error,
            f"it could not go on with other workers, because its commands and arrays are more"
            f" than the {limit} bytes that are kept (recover_limit_bytes);"
            " session.checkpoint(path) makes room",
        )

    def _continue(
        self, incarnation: Incarnation, first: SessionLost, began: float
    ) -> SessionError | None:
        count = self._count()
        replayer = Replayer(incarnation, self._journal, self._client, self._failures, self._changed)
        found = replayer.run(partial(self._go_on, incarnation, first, count, began))
        if found is None:
            incarnation.tell_complete()  # in case its workers are done already
        return found

    def _go_on(
        self, incarnation: Incarnation, lost: SessionLost, commands: int, began: float
    ) -> None:
        """Sends the program's commands to the new workers from now on; the lock is held."""
        self._recovering = False
        place = len(self.recoveries)
        recovery = Recovery(lost, commands, monotonic() - began)
        self.recoveries: tuple[Recovery, ...] = (*self.recoveries, recovery)
        incarnation.on_complete = lambda: self._complete(place, began)

    def _complete(self, place: int, began: float) -> None:
        """Called when the new workers have executed the replayed commands."""
        seconds = monotonic() - began
        with self._lock:
            made = list(self.recoveries)
            made[place] = replace(made[place], seconds=seconds)
            self.recoveries = tuple(made)
        _logger.warning("session %s goes on after %.1f s", self.welcome.name, seconds)

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
