"""Replies of workers: the calls that wait for them, and failures not yet raised."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol

from disco_client.answers import Answer, Answers
from disco_client.clock import monotonic
from disco_client.errors import IssuedAt, RemoteFailure, SessionError
from disco_client.failed_commands import (
    FailedCommand,
    FailedCommands,
    Failures,
    InterruptedCommands,
    Report,
)
from disco_client.liveness import Liveness
from disco_client.locks import check_no_lock_held, make_lock
from disco_client.reentry import Event, owned
from disco_client.scopes import Scope
from disco_client.session_end import SessionEnd
from disco_client.sources import name_source
from disco_client.transport.base import AskedInterrupt, Live, ProgressPump, Pump
from disco_client.waiting import LOOK_S, Deadline, LongWaits
from disco_client.wire.codec import EncodedReply, EncodedValue, decode_failure, tickets_in

__all__ = ["Inbox", "Settling"]

_CAUSE_WAIT_S = 1.0
"""How long an aborted collective waits for the report of the rank that caused it."""

_CAUSE_POLL_S = 0.002


class Settling:
    """An interrupt of which is not known yet what it has ended.

    Args:
        scope: That of the thread that finds it out.
    """

    def __init__(self, scope: Scope) -> None:
        self._scope = scope
        self._known = Event()
        self._until = 0.0

    def begin(self, seconds: float) -> None:
        """Lets others wait for it, for so many seconds."""
        self._until = monotonic() + seconds

    def end(self) -> None:
        """Lets waits go on."""
        self._known.set()

    def wait(self, scope: Scope, ending: SessionEnd) -> None:
        """Waits until it is known, the time is over, or the session is."""
        while scope is not self._scope and ending.error is None:
            left = self._until - monotonic()
            if left <= 0 or self._known.wait(min(LOOK_S, left)):
                return
            check_no_lock_held()


class Commands(Protocol):
    """What is to be known of the commands that are answered."""

    @property
    def answers(self) -> Answers:
        """The answers to come."""
        ...

    @property
    def ending(self) -> SessionEnd:
        """How far the session has come to its end."""
        ...

    @property
    def acked(self) -> int:
        """The newest command that every worker has executed."""
        ...

    def acknowledge(self, worker: int, seq: int) -> None:
        """Notes that a worker has executed every command up to one."""
        ...

    def origin(self, seq: int) -> tuple[IssuedAt, Scope] | None:
        """The line and the scope that issued a command, while it is remembered."""
        ...

    def scope(self) -> Scope:
        """The scope in which the program calls."""
        ...


class Inbox:
    """Replies of one session, brought by the transport's reader thread, or one that waits.

    Where an exception interrupts the latter in the middle of a reply, another thread takes that
    reply again.

    Args:
        commands: The commands that are answered.
        explain: Adds to a failure inside a program where the client captured it.
        first_seq: The number of its first command; those before are of a program that
            has left the session, and so are their failures.
        lock: A reentrant lock that guards it; its owner may guard more with it.
        long_waits: Is notified of waits each second.

    Attributes:
        answers: The answers to come.
        ending: How far the session has come to its end.
        pump: Lets the waiting thread send and receive by itself, if set.
        decline: Gets arrays, by ticket and worker, that came with answers that no call reads.
        settling: Set while it is not known yet what an interrupt has ended: waits do not raise
            before, but for those of the scope that interrupts.
        on_interrupt_asked: Called, in the thread that reads, when somebody else than the program
            wants the session interrupted; must not wait.
        cancelled: See :class:`~disco_client.failed_commands.FailedCommands`.
        on_replaced: Called with a scope that is about to learn, from a wait that :meth:`end`
            has ended, that the session's workers were replaced.
        entered: Says whether the calling thread is in the middle of noting something.
    """

    def __init__(
        self,
        commands: Commands,
        explain: Callable[[RemoteFailure], RemoteFailure] = lambda failure: failure,
        first_seq: int = 1,
        lock: threading.RLock | None = None,
        long_waits: LongWaits | None = None,
    ) -> None:
        self._commands = commands
        self.answers: Answers = commands.answers
        self.ending: SessionEnd = commands.ending
        self._explain = explain
        self._lock = make_lock("session") if lock is None else lock
        self.entered: Callable[[], bool] = owned(self._lock)
        self._failed = FailedCommands(commands.origin, commands.scope(), first_seq)
        self.cancelled: list[Container[int]] = self._failed.cancelled
        self._long_waits = LongWaits() if long_waits is None else long_waits
        self._liveness = Liveness(self.answers, self.ending, self._long_waits)
        self.pump: Pump | None = None
        self.decline: Callable[[Sequence[tuple[int, int]]], None] = lambda _arrays: None
        self.settling: Settling | None = None
        self.on_interrupt_asked: Callable[[AskedInterrupt], object] = lambda _asked: None
        self.on_replaced: Callable[[Scope], object] = lambda _scope: None

    def receive(self, worker: int, reply: EncodedReply) -> None:
        """Takes one reply from a worker."""
        outcome = reply.WhichOneof("outcome")
        if outcome == "failure":
            # Before the acknowledgement, which may forget the command's line.
            self._receive_failure(worker, reply)
            self._commands.acknowledge(worker, reply.ack)
            return
        self._commands.acknowledge(worker, reply.ack)
        if reply.seq:
            # Last, because a woken thread competes with this one from here on.
            self._complete(reply.seq, worker, reply.value if outcome == "value" else None, None)

    def receive_live(self, worker: int, seq: int, value: Any) -> None:
        """Takes an answer that is an object of this process."""
        self._commands.acknowledge(worker, seq)
        self._complete(seq, worker, Live(value), None)

    def _receive_failure(self, worker: int, reply: EncodedReply) -> None:
        failure, kind = decode_failure(reply.failure)
        failure = name_source(self._explain(failure))
        with self._lock:
            failed = self._failed.remember(failure.seq)
            failure = replace(failure, issued_at=failed.issued_at)
            if reply.seq not in self.answers.expected:
                self._failed.note(reply.seq, failed, (failure, kind))
                return
        self._complete(reply.seq, worker, None, (failure, kind))

    def _complete(
        self,
        seq: int,
        worker: int,
        value: Any,
        failure: Report | None,
    ) -> None:
        call = None
        with self._lock:
            answer = self.answers.take(seq, worker, value, failure)
            if answer is not None and answer.missing == 0 and answer.error is None:
                call = self.answers.unattended.get(seq)
        if answer is None:
            self._discard({worker: value})  # of a question that was abandoned
        elif call is not None:
            call()
            self.answers.unattended.pop(seq, None)

    def _discard(self, values: Mapping[int, Any]) -> None:
        """Declines the arrays of answers that no call reads."""
        arrays = [
            (ticket, worker)
            for worker, value in values.items()
            if isinstance(value, EncodedValue)
            for ticket in tickets_in((value,))
        ]
        if arrays:
            self.decline(arrays)

    def lose(self, error: SessionError) -> None:
        """Ends every wait, now and later, with this error."""
        with self._lock:
            self.ending.end(error)
            calls = self.answers.end_all(self.ending.error or error)
        self._liveness.end()
        for call in calls:
            call()

    def disown(self, why: SessionError, lock: threading.RLock) -> None:
        """Ends every wait in a forked child, where another lock guards it.

        A thread of the parent may have held the former one.
        """
        self._lock = lock
        self.entered = owned(lock)
        self._liveness.disown()
        self.decline = lambda _arrays: None
        self.ending.told = True  # leaving is no wait, and the errors of workers are the parent's
        self.lose(why)

    def reopen(self) -> None:
        """Prepares for other workers to repeat all answers that are still awaited."""
        with self._lock:
            self.answers.reopen()

    def end(self, make: Callable[[], SessionError], first: int, last: int) -> None:
        """Ends the waits for commands that will not be answered, each with an error of its own.

        Args:
            make: Makes the error.
            first: The number of the first of these commands.
            last: That of the last one.
        """
        with self._lock:
            calls = self.answers.end(make, first, last)
        for call in calls:
            call()

    def set_aside(self, scopes: Iterable[Scope]) -> None:
        """Leaves it to :meth:`failures` alone to tell of what failed in these scopes so far."""
        with self._lock:
            self._failed.set_aside(scopes)

    def is_open(self, seq: int) -> bool:
        """Whether the answer to a command is awaited, or being read."""
        return seq in self.answers.expected

    def wait(self, seq: int, alive: Callable[[], None], deadline: Deadline | None = None) -> Answer:
        """Waits for the replies to a command, and forgets them; see :meth:`look`."""
        try:
            return self.look(seq, alive, deadline)
        finally:
            self.forget(seq)

    def forget(self, seq: int, *, told: bool = False) -> None:
        """Expects no more replies to a command; arrays that come with one are declined.

        Args:
            seq: The command.
            told: Whether its caller learns of the failure by another error, so that no
                later wait raises the worker's report.
        """
        with self._lock:
            expected = self.answers.forget(seq)
            if told and expected is not None:
                self._failed.remember(seq).seen = True
            elif expected is not None:
                for failure, kind in expected.failures:  # that no call has raised
                    failed = self._failed.remember(failure.seq)
                    self._failed.note(seq, failed, (failure, kind))
        if expected is not None and expected.values:
            self._discard(expected.values)

    def look(
        self,
        seq: int,
        alive: Callable[[], None],
        deadline: Deadline | None = None,
        scope: Scope | None = None,
    ) -> Answer:
        """Waits for the replies to a command; may be called again for the same command.

        Args:
            seq: A command announced by :meth:`expect`.
            alive: Called every second; raises if no reply can arrive any more.
            deadline: When to end the wait; it may be repeated.
            scope: Who asked, where that is not the caller.

        Raises:
            DiscoTimeout: There is no answer yet.
            SessionError: The session was lost meanwhile.
            RemoteError: The command failed.
        """
        answer = self.answers.expected[seq]
        self._await(answer, alive, deadline)
        if answer.error is not None:
            if answer.error is self.ending.error:
                self.ending.told = True
            else:
                self.on_replaced(self._commands.scope() if scope is None else scope)
            raise answer.error.with_traceback(None)
        if answer.failures:
            scope = self._commands.scope() if scope is None else scope
            self._await_settled(scope)
            with self._lock:
                error = self._failed.choose(answer.failures, scope)
            answer.failures = []
            try:
                raise error
            finally:
                del error  # else it would keep itself, by its traceback
        return answer

    def _await(self, answer: Answer, alive: Callable[[], None], deadline: Deadline | None) -> None:
        """Waits until an answer is complete; see :meth:`look`."""
        since = None
        try:
            # One that has come may be read where there is no waiting, as in a thread that reads.
            while answer.missing and not answer.wait(
                LOOK_S if deadline is None else deadline.left(), self.pump
            ):
                if deadline is not None:
                    deadline.check()
                check_no_lock_held()
                alive()
                since = self._long_waits.look(since)
        except KeyboardInterrupt as error:
            self._long_waits.on_interrupt(error)
            raise

    def attend(self, seq: int, alive: Callable[[], None], deadline: Deadline | None = None) -> bool:
        """Waits in this thread for an answer that no thread waits for.

        Args:
            seq: A command given to :meth:`call_when_answered`, whose call is left out.
            alive: Called every second; raises if no reply can arrive any more.
            deadline: When to end the wait; then the answer is unattended again.

        Returns:
            Whether the answer is there, or the session's end in its place; False if another
            thread waits for it, or has read it.

        Raises:
            DiscoTimeout: There is no answer yet.
        """
        with self._lock:
            call = self.answers.unattended.pop(seq, None)
            answer = self.answers.expected.get(seq)
        if call is None or answer is None:
            return answer is not None and answer.complete
        try:
            self._await(answer, alive, deadline)
        except BaseException as error:
            with self._lock:
                missing = answer.missing
                if missing:
                    self.answers.unattended[seq] = call
            if not isinstance(error, SessionError):
                if not missing:
                    call()
                raise
            return not missing  # else all callers are being notified
        return True

    def reach(
        self,
        workers: Sequence[int],
        pump: ProgressPump,
        alive: Callable[[], None],
        deadline: Deadline | None = None,
    ) -> None:
        """Waits until workers have executed everything issued before.

        Unlike :meth:`wait`, for which a command is issued, this only asks how far
        the workers are; transports that can be asked let waiting threads work.

        Args:
            workers: The workers to ask.
            pump: Asks and waits.
            alive: Called every second; raises if no reply can arrive any more.
            deadline: When to end the wait.

        Raises:
            DiscoTimeout: They have not yet.
            SessionError: The session was lost meanwhile.
        """
        waiters = [threading.Lock() for _ in workers]
        for waiter in waiters:
            waiter.acquire()
        for worker, waiter in zip(workers[1:], waiters[1:], strict=True):
            pump.ask(worker, waiter)
        ask: int | None = workers[0]
        since = None
        try:
            for waiter in waiters:
                while not pump.wait(waiter, LOOK_S if deadline is None else deadline.left(), ask):
                    ask = None
                    if deadline is not None:
                        deadline.check()
                    check_no_lock_held()
                    alive()
                    since = self._long_waits.look(since)
                ask = None
        except KeyboardInterrupt as error:
            self._long_waits.on_interrupt(error)
            raise
        self.ending.check_alive()

    # Answers that no thread waits for ------------------------------------------------

    def call_when_answered(
        self, seq: int, call: Callable[[], None], alive: Callable[[], None]
    ) -> None:
        """Calls something, once, when a command is answered or the session has ended.

        Args:
            seq: A command announced by :meth:`expect`.
            call: Called in the thread that brings the answer, or in this one, where it is
                there already; it must not wait.
            alive: Called every second until then, in a thread that is kept for all such
                answers; makes sure that replies can arrive.

        Raises:
            ThreadRefused: The system does not start that thread; the answer is not expected.
        """
        with self._lock:
            later = not self.answers.expected[seq].complete
            if later:
                self.answers.unattended[seq] = call
        if not later:
            call()
            return
        try:
            self._liveness.watch(alive)
        except SessionError:
            self.forget(seq)
            raise

    def is_plain(self, seq: int, scope: Scope) -> bool:
        """Whether an answer that has come, or the error in its place, is read without waiting.

        Args:
            seq: The command.
            scope: Who asked.
        """
        with self._lock:
            answer = self.answers.expected.get(seq)
            if answer is None or answer.error is not None:
                return False
            if self.settling is not None or self._failed.may_raise_late(scope):
                return False
        encoded = [value for value in answer.values.values() if isinstance(value, EncodedValue)]
        return not encoded or next(tickets_in(encoded), None) is None

    # What went wrong -----------------------------------------------------------------

    def raise_pending(
        self, *, sync: bool = False, scope: Scope | None = None, before: int | None = None
    ) -> None:
        """Raises the oldest failure that this scope has not seen, if there is one.

        Args:
            sync: Whether this is a sync, in which the thread that opened the session also
                gets failures that ended threads have left.
            scope: Who asked, where that is not the caller.
            before: The command that asked, where others may have been issued since; their
                failures are left to other waits.

        Raises:
            RemoteError: The failure. Later ones of the scope are counted, and are seen too.
        """
        if self.settling is not None:
            self._await_settled(self._commands.scope() if scope is None else scope)
        if not self._failed.some:
            return
        scope = self._commands.scope() if scope is None else scope
        with self._lock:
            failed = self._failed.oldest(scope, sync=sync, before=before)
        if failed is not None and failed.is_aborted:
            self._await_cause(failed)
        with self._lock:
            # Perhaps another thread in this scope has raised it.
            error = self._failed.see(scope, sync=sync, before=before)
        if error is not None:
            raise error

    def _await_settled(self, scope: Scope) -> None:
        settling = self.settling
        if settling is not None:
            settling.wait(scope, self.ending)

    def interrupt(self, interrupted: InterruptedCommands) -> None:
        """Notes which commands were interrupted, for the scopes that issued them."""
        with self._lock:
            self._failed.interrupt(interrupted)

    def raise_left(self) -> None:
        """Raises the oldest unseen failure, whichever scope issued its command.

        Raises:
            RemoteError: The failure.
        """
        with self._lock:
            error = self._failed.left()
        if error is not None:
            raise error

    def failures(self) -> Failures:
        """Unseen failures of scopes that have ended, and those that were counted but not raised."""
        with self._lock:
            return self._failed.summary()

    def give_back(self, error: BaseException | None) -> None:
        """Keeps an error for another wait, because no call has read it.

        Args:
            error: As raised by :meth:`look` or :meth:`raise_pending`. Safe inside the garbage
                collector.
        """
        self._failed.give_back(error)

    def _await_cause(self, failed: FailedCommand) -> None:
        """An aborted collective names other ranks; their own report is the cause.

        A rank reports before it acknowledges, so once every rank has passed the
        command there is nothing more to wait for.
        """
        deadline = monotonic() + _CAUSE_WAIT_S
        while (
            self.ending.error is None
            and self._commands.acked < failed.seq
            and monotonic() < deadline
        ):
            if self._failed.is_explained(failed):
                return
            time.sleep(_CAUSE_POLL_S)
