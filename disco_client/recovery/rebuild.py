"""A session whose program makes its state anew on the new workers.

Nothing of what was sent is kept. References of before stand for a failure on the new
workers, and each scope that has lost something learns of it once.
"""

from __future__ import annotations

import sys
import threading
import weakref
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from disco_client.clock import monotonic
from disco_client.core import core_of
from disco_client.errors import (
    Recovery,
    SessionError,
    SessionLost,
    WorkersReplaced,
    why_ended,
)
from disco_client.locks import check_free
from disco_client.output import logger_of
from disco_client.recovery.base import MAX_CRASHES, Incarnation, Recovering, Successor, because
from disco_client.scopes import Scope
from disco_client.telemetry.base import NO_SPAN, Span
from disco_client.text import many
from disco_client.transport.base import Transport
from disco_client.wire.batch import SentBatch
from disco_client.wire.codec import EncodedBatch, EncodedReply

if TYPE_CHECKING:
    from disco_client.command_log import Abandoned, CommandLog
    from disco_client.core import SessionCore
    from disco_client.replies import Inbox
    from disco_client.session import Session

__all__ = ["Admission", "Rebuild", "Rebuilding"]

Rebuild = Callable[["Session"], object]
"""Makes the state of a session anew."""

_logger = logger_of(__name__)


class Admission:
    """Decides which calls may issue commands, and which learn that workers were replaced.

    It is the bar of the log's :class:`~disco_client.window.Window` from when commands are lost
    until each scope that is concerned has learned of it.

    Args:
        log: The session's.
        inbox: The session's.

    Attributes:
        last: The number of the last command that is lost.
    """

    def __init__(self, log: CommandLog, inbox: Inbox) -> None:
        self._log = log
        self._inbox = inbox
        self._thread = 0
        self._lost: SessionError | None = None
        self._make: Callable[[bool], SessionError]
        # Scopes that are to learn of it, with whether commands of theirs are lost.
        self._untold: dict[Scope, bool] = {}
        self.last: int = 0
        inbox.on_replaced = lambda scope: self._untold.pop(scope, None)

    def __call__(self) -> bool:
        """Whether the call has to wait.

        Raises:
            SessionError: Its scope learns what has happened.
        """
        if self._thread:
            if self._thread == threading.get_ident():
                if self._lost is not None:
                    raise self._lost.with_traceback(None)
                return False
            # It began before the state was made anew, perhaps with references of before.
            self._untold[self._log.scope()] = True
            return True
        lost = self._untold.pop(self._log.scope(), None)
        if not self._untold:
            self._log.window.bar = None
        if lost is not None:
            raise self._make(lost)
        return False

    over = False

    @property
    def exclusive(self) -> bool:
        """Whether the thread that makes the state anew is admitted alone."""
        return bool(self._thread)

    def begin(self) -> None:
        """Admits this thread alone."""
        self._lost = None
        self._thread = threading.get_ident()

    def note(self, abandoned: Abandoned) -> None:
        """Notes which scopes have lost something; called by the thread that is admitted."""
        self.last = abandoned.last
        for scope in abandoned.makers:
            self._untold.setdefault(scope, False)
        for scope in abandoned.issuers:
            self._untold[scope] = True
        self.forgive()

    def forgive(self) -> None:
        """Leaves out this thread's own scope, which learns of a loss by its calls."""
        scope = self._log.scope()
        self._untold.pop(scope, None)
        self._inbox.set_aside([scope])

    def interrupt(self, error: SessionError) -> None:
        """Ends the calls of the thread that is admitted, if there is one, with an error."""
        if self._thread:
            self._lost = error
            self._inbox.end(lambda: error, self.last + 1, sys.maxsize)
            self._log.window.wake_callers()

    def end(self, make: Callable[[bool], SessionError]) -> None:
        """Admits all threads; the scopes that have lost something learn of it first.

        Args:
            make: Makes an error; gets whether commands are lost, or references only.
        """
        self._make = make
        for scope in [scope for scope in self._untold if scope.ended]:
            del self._untold[scope]
        self._inbox.set_aside(list(self._untold))
        self._thread = 0
        self._log.window.wake_callers()
        self._inbox.end(lambda: make(True), 0, self.last)


class Rebuilding(Recovering):
    """A transport on whose new workers the program makes its state anew.

    Args:
        first: Opened, and not yet started.
        successor: Opens the others.
        rebuild: Makes the state; gets the session.
        span: The session's; those of recoveries are parts of it.
    """

    def __init__(
        self, first: Transport, successor: Successor, rebuild: Rebuild, span: Span = NO_SPAN
    ) -> None:
        super().__init__(first, successor, span)
        self._rebuild = rebuild
        self._session: Callable[[], Session | None] | None = None
        self._admission: Admission | None = None
        self._failed: list[BaseException] = []

    def serve(self, session: Session) -> None:
        """Notes the session that programs hold, for which this is the transport."""
        with self._changed:
            self._session = weakref.ref(session)
            self._changed.notify_all()

    # What the program sends -------------------------------------------------------------

    def retain(self, batch: SentBatch) -> None:
        """Forgets what workers were sent, once no connection can lose it."""

    def is_news(self, worker: int, reply: EncodedReply) -> bool:
        """Whether to report a failure: each one, as no command is executed again."""
        del worker, reply
        return True

    def upload(self, ticket: int, worker: int, data: memoryview) -> None:
        """Sends an array's bytes to a worker; returns when they may be changed."""
        incarnation = self._incarnation
        try:
            incarnation.transport.upload(ticket, worker, data)
        except SessionError:
            if not self._is_over(incarnation):
                raise
            # Its command is lost too, and a later call says so.

    def give_up(self, uploads: Sequence[tuple[int, int]], why: str = "") -> None:
        """Reports arrays, by ticket and worker, that will not arrive, or not completely."""
        self._transport.give_up(uploads, why)

    # When workers are lost ------------------------------------------------------------------

    def lost(self, incarnation: Incarnation, error: SessionError) -> None:
        """Called when an incarnation is over; requests other workers, or the session is lost."""
        super().lost(incarnation, error)
        with self._changed:
            if incarnation is self._incarnation:
                self._interrupt(error)

    def _end_incarnation(self, why: SessionError) -> None:
        super()._end_incarnation(why)
        self._interrupt(why)

    def _interrupt(self, error: SessionError) -> None:
        if self._admission is not None:
            self._admission.interrupt(error)

    def _prospect(self) -> str:
        return "starting other workers, on which its program makes its state anew"

    def _count(self) -> int:
        return 0

    def _judge(self, incarnation: Incarnation, error: SessionLost) -> SessionError | None:
        del incarnation
        if len(self._failed) < MAX_CRASHES:
            return None
        last = self._failed[-1]
        end = because(
            error,
            f"it could not go on with other workers: rebuild failed {MAX_CRASHES} times in a row,"
            f" at last with {type(last).__name__}: {last}",
        )
        end.__cause__ = last
        return end

    def _continue(
        self, incarnation: Incarnation, first: SessionLost, began: float
    ) -> SessionError | None:
        with self._changed:
            self._changed.wait_for(lambda: self._session is not None or self._leaving)
        session = None if self._session is None else self._session()
        if session is None:
            return self._closed()
        core = core_of(session)
        if self._admission is None:
            self._admission = Admission(core.log, core.inbox)
        admission = self._admission
        try:
            self._prepare(core, admission, incarnation, first)
            check_free()
            self._rebuild(session)
            core.sync()
        except BaseException as broke:  # noqa: BLE001  (whatever the program raises)
            return self._retry(admission, incarnation, first, broke)
        with self._changed:
            if incarnation.error is not None:
                return self._retry(admission, incarnation, first, incarnation.error)
            self._failed.clear()
            self._recovering = False
            recovery = Recovery(first, 0, monotonic() - began)
            self.recoveries += (recovery,)
            admission.end(lambda lost: _replaced(self.welcome.name, recovery, lost))
        name, count = self.welcome.name, many(len(self.welcome.ranks), "worker")
        _logger.warning("session %s goes on with %s after %.1f s", name, count, recovery.seconds)
        return None

    def _prepare(
        self, core: SessionCore, admission: Admission, incarnation: Incarnation, first: SessionLost
    ) -> None:
        """Admits this thread to the new workers, on which references of before are failures."""
        admission.begin()
        abandoned = core.restart(admission)
        admission.note(abandoned)
        with self._changed:
            if abandoned.last:
                # To the new workers these are numbers of commands that are left out.
                none = EncodedBatch(skipped=abandoned.last).SerializeToString()
                incarnation.sent.add(SentBatch(1, abandoned.last, none))
            incarnation.holding = False
            self._changed.notify_all()
            if incarnation.error is not None:
                admission.interrupt(incarnation.error)
        self._client.nudge()
        if abandoned.live:
            why = (
                "the reference is of before the session's workers were replaced, because"
                f" {why_ended(first)}; make it again (load, distribute, look up, capture)"
            )
            registers = np.asarray(sorted(abandoned.live), np.uint32)
            core.call_builtin("runtime.disco._poison_registers", registers, why, True)

    def _retry(
        self,
        admission: Admission,
        incarnation: Incarnation,
        first: SessionLost,
        broke: BaseException,
    ) -> SessionError:
        """Notes an attempt that failed; returns the error with which the recovery continues."""
        admission.forgive()
        if self._leaving:
            return self._closed()
        self._failed.append(broke)
        name, again = self.welcome.name, len(self._failed) < MAX_CRASHES
        what = "it is called again, on other workers" if again else "the session is given up"
        _logger.warning("session %s: rebuild failed; %s", name, what, exc_info=broke)
        incarnation.error = incarnation.error or first
        return first


def _replaced(name: str, recovery: Recovery, lost: bool) -> WorkersReplaced:
    what = "commands that were issued before are" if lost else "what references stood for is"
    error = WorkersReplaced(
        f"the workers of session {name!r} were replaced, because {why_ended(recovery.lost)}; its"
        f" state was made anew after {recovery.seconds:.1f} s, and {what} gone: issue again what"
        " is still wanted",
        recovery=recovery,
        commands_lost=lost,
    )
    error.__cause__ = recovery.lost
    return error
