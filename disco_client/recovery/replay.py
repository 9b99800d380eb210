"""A session whose new workers do again what those before had done.

What it sent is kept (:mod:`~disco_client.recovery.journal`), and new workers get all of it
again; what the program issues meanwhile waits behind it. Answers and failures that the
program has received are not reported again.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain

from disco_client.clock import monotonic
from disco_client.errors import (
    EncodingError,
    PoisonCommand,
    Recovery,
    SessionError,
    SessionLost,
    WorkerLost,
)
from disco_client.output import logger_of
from disco_client.recovery.base import MAX_CRASHES, Incarnation, Recovering, Successor, because
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
from disco_client.transport.base import ClientEnd, Transport
from disco_client.wire.batch import SentBatch
from disco_client.wire.codec import EncodedCommand, EncodedReply

__all__ = ["CrashLoopDetector", "KnownFailures", "Replayer", "Replaying"]


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


# Replays a journal on other workers than before.


_AHEAD_BATCHES = 8
_AHEAD_COMMANDS = 64 * 1024
"""How much may be in flight before the slowest worker has executed it."""

_REPLAY_LOOK_S = 1.0

_NONE_YET = -1
"""The incarnation of an array that the replay sends to the next workers that it passes."""


class Replayer:
    """Sends a journal to the workers of a new incarnation, in its order.

    Args:
        incarnation: Of the new workers.
        journal: What the former workers had been sent; it may grow meanwhile.
        client: The session's.
        failures: What failed so far.
        changed: Its lock guards all of these.
    """

    def __init__(
        self,
        incarnation: Incarnation,
        journal: Journal,
        client: ClientEnd,
        failures: KnownFailures,
        changed: threading.Condition,
    ) -> None:
        self._incarnation = incarnation
        self._journal = journal
        self._client = client
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
                    self._incarnation.holding = False
                    done()
                    break
            if segment is not None:
                self._send(segment)
                at += 1
            self._bring(late)
        self._client.mark()
        self._client.nudge()
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
        for piece in split_at_waits(segment, self._client.is_open):
            with self._changed:
                incarnation.sent.add(piece.encode())
                self._last = piece.last
                self._changed.notify_all()
            for ticket, seq in piece.tickets.items():
                self._bring(self._take(ticket), seq)
            if piece.awaited:
                self._await(lambda ahead=piece: incarnation.has_done(ahead.last, ahead.by))
            else:
                self._await(lambda ahead=piece: ahead.last - incarnation.acked < _AHEAD_COMMANDS)
            if incarnation.error is not None:
                return
        self._await(lambda: incarnation.sent.num_unsent < _AHEAD_BATCHES)

    def _take(self, ticket: int) -> list[Upload]:
        """The parts of an array that these workers lack; a later upload sends its own part."""
        with self._changed:
            self._incarnation.passed.add(ticket)
            return self._lacking(self._journal.uploads.get(ticket, ()))

    def _left_over(self) -> list[Upload]:
        """Arrays of commands that the program has issued, and that have not been sent."""
        return self._lacking(chain(*self._journal.uploads.values()))

    def _lacking(self, uploads: Iterable[Upload]) -> list[Upload]:
        """Those that these workers do not get yet, and get from here; the lock is held."""
        number = self._incarnation.number
        found = [each for each in uploads if each.incarnation != number]
        for each in found:
            each.incarnation, each.replayed = number, True
        return found

    def _bring(self, uploads: list[Upload], seq: int = 0) -> None:
        """Sends arrays to workers.

        The log has marks among them, which a caller awaits, so not too much is in flight.

        Args:
            uploads: The arrays.
            seq: The number of their command; 0 where no worker has been sent it before.
        """
        for each in uploads:
            if self._incarnation.error is not None:
                return
            try:
                self._send_array(each, failed=(seq, each.worker) in self._failures.told)
            except SessionError:
                self._await(lambda: False, 2 * _REPLAY_LOOK_S)
                if self._incarnation.error is None:
                    raise

    def _send_array(self, upload: Upload, *, failed: bool) -> None:
        """Sends an array to its worker, where the former one had it as well.

        That may have had all of an array that was given up. Only its failure shows that it had not.
        """
        transport, data, why = self._incarnation.transport, upload.data, upload.given_up
        if data is None or (why is not None and failed):
            transport.give_up([(upload.ticket, upload.worker)], why or "")
        else:
            transport.upload(upload.ticket, upload.worker, memoryview(data))

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
                kept.incarnation, kept.replayed = _NONE_YET, True
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
            number = _NONE_YET if self._recovering else incarnation.number
            given_up = [self._journal.give_up(*upload, why, number) for upload in uploads]
            # The others are sent, or given up, by the replay.
            own = [
                (each.ticket, each.worker)
                for each in given_up
                if each.incarnation == incarnation.number and not each.replayed
            ]
        if own:
            incarnation.transport.give_up(own, why)

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
        self.recoveries += (Recovery(lost, commands, monotonic() - began),)
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
