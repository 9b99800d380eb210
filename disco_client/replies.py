"""Replies of workers: the calls that wait for them, and failures not yet raised."""

from __future__ import annotations

import contextlib
import math
import os
import re
import threading
import time
import weakref
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, TypeAlias

from disco_client import errors
from disco_client.clock import LONGEST_S, monotonic
from disco_client.errors import (
    ConfigError,
    DiscoTimeout,
    IssuedAt,
    RemoteError,
    RemoteFailure,
    SessionError,
)
from disco_client.locks import check_no_lock_held, make_lock
from disco_client.output import say
from disco_client.reentry import Event, owned
from disco_client.scopes import NO_SCOPE, Scope
from disco_client.sources import name_source
from disco_client.text import many
from disco_client.threads import start_thread
from disco_client.transport.base import Live, ProgressPump, Pump
from disco_client.wire.codec import (
    EncodedReply,
    EncodedValue,
    FailureKind,
    decode_failure,
    tickets_in,
)

__all__ = [
    "AUTO",
    "Answer",
    "Deadline",
    "Failures",
    "Inbox",
    "LongWaits",
    "Wait",
    "read_hang_report",
]


_LOOK_S = 1.0
"""How often a wait makes sure that its session goes on."""


class Deadline:
    """When a wait ends without an answer.

    Args:
        seconds: How long it may take.
    """

    __slots__ = ("_end", "seconds")

    def __init__(self, seconds: float) -> None:
        self.seconds: float = seconds
        self._end = monotonic() + seconds

    @classmethod
    def of(cls, timeout: float | None) -> Deadline | None:
        """That of a call with a ``timeout``; None for one that waits as long as it takes.

        Raises:
            ConfigError: It is no number of seconds.
        """
        if timeout is None:
            return None
        if isinstance(timeout, bool) or not isinstance(timeout, int | float) or not timeout >= 0:
            msg = f"expected a timeout of 0 or more seconds, or None for no limit, got {timeout!r}"
            raise ConfigError(msg)
        return cls(timeout)

    def left(self) -> float:
        """How many seconds to wait now, before the session is looked at."""
        return min(self.remaining(), _LOOK_S)

    def remaining(self) -> float:
        """How many seconds are left; a day, where it is more."""
        return min(max(self._end - monotonic(), 0.0), LONGEST_S)

    def check(self) -> None:
        """Ends the wait if it is over.

        Raises:
            DiscoTimeout: It is.
        """
        if monotonic() >= self._end:
            raise self.error()

    def error(self) -> DiscoTimeout:
        """What a wait raises that is over."""
        return DiscoTimeout(
            f"no answer within timeout={self.seconds:g} s; the session goes on, so the call may be"
            " repeated (session.diagnose() says what the workers do)"
        )


# Long waits are reported automatically.


AUTO = -1.0
"""Stands for what ``DISCO_HANG_REPORT_S`` says, or else 30 seconds."""

_VARIABLE = "DISCO_HANG_REPORT_S"
_DEFAULT_S = 30.0


def read_hang_report(value: object, environ: Mapping[str, str] = os.environ) -> float:
    """After how many seconds a wait reports what it waits for; infinite for never.

    Args:
        value: Seconds; 0 or None for never; `AUTO` for what the environment says.
        environ: The environment.

    Raises:
        ConfigError: It is no such number.
    """
    where = "hang_report"
    if value == AUTO:
        where, value = _VARIABLE, environ.get(_VARIABLE) or _DEFAULT_S
    if value is None:
        return math.inf
    try:
        seconds = math.nan if isinstance(value, bool) else float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        seconds = math.nan
    if not seconds >= 0:
        msg = f"{where}: expected a number of seconds, 0 or None for never, got {value!r}"
        raise ConfigError(msg)
    return seconds or math.inf


class Wait(NamedTuple):
    """The state of a wait.

    Attributes:
        began: When it began.
        quiet: Until when nothing is reported.
        told: The verdict that was reported last, without its numbers; None if there was none.
    """

    began: float
    quiet: float
    told: str | None = None


class LongWaits:
    """Reports what a session waits for, on standard error.

    A wait that was reported is looked at from time to time, and reported again if it is for
    something else. For a session that makes progress that is reported once.

    Args:
        after: Seconds that a wait may take before it is reported; also between two looks.
        describe: Finds out what the session does: as a text, the verdict in it, and
            whether it makes progress.
    """

    def __init__(
        self,
        after: float = math.inf,
        describe: Callable[[], tuple[str, str, bool]] = lambda: ("", "", False),
    ) -> None:
        self._after = after
        self._describe = describe

    def look(self, wait: Wait | None) -> Wait:
        """Called each second by the waiting thread.

        Args:
            wait: What it returned the last time; None the first time.

        Returns:
            What to give the next time.
        """
        now = monotonic()
        if wait is None:
            wait = Wait(now - 1.0, now - 1.0 + self._after)
        if now < wait.quiet:
            return wait
        try:
            text, verdict, goes_on = self._describe()
        except Exception as error:  # noqa: BLE001  (the wait must continue after any error)
            text = verdict = f"what the ranks do cannot be found out: {error}"
            goes_on = False
        # Durations and commands' numbers change while the wait is for the same.
        verdict = _NUMBER.sub("", verdict)
        if wait.told is None or not (goes_on or verdict == wait.told):
            waited = (
                f"disco: this call has waited for {now - wait.began:.0f} s, and goes on waiting"
            )
            say(f"{waited}\n{text}")
            wait = wait._replace(told=verdict)
        return wait._replace(quiet=now + self._after)


_NUMBER = re.compile(r"[\d.]+( ms| s| min)?")


_REMEMBERED = 1024
"""How many failed commands are remembered, with whether they were seen."""

_KEPT = 1000
"""How many failures of a scope, or of those that have ended, are kept until they are seen."""

_CAUSE_WAIT_S = 1.0
"""How long an aborted collective waits for the report of the rank that caused it."""

_CAUSE_POLL_S = 0.002

_ERRORS: dict[FailureKind, type[RemoteError]] = {
    FailureKind.EXCEPTION: errors.RemoteException,
    FailureKind.NOT_FOUND: errors.FunctionNotFound,
    FailureKind.NOT_ALLOWED: errors.NotAllowed,
    FailureKind.BAD_ARGUMENT: errors.BadArgument,
    FailureKind.MISMATCH: errors.CollectiveMismatch,
    FailureKind.ABORTED: errors.CollectiveAborted,
    FailureKind.LEFT_OUT: errors.CollectiveAborted,
    FailureKind.CCL: errors.CclError,
    FailureKind.FILE: errors.BadFile,
    FailureKind.STALE: errors.StaleReference,
}


_Report: TypeAlias = tuple[RemoteFailure, FailureKind]


@dataclass(frozen=True, slots=True)
class Failures:
    """Failures that threads, tasks and blocks ended without raising.

    Attributes:
        total: How many commands failed so.
        last: The errors of the last 1,000 of them, the oldest first.

    Examples:
        >>> with session.scope():
        ...     _ = session.get_global_func("numpy.reshape")(np.ones(2), (3,))
        >>> session.failures().total
        0
    """

    total: int = 0
    last: tuple[RemoteError, ...] = ()


class _FailedCommand:
    """A command that failed on one worker or more.

    Attributes:
        seq: Its number.
        scope: The scope and the line that issued it, where known.
        reports: The failures that workers reported.
        seen: Whether a call of its scope has raised it.
    """

    __slots__ = ("issued_at", "reports", "scope", "seen", "seq")

    def __init__(self, seq: int, issued_at: IssuedAt | None, scope: Scope) -> None:
        self.seq = seq
        self.issued_at = issued_at
        self.scope = scope
        self.reports: list[_Report] = []
        self.seen = False

    @property
    def is_aborted(self) -> bool:
        """Whether all reports are of a collective that other ranks could not enter."""
        return all(kind is FailureKind.ABORTED for _, kind in self.reports)


class Answer:
    """The replies to one command; complete when every asked worker replied."""

    __slots__ = ("asked", "error", "failures", "missing", "replied", "values", "waiter")

    def __init__(self, answers: int) -> None:
        self.asked: int = answers
        self.missing: int = answers
        self.replied: set[int] = set()
        self.values: dict[int, Any] = {}
        self.failures: list[_Report] = []
        self.error: SessionError | None = None
        self.waiter: threading.Lock = threading.Lock()
        self.waiter.acquire()

    @property
    def complete(self) -> bool:
        """Whether nothing more is waited for: every reply, or the session's end, has come."""
        return not self.missing or self.error is not None

    def wait(self, timeout: float, pump: Pump | None = None) -> bool:
        """Waits up to ``timeout`` seconds; whether the answer is complete."""
        if pump is not None:
            return pump.wait(self.waiter, timeout)
        return self.waiter.acquire(timeout=timeout)

    def open(self) -> None:
        """Wakes the waiting thread; may be repeated."""
        with contextlib.suppress(RuntimeError):  # it is free
            self.waiter.release()


class Inbox:
    """Replies of one session, brought by the transport's reader thread, or one that waits.

    Where an exception interrupts the latter in the middle of a reply, another thread takes that
    reply again.

    Args:
        acknowledge: Called with (worker, seq) for every reply.
        acked: The newest command that every worker has executed.
        origin: Finds the client's line and scope of a command that is still remembered.
        here: Says in which scope the program calls.
        explain: Adds to a failure inside a program where the client captured it.
        first_seq: The number of its first command; those before are of a program that
            has left the session, and so are their failures.
        lock: A reentrant lock that guards it; its owner may guard more with it.

    Attributes:
        pump: Lets the waiting thread send and receive by itself, if set.
        decline: Gets arrays, by ticket and worker, that came with answers that no call reads.
        told: Whether a call has raised the error that ended the session.
        on_replaced: Called with a scope that is about to learn, from a wait that :meth:`end`
            has ended, that the session's workers were replaced.
        long_waits: Is notified of waits each second.
        entered: Says whether the calling thread is in the middle of noting something.
    """

    def __init__(
        self,
        acknowledge: Callable[[int, int], None],
        acked: Callable[[], int],
        origin: Callable[[int], tuple[IssuedAt, Scope] | None],
        here: Callable[[], Scope] = lambda: NO_SCOPE,
        explain: Callable[[RemoteFailure], RemoteFailure] = lambda failure: failure,
        first_seq: int = 1,
        lock: threading.RLock | None = None,
    ) -> None:
        self._first_seq = first_seq
        self._acknowledge = acknowledge
        self._acked = acked
        self._origin = origin
        self._here = here
        self._opener = here()
        self._explain = explain
        self._lock = make_lock() if lock is None else lock
        self.entered: Callable[[], bool] = owned(self._lock)
        self._answers: dict[int, Answer] = {}
        self._failed: OrderedDict[int, _FailedCommand] = OrderedDict()
        self._skipped: OrderedDict[int, int] = OrderedDict()
        # Failures not seen yet, by scope, and those that ended scopes have left.
        self._unseen: dict[Scope, dict[int, _FailedCommand]] = {}
        self._many_scopes = 64
        self._orphans: dict[int, _FailedCommand] = {}
        self._left: deque[_FailedCommand] = deque(maxlen=_KEPT)
        self._num_left = 0
        # Answers that no thread waits for, with what to call; and errors of such answers.
        self._unattended: dict[int, Callable[[], None]] = {}
        self._some_unattended = Event()
        self._watching = False
        self._raised: weakref.WeakKeyDictionary[RemoteError, _FailedCommand]
        self._raised = weakref.WeakKeyDictionary()
        self._unread: deque[RemoteError] = deque()
        self._lost: SessionError | None = None
        self.pump: Pump | None = None
        self.decline: Callable[[Sequence[tuple[int, int]]], None] = lambda _arrays: None
        self.long_waits: LongWaits = LongWaits()
        self.told = False
        self.on_replaced: Callable[[Scope], object] = lambda _scope: None

    def expect(self, seq: int, answers: int) -> None:
        """Prepares for the replies to a command that is about to be sent."""
        answer = Answer(answers)
        self._answers[seq] = answer
        if self._lost is not None:
            answer.error = self._lost
            answer.open()

    def receive(self, worker: int, reply: EncodedReply) -> None:
        """Takes one reply from a worker."""
        outcome = reply.WhichOneof("outcome")
        if outcome == "failure":
            # Before the acknowledgement, which may forget the command's line.
            self._receive_failure(worker, reply)
            self._acknowledge(worker, reply.ack)
            return
        self._acknowledge(worker, reply.ack)
        if reply.seq:
            # Last, because a woken thread competes with this one from here on.
            self._complete(reply.seq, worker, reply.value if outcome == "value" else None, None)

    def receive_live(self, worker: int, seq: int, value: Any) -> None:
        """Takes an answer that is an object of this process."""
        self._acknowledge(worker, seq)
        self._complete(seq, worker, Live(value), None)

    def _receive_failure(self, worker: int, reply: EncodedReply) -> None:
        failure, kind = decode_failure(reply.failure)
        failure = name_source(self._explain(failure))
        with self._lock:
            failed = self._remember(failure.seq)
            failure = replace(failure, issued_at=failed.issued_at)
            if reply.seq not in self._answers:
                self._note(reply.seq, failed, (failure, kind))
                return
        self._complete(reply.seq, worker, None, (failure, kind))

    def _remember(self, seq: int) -> _FailedCommand:
        """What is known of a command that failed; the lock is held."""
        failed = self._failed.get(seq)
        if failed is None:
            issued_at, scope = self._origin(seq) or (None, NO_SCOPE)
            failed = self._failed[seq] = _FailedCommand(seq, issued_at, scope)
            if len(self._failed) > _REMEMBERED:
                self._failed.popitem(last=False)
        return failed

    def _note(self, seq: int, failed: _FailedCommand, report: _Report) -> None:
        """Keeps a failure that no caller waits for; the lock is held.

        Args:
            seq: The command that could not be executed; 0 for none in particular.
            failed: The command that failed.
            report: A worker's report of it.
        """
        if seq not in (0, failed.seq):
            # A worker skipped a command that depends on the failed one.
            self._skipped[seq] = failed.seq
            if len(self._skipped) > _REMEMBERED:
                self._skipped.popitem(last=False)
        elif failed.seq < self._first_seq:
            return
        elif failed.seen and seq:
            if report not in failed.reports:
                failed.reports.append(report)  # other ranks' part in what was raised
        else:
            if failed.seen:  # a device failed later than its last command
                failed = _FailedCommand(failed.seq, failed.issued_at, failed.scope)
                self._failed[failed.seq] = failed
            if report not in failed.reports:
                failed.reports.append(report)
            self._keep(failed)  # also where the first attempt ended before it

    def _keep(self, failed: _FailedCommand) -> None:
        """Keeps a failure until its scope waits; without a scope, it is left to the opener."""
        if failed.scope is NO_SCOPE:
            self._leave(failed, to_opener=True)
            return
        unseen = self._unseen.setdefault(failed.scope, {})
        if failed.seq in unseen or len(unseen) < _KEPT:
            unseen[failed.seq] = failed
        else:
            self._leave(failed)
        if len(self._unseen) > self._many_scopes:
            self._sweep()
            self._many_scopes = 2 * len(self._unseen) + 64

    def _complete(
        self,
        seq: int,
        worker: int,
        value: Any,
        failure: _Report | None,
    ) -> None:
        call = None
        with self._lock:
            answer = self._answers.get(seq)
            if answer is not None and answer.error is None:
                if worker not in answer.replied:
                    if failure is None:
                        answer.values[worker] = value
                    elif failure not in answer.failures:
                        answer.failures.append(failure)
                    answer.replied.add(worker)
                answer.missing = answer.asked - len(answer.replied)
                if answer.missing == 0:
                    answer.open()
                    call = self._unattended.get(seq)
        if answer is None:
            self._discard({worker: value})  # of a question that was abandoned
        elif call is not None:
            call()
            self._unattended.pop(seq, None)

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
            if self._lost is None:
                self._lost = error
            self._end_waits(self._lost)
            calls, self._unattended = list(self._unattended.values()), {}
        self._some_unattended.set()
        for call in calls:
            call()

    def _end_waits(self, error: SessionError) -> None:
        for answer in list(self._answers.values()):
            if answer.missing and answer.error is None:
                answer.error = error
                answer.missing = 0
                answer.open()

    def disown(self, why: SessionError, lock: threading.RLock) -> None:
        """Ends every wait in a forked child, where another lock guards it.

        A thread of the parent may have held the former one.
        """
        self._lock = lock
        self.entered = owned(lock)
        self._some_unattended = Event()
        self.decline = lambda _arrays: None
        self.told = True  # leaving is no wait, and the errors of workers are the parent's
        self.lose(why)

    def reopen(self) -> None:
        """Prepares for other workers to repeat all answers that are still awaited."""
        with self._lock:
            self._reopen()

    def _reopen(self) -> None:
        for seq, answer in list(self._answers.items()):
            if answer.missing == 0 and answer.error is None:
                # A caller that has this answer may still find that its arrays are gone.
                self._answers[seq] = Answer(answer.asked)
            elif answer.missing:
                answer.missing = answer.asked
                answer.replied.clear()
                answer.values.clear()
                answer.failures.clear()

    def end(self, make: Callable[[], SessionError], first: int, last: int) -> None:
        """Ends the waits for commands that will not be answered, each with an error of its own.

        Args:
            make: Makes the error.
            first: The number of the first of these commands.
            last: That of the last one.
        """
        with self._lock:
            calls = self._end(make, first, last)
        for call in calls:
            call()

    def _end(
        self, make: Callable[[], SessionError], first: int, last: int
    ) -> list[Callable[[], None]]:
        """Does so under the lock; returns what is to be called without."""
        calls: list[Callable[[], None]] = []
        for seq, answer in list(self._answers.items()):
            if first <= seq <= last and answer.missing and answer.error is None:
                answer.error = make()
                answer.missing = 0
                answer.open()
                call = self._unattended.pop(seq, None)
                if call is not None:
                    calls.append(call)
        return calls

    def set_aside(self, scopes: Iterable[Scope]) -> None:
        """Leaves it to :meth:`failures` alone to tell of what failed in these scopes so far."""
        with self._lock:
            for scope in scopes:
                for failed in self._unseen.pop(scope, {}).values():
                    failed.seen = True
                    self._leave(failed)

    def is_open(self, seq: int) -> bool:
        """Whether the answer to a command is awaited, or being read."""
        return seq in self._answers

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
            expected = self._answers.pop(seq, None)
            self._unattended.pop(seq, None)
            if expected is not None and expected.missing:
                expected.open()  # a thread may wait for what another one takes back
            if told and expected is not None:
                self._remember(seq).seen = True
            elif expected is not None:
                for failure, kind in expected.failures:  # that no call has raised
                    failed = self._remember(failure.seq)
                    self._note(seq, failed, (failure, kind))
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
        answer = self._answers[seq]
        self._await(answer, alive, deadline)
        if answer.error is not None:
            if answer.error is self._lost:
                self.told = True
            else:
                self.on_replaced(self._here() if scope is None else scope)
            raise answer.error.with_traceback(None)
        if answer.failures:
            error = self._choose(answer.failures, self._here() if scope is None else scope)
            answer.failures = []
            try:
                raise error
            finally:
                del error  # else it would keep itself, by its traceback
        return answer

    def _await(self, answer: Answer, alive: Callable[[], None], deadline: Deadline | None) -> None:
        """Waits until an answer is complete; see :meth:`look`."""
        since = None
        # One that has come may be read where there is no waiting, as in a thread that reads.
        while answer.missing and not answer.wait(
            _LOOK_S if deadline is None else deadline.left(), self.pump
        ):
            if deadline is not None:
                deadline.check()
            check_no_lock_held()
            alive()
            since = self.long_waits.look(since)

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
            call, answer = self._unattended.pop(seq, None), self._answers.get(seq)
        if call is None or answer is None:
            return answer is not None and answer.complete
        try:
            self._await(answer, alive, deadline)
        except BaseException as error:
            with self._lock:
                missing = answer.missing
                if missing:
                    self._unattended[seq] = call
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
        for waiter in waiters:
            while not pump.wait(waiter, _LOOK_S if deadline is None else deadline.left(), ask):
                ask = None
                if deadline is not None:
                    deadline.check()
                check_no_lock_held()
                alive()
                since = self.long_waits.look(since)
            ask = None
        if self._lost is not None:
            self.told: bool = True
            raise self._lost.with_traceback(None)

    # Answers that no thread waits for ------------------------------------------------

    @property
    def unattended(self) -> bool:
        """Whether there is an answer to come that no thread waits for."""
        return bool(self._unattended)

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
            later = not self._answers[seq].complete
            if later:
                self._unattended[seq] = call
        if not later:
            call()
            return
        if not self._watching:
            watch = threading.Thread(
                target=self._watch, args=(alive,), name="disco-liveness", daemon=True
            )
            try:
                start_thread(watch)
            except SessionError:
                self.forget(seq)
                raise
        if not self._some_unattended.is_set():
            self._some_unattended.set()

    def _watch(self, alive: Callable[[], None]) -> None:
        """Does what a waiting thread does each second, for answers without one."""
        if self._watching:  # another thread has started one in the same moment
            return
        self._watching = True
        watched, since = 0, None
        while self._lost is None:
            self._some_unattended.clear()
            if not self._unattended:
                if self._lost is None:
                    self._some_unattended.wait()
                continue
            time.sleep(_LOOK_S)
            with self._lock:
                oldest = next(iter(self._unattended), 0)
            if not oldest:
                continue
            if oldest != watched:
                watched, since = oldest, None
            try:
                alive()
            except SessionError:
                return  # the session is lost, and all are being told
            since = self.long_waits.look(since)

    def is_plain(self, seq: int, scope: Scope) -> bool:
        """Whether an answer that has come, or the error in its place, is read without waiting.

        Args:
            seq: The command.
            scope: Who asked.
        """
        with self._lock:
            answer = self._answers.get(seq)
            if answer is None or answer.error is not None:
                return False
            mine = self._unseen.get(scope, {})
            # What kept a rank out of a collective may still be on its way; in the scope that
            # opened the session, of the failures of others too.
            if self._unread or any(failed.is_aborted for failed in mine.values()):
                return False
            if scope is self._opener and (self._orphans or self._unseen.keys() - {scope}):
                return False
        encoded = [value for value in answer.values.values() if isinstance(value, EncodedValue)]
        return not encoded or next(tickets_in(encoded), None) is None

    def give_back(self, error: BaseException | None) -> None:
        """Keeps an error for another wait, because no call has read it.

        Args:
            error: As raised by :meth:`look` or :meth:`raise_pending`. Safe inside the garbage
                collector.
        """
        if isinstance(error, RemoteError):
            self._unread.append(error)

    def _take_unread(self) -> None:
        """Has the errors that were given back raised again; the lock is held."""
        while self._unread:
            failed = self._raised.get(self._unread.popleft())
            if failed is not None and failed.seen:
                failed.seen = False
                self._keep(failed)

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
        if not (self._unseen or self._orphans or self._unread):
            return
        scope = self._here() if scope is None else scope
        with self._lock:
            self._take_unread()
            failed = self._oldest(scope, sync=sync, before=before)
        if failed is not None and failed.is_aborted:
            self._await_cause(failed)
        with self._lock:
            failed = self._oldest(scope, sync=sync, before=before)
            if failed is None:
                return  # perhaps another thread in this scope has raised it
            error = self._build(failed)
            self._raised[error] = failed
            others = self._see(scope, failed, sync=sync)
        raise _with_others(error, others)

    def raise_left(self) -> None:
        """Raises the oldest unseen failure, whichever scope issued its command.

        Raises:
            RemoteError: The failure.
        """
        with self._lock:
            self._take_unread()
            self._sweep()
            unseen = [failed for each in self._unseen.values() for failed in each.values()]
            unseen += [
                failed for failed in (*self._left, *self._orphans.values()) if not failed.seen
            ]
            if not unseen:
                return
            failed = min(unseen, key=lambda each: each.seq)
            error = self._build(failed)
            others = len({id(each) for each in unseen}) - 1
        raise _with_others(error, others)

    def failures(self) -> Failures:
        """Unseen failures of scopes that have ended, and those that were counted but not raised."""
        with self._lock:
            self._take_unread()
            self._sweep()
            return Failures(self._num_left, tuple(map(self._build, self._left)))

    def _choose(self, reports: list[_Report], scope: Scope) -> RemoteError:
        """The error of an answer; or an older failure that its scope has not seen yet."""
        with self._lock:
            self._take_unread()
            answered = min(failure.seq for failure, _ in reports)
            mine = self._unseen.get(scope, {})
            first = min(mine, default=answered)
            if first < answered:
                failed = mine[first]
                error = self._build(failed)
                self._raised[error] = failed
                return _with_others(error, self._see(scope, failed))
            return self._seen_error(reports, scope, mine)

    def _seen_error(
        self, reports: list[_Report], scope: Scope, mine: dict[int, _FailedCommand]
    ) -> RemoteError:
        """The error of an answer, of which its scope has seen the failures then; under the lock."""
        error = _error_of(reports)
        for failure, _ in reports:
            failed = self._failed.get(failure.seq)
            if failed is not None and failed.scope in (scope, NO_SCOPE):
                if not failed.seen:
                    self._raised[error] = failed
                failed.seen = True
            if failed is not None and failed.scope is NO_SCOPE:
                self._orphans.pop(failure.seq, None)
            if mine.pop(failure.seq, None) is not None and not mine:
                del self._unseen[scope]
        return error

    def _oldest(
        self, scope: Scope, *, sync: bool, before: int | None = None
    ) -> _FailedCommand | None:
        """The oldest failure to be raised in a scope; the lock is held."""
        mine = self._unseen.get(scope, {})
        if sync and scope is self._opener:
            self._sweep()
            mine = {**self._orphans, **mine}
        oldest = min(mine, default=0)
        return mine[oldest] if mine and (before is None or oldest < before) else None

    def _see(self, scope: Scope, failed: _FailedCommand, *, sync: bool = False) -> int:
        """Marks a failure as seen by a scope; returns how many others are marked with it."""
        mine = self._unseen.pop(scope, {})
        later = [each for each in mine.values() if each is not failed]
        for each in later:
            self._leave(each)
        if sync and scope is self._opener:
            mine = {**self._orphans, **mine}
            self._orphans = {}
        for each in (failed, *mine.values()):
            each.seen = True
        return len(mine.keys() - {failed.seq})

    def _leave(self, failed: _FailedCommand, *, to_opener: bool = False) -> None:
        """Records a failure that its scope does not raise; the lock is held."""
        if to_opener and len(self._orphans) < _KEPT:
            self._orphans[failed.seq] = failed
        if failed not in self._left:
            self._left.append(failed)
            self._num_left += 1

    def _sweep(self) -> None:
        """Finds the scopes that have ended; the lock is held."""
        for scope in [scope for scope in self._unseen if scope.ended]:
            for failed in self._unseen.pop(scope).values():
                self._leave(failed, to_opener=scope.is_thread)

    def _await_cause(self, failed: _FailedCommand) -> None:
        """An aborted collective names other ranks; their own report is the cause.

        A rank reports before it acknowledges, so once every rank has passed the
        command there is nothing more to wait for.
        """
        deadline = monotonic() + _CAUSE_WAIT_S
        while self._lost is None and self._acked() < failed.seq and monotonic() < deadline:
            if not failed.is_aborted or failed.seq in self._skipped:
                return
            time.sleep(_CAUSE_POLL_S)

    def _build(self, failed: _FailedCommand) -> RemoteError:
        """The error of a command; for an aborted collective, the failure that kept a rank out."""
        cause = failed
        while cause.is_aborted:
            before = self._failed.get(self._skipped.get(cause.seq, 0))
            if before is None or not before.reports or before.seq >= cause.seq:
                break
            cause = before
        if cause is failed:
            return _error_of(failed.reports)
        error = _error_of([*cause.reports, *failed.reports])
        where = f", issued at {failed.issued_at}" if failed.issued_at is not None else ""
        error.add_note(f"command #{failed.seq} could not be executed for it{where}")
        return error


def _error_of(reports: Iterable[_Report]) -> RemoteError:
    """One error from workers' reports; causes before consequences."""
    ordered = sorted(reports, key=lambda r: (r[1] is FailureKind.ABORTED, r[0].seq, r[0].worker))
    return _ERRORS[ordered[0][1]]([failure for failure, _ in ordered])


def _with_others(error: RemoteError, others: int) -> RemoteError:
    if others:
        error.add_note(
            f"{many(others, 'later command')} failed too; the first cause is shown, and"
            " session.failures() has the rest"
        )
    return error
