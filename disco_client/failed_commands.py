"""Commands that failed, until the scopes that issued them have raised that."""

from __future__ import annotations

import weakref
from collections import OrderedDict, deque
from collections.abc import Callable, Container, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Protocol, TypeAlias

from disco_client import errors
from disco_client.errors import IssuedAt, RemoteError, RemoteFailure
from disco_client.scopes import NO_SCOPE, Scope
from disco_client.text import many
from disco_client.wire.codec import FailureKind

__all__ = ["FailedCommand", "FailedCommands", "Failures", "InterruptedCommands", "Report"]


_REMEMBERED = 1024
"""How many failed commands are remembered, with whether they were seen."""

_INTERRUPTS = 8
"""Of how many interrupts the commands are remembered."""

_CANCELLED = "the program cancelled this command"

_KEPT = 1000
"""How many failures of a scope, or of those that have ended, are kept until they are seen."""

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
    FailureKind.INTERRUPTED: errors.Interrupted,
    FailureKind.TIME_LIMIT: errors.TimeLimit,
}


Report: TypeAlias = tuple[RemoteFailure, FailureKind]


class InterruptedCommands(Protocol):
    """Which commands an interrupt has ended or had left out."""

    @property
    def tells(self) -> Callable[[Scope], bool]:
        """Whether a scope that issued some learns of it."""
        ...

    def firsts(self, is_known: Callable[[int], bool]) -> Mapping[Scope, int]:
        """The first of them that each scope has issued, without those that are known."""
        ...

    def report(self, seq: int) -> Report | None:
        """What is reported of a command, if it is one of them."""
        ...


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


class FailedCommand:
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
        self.reports: list[Report] = []
        self.seen = False

    @property
    def is_aborted(self) -> bool:
        """Whether all reports are of a collective that other ranks could not enter."""
        return all(kind is FailureKind.ABORTED for _, kind in self.reports)


class FailedCommands:
    """What is known of the commands of a session that failed; the lock is held at each call.

    Args:
        origin: Finds the client's line and scope of a command that is still remembered.
        opener: The scope that opened the session.
        first_seq: The number of its first command; those before are of a program that
            has left the session, and so are their failures.

    Attributes:
        cancelled: Commands that are being cancelled. Nobody learns that one worker has left out
            a collective before another one knew of it.
    """

    def __init__(
        self,
        origin: Callable[[int], tuple[IssuedAt, Scope] | None],
        opener: Scope,
        first_seq: int,
    ) -> None:
        self._origin = origin
        self._opener = opener
        self._first_seq = first_seq
        self._failed: OrderedDict[int, FailedCommand] = OrderedDict()
        # The commands that a worker has skipped, each with the one that failed before it.
        self._skipped: OrderedDict[int, int] = OrderedDict()
        # Those of them before which it was interrupted.
        self._interrupted: set[int] = set()
        # Failures not seen yet, by scope, and those that ended scopes have left.
        self._unseen: dict[Scope, dict[int, FailedCommand]] = {}
        self._many_scopes = 64
        self._orphans: dict[int, FailedCommand] = {}
        self._left: deque[FailedCommand] = deque(maxlen=_KEPT)
        self._num_left = 0
        self._raised: weakref.WeakKeyDictionary[RemoteError, FailedCommand]
        self._raised = weakref.WeakKeyDictionary()
        self._unread: deque[RemoteError] = deque()
        self.cancelled: list[Container[int]] = []
        self._interrupts: deque[InterruptedCommands] = deque(maxlen=_INTERRUPTS)

    def remember(self, seq: int) -> FailedCommand:
        """What is known of a command that failed."""
        failed = self._failed.get(seq)
        if failed is None:
            issued_at, scope = self._origin(seq) or (None, NO_SCOPE)
            failed = self._failed[seq] = FailedCommand(seq, issued_at, scope)
            if len(self._failed) > _REMEMBERED:
                self._failed.popitem(last=False)
        return failed

    def note(self, seq: int, failed: FailedCommand, report: Report) -> None:
        """Keeps a failure that no caller waits for.

        Args:
            seq: The command that could not be executed; 0 for none in particular.
            failed: The command that failed.
            report: A worker's report of it.
        """
        if seq not in (0, failed.seq):
            self._note_skipped(seq, failed.seq, report[1])
        elif failed.seq < self._first_seq:
            return
        elif failed.seen and seq:
            if report not in failed.reports:
                failed.reports.append(report)  # other ranks' part in what was raised
        else:
            if failed.seen:  # a device failed later than its last command
                failed = FailedCommand(failed.seq, failed.issued_at, failed.scope)
                self._failed[failed.seq] = failed
            if report not in failed.reports:
                failed.reports.append(report)
            if not self._is_consequence(failed):
                self._keep(failed)  # also where the first attempt ended before it

    def _note_skipped(self, seq: int, failed: int, kind: FailureKind) -> None:
        """Notes that a worker has skipped a command that depends on a failed one."""
        self._skipped[seq] = failed
        if len(self._skipped) > _REMEMBERED:
            self._interrupted.discard(self._skipped.popitem(last=False)[0])
        if kind is FailureKind.INTERRUPTED:
            self._interrupted.add(seq)
            known = self._failed.get(seq)
            if known is not None and known.is_aborted:
                self._take(known)

    def _is_consequence(self, failed: FailedCommand) -> bool:
        """Whether a collective was aborted for an interrupt that another worker knew before.

        Who is to learn of an interrupt learns of what was interrupted itself.
        """
        seq = failed.seq
        if not failed.is_aborted:
            return False
        return seq in self._interrupted or any(seq in each for each in self.cancelled)

    def _take(self, failed: FailedCommand) -> None:
        """Lets nobody learn of a failure that was kept."""
        mine = self._unseen.get(failed.scope, {})
        if mine.pop(failed.seq, None) is not None and not mine:
            del self._unseen[failed.scope]
        if failed in self._left:
            self._left.remove(failed)
            self._num_left -= 1
        self._orphans.pop(failed.seq, None)

    def _keep(self, failed: FailedCommand) -> None:
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

    def give_back(self, error: BaseException | None) -> None:
        """Keeps an error for another wait, because no call has read it.

        Args:
            error: One that was raised, or made to be. Safe inside the garbage collector.
        """
        if isinstance(error, RemoteError):
            self._unread.append(error)

    def _take_unread(self) -> None:
        """Has the errors that were given back raised again."""
        while self._unread:
            failed = self._raised.get(self._unread.popleft())
            if failed is not None and failed.seen:
                failed.seen = False
                self._keep(failed)

    def interrupt(self, interrupted: InterruptedCommands) -> None:
        """Notes that commands were interrupted, whatever was reported of them before.

        The first one of each scope counts as a failure, unless one of them was raised there, or
        the scope is not to learn of it.
        """
        former = [*self._interrupts]
        self._interrupts.append(interrupted)
        told: set[Scope] = set()
        for failed in self._failed.values():
            report = interrupted.report(failed.seq)
            if report is not None:
                failed.reports = [_at(report, failed.issued_at)]
                if not interrupted.tells(failed.scope):
                    failed.seen = True
                    self._take(failed)
                if failed.seen:
                    told.add(failed.scope)

        def is_known(seq: int) -> bool:
            return any(each.report(seq) is not None for each in former)

        for scope, seq in interrupted.firsts(is_known).items():
            report = interrupted.report(seq)
            if report is not None and scope not in told and interrupted.tells(scope):
                failed = self.remember(seq)
                failed.reports = [_at(report, failed.issued_at)]
                self._keep(failed)

    def _cause_of(self, report: Report) -> Report:
        """What is reported in place of a collective that others were interrupted in."""
        failure, kind = report
        if kind is not FailureKind.ABORTED:
            return report
        if any(failure.seq in each for each in self.cancelled):
            return replace(failure, message=_CANCELLED), FailureKind.INTERRUPTED
        found = (each.report(failure.seq) for each in self._interrupts)
        return next((each for each in found if each is not None), report)

    @property
    def some(self) -> bool:
        """Whether there may be something to raise, in some scope."""
        return bool(self._unseen or self._orphans or self._unread)

    def may_raise_late(self, scope: Scope) -> bool:
        """Whether what a scope is to raise may need a wait first.

        What kept a rank out of a collective may still be on its way; in the scope that opened
        the session, of the failures of others too.
        """
        mine = self._unseen.get(scope, {})
        if self._unread or any(failed.is_aborted for failed in mine.values()):
            return True
        return scope is self._opener and bool(self._orphans or self._unseen.keys() - {scope})

    def is_explained(self, failed: FailedCommand) -> bool:
        """Whether the cause of a failure is known: not only that other ranks could not enter."""
        return not failed.is_aborted or failed.seq in self._skipped

    def see(
        self, scope: Scope, *, sync: bool = False, before: int | None = None
    ) -> RemoteError | None:
        """The error of a scope's oldest failure, which has seen all of its now; see `oldest`."""
        failed = self.oldest(scope, sync=sync, before=before)
        return None if failed is None else self._raise_first(failed, scope, sync=sync)

    def left(self) -> RemoteError | None:
        """The error of the oldest unseen failure, whichever scope issued its command."""
        self._take_unread()
        self._sweep()
        unseen = [failed for each in self._unseen.values() for failed in each.values()]
        unseen += [failed for failed in (*self._left, *self._orphans.values()) if not failed.seen]
        if not unseen:
            return None
        failed = min(unseen, key=lambda each: each.seq)
        return _with_others(self._build(failed), len({id(each) for each in unseen}) - 1)

    def summary(self) -> Failures:
        """Unseen failures of scopes that have ended, and those that were counted but not raised."""
        self._take_unread()
        self._sweep()
        return Failures(self._num_left, tuple(map(self._build, self._left)))

    def set_aside(self, scopes: Iterable[Scope]) -> None:
        """Leaves it to :meth:`summary` alone to tell of what failed in these scopes so far."""
        for scope in scopes:
            for failed in self._unseen.pop(scope, {}).values():
                failed.seen = True
                self._leave(failed)

    def choose(self, reports: list[Report], scope: Scope) -> RemoteError:
        """The error of an answer; or an older failure that its scope has not seen yet."""
        self._take_unread()
        reports = [self._cause_of(report) for report in reports]
        answered = min(failure.seq for failure, _ in reports)
        mine = self._unseen.get(scope, {})
        first = min(mine, default=answered)
        if first < answered:
            return self._raise_first(mine[first], scope)
        return self._seen_error(reports, scope, mine)

    def _raise_first(
        self, failed: FailedCommand, scope: Scope, *, sync: bool = False
    ) -> RemoteError:
        """The error of a failure that its scope sees now, with those after it."""
        error = self._build(failed)
        self._raised[error] = failed
        return _with_others(error, self._see(scope, failed, sync=sync))

    def _seen_error(
        self, reports: list[Report], scope: Scope, mine: dict[int, FailedCommand]
    ) -> RemoteError:
        """The error of an answer, of which its scope has seen the failures then."""
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

    def oldest(
        self, scope: Scope, *, sync: bool = False, before: int | None = None
    ) -> FailedCommand | None:
        """The oldest failure to be raised in a scope.

        Args:
            scope: It.
            sync: Whether this is a sync, in which the scope that opened the session also gets
                failures that ended threads have left.
            before: The command that asked, where others may have been issued since; their
                failures are left to other waits.
        """
        self._take_unread()
        mine = self._unseen.get(scope, {})
        if sync and scope is self._opener:
            self._sweep()
            mine = {**self._orphans, **mine}
        oldest = min(mine, default=0)
        return mine[oldest] if mine and (before is None or oldest < before) else None

    def _see(self, scope: Scope, failed: FailedCommand, *, sync: bool = False) -> int:
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

    def _leave(self, failed: FailedCommand, *, to_opener: bool = False) -> None:
        """Records a failure that its scope does not raise."""
        if to_opener and len(self._orphans) < _KEPT:
            self._orphans[failed.seq] = failed
        if failed not in self._left:
            self._left.append(failed)
            self._num_left += 1

    def _sweep(self) -> None:
        """Finds the scopes that have ended."""
        for scope in [scope for scope in self._unseen if scope.ended]:
            for failed in self._unseen.pop(scope).values():
                self._leave(failed, to_opener=scope.is_thread)

    def _build(self, failed: FailedCommand) -> RemoteError:
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


def _at(report: Report, issued_at: IssuedAt | None) -> Report:
    """A report that names the line which issued the command."""
    return replace(report[0], issued_at=issued_at), report[1]


def _error_of(reports: Iterable[Report]) -> RemoteError:
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
