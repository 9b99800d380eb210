"""What workers answer: who waits for it, and errors nobody has seen yet."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from disco_client import errors
from disco_client.errors import IssuedAt, RemoteError, RemoteFailure, SessionError
from disco_client.transport.base import Live, Pump
from disco_client.waiting import LongWaits
from disco_client.wire.codec import EncodedReply, FailureKind, decode_failure

__all__ = ["Answer", "Inbox"]

_REMEMBERED_SITES = 1024
_CAUSE_WAIT_S = 1.0
"""How long an aborted collective waits for the report of the rank that caused it."""

_CAUSE_POLL_S = 0.02

_ERRORS: dict[FailureKind, type[RemoteError]] = {
    FailureKind.EXCEPTION: errors.RemoteException,
    FailureKind.NOT_FOUND: errors.FunctionNotFound,
    FailureKind.NOT_ALLOWED: errors.NotAllowed,
    FailureKind.BAD_ARGUMENT: errors.BadArgument,
    FailureKind.MISMATCH: errors.CollectiveMismatch,
    FailureKind.ABORTED: errors.CollectiveAborted,
    FailureKind.CCL: errors.CclError,
    FailureKind.FILE: errors.BadFile,
}


class Answer:
    """The replies to one command; complete when every asked worker replied."""

    __slots__ = ("asked", "error", "failures", "gate", "missing", "values")

    def __init__(self, answers: int) -> None:
        self.asked = self.missing = answers
        self.values: dict[int, Any] = {}
        self.failures: list[tuple[RemoteFailure, FailureKind]] = []
        self.error: SessionError | None = None
        self.gate = threading.Lock()
        self.gate.acquire()

    def wait(self, timeout: float, pump: Pump | None = None) -> bool:
        """Waits up to ``timeout`` seconds; whether the answer is complete."""
        if pump is not None:
            return pump.wait(self.gate, timeout)
        return self.gate.acquire(timeout=timeout)

    def open(self) -> None:
        """Lets the waiting thread go."""
        self.gate.release()


class Inbox:
    """Replies of one session, brought by the transport's reader thread.

    Args:
        acknowledge: Told (worker, seq) with every reply.
        acked: The newest command that every worker has executed.
        site: Finds the client's line of a command that is still remembered.
        explain: Adds to a failure inside a program where the client captured it.
        first_seq: The number of its first command; those before are of a program that
            has left the session, and so are their failures.

    Attributes:
        pump: Lets the waiting thread send and receive by itself, if set.
        told: Whether a call has raised the error that ended the session.
        long_waits: Told of waits each second.
    """

    def __init__(
        self,
        acknowledge: Callable[[int, int], None],
        acked: Callable[[], int],
        site: Callable[[int], IssuedAt | None],
        explain: Callable[[RemoteFailure], RemoteFailure] = lambda failure: failure,
        first_seq: int = 1,
    ) -> None:
        self._first_seq = first_seq
        self._acknowledge = acknowledge
        self._acked = acked
        self._site = site
        self._explain = explain
        self._lock = threading.Lock()
        self._arrived = threading.Condition(self._lock)
        self._answers: dict[int, Answer] = {}
        self._pending: dict[int, list[tuple[RemoteFailure, FailureKind]]] = {}
        self._sites: OrderedDict[int, IssuedAt] = OrderedDict()
        self._raised: OrderedDict[int, None] = OrderedDict()
        self._lost: SessionError | None = None
        self.pump: Pump | None = None
        self.long_waits = LongWaits()
        self.told = False

    def expect(self, seq: int, answers: int) -> None:
        """Makes room for the replies to a command that is about to leave."""
        with self._lock:
            answer = Answer(answers)
            self._answers[seq] = answer
            if self._lost is not None:
                answer.error = self._lost
                answer.open()

    def receive(self, worker: int, raw: bytes) -> None:
        """Takes one encoded reply from a worker."""
        reply = EncodedReply.FromString(raw)
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
        failure = self._explain(failure)
        issued_at = self._site(failure.seq)
        with self._lock:
            if issued_at is not None:
                self._sites[failure.seq] = issued_at
                if len(self._sites) > _REMEMBERED_SITES:
                    self._sites.popitem(last=False)
            known = self._sites.get(failure.seq)
            failure = replace(failure, issued_at=known)
            if reply.seq not in self._answers:
                if failure.seq < self._first_seq:
                    return
                if reply.seq and failure.seq in self._raised:
                    return  # other ranks' part in a failure that a call has raised
                self._pending.setdefault(failure.seq, []).append((failure, kind))
                self._arrived.notify_all()
                return
        self._complete(reply.seq, worker, None, (failure, kind))

    def _complete(
        self,
        seq: int,
        worker: int,
        value: Any,
        failure: tuple[RemoteFailure, FailureKind] | None,
    ) -> None:
        with self._lock:
            answer = self._answers.get(seq)
            if answer is None or answer.missing == 0:
                return
            if failure is not None:
                answer.failures.append(failure)
            else:
                answer.values[worker] = value
            answer.missing -= 1
            if answer.missing == 0:
                answer.open()

    def lose(self, error: SessionError) -> None:
        """Ends every wait, now and later, with this error."""
        with self._lock:
            if self._lost is None:
                self._lost = error
            for answer in self._answers.values():
                if answer.missing and answer.error is None:
                    answer.error = self._lost
                    answer.missing = 0
                    answer.open()
            self._arrived.notify_all()

    def reopen(self) -> None:
        """Other workers will answer everything once more that is still waited for."""
        with self._lock:
            for seq, answer in self._answers.items():
                if answer.missing == 0 and answer.error is None:
                    # Whoever has it may still find that it cannot be read any more.
                    self._answers[seq] = Answer(answer.asked)
                elif answer.missing:
                    answer.missing = answer.asked
                    answer.values.clear()
                    answer.failures.clear()

    def is_open(self, seq: int) -> bool:
        """Whether the answer to a command is waited for, or being read."""
        return seq in self._answers

    def wait(self, seq: int, alive: Callable[[], None]) -> Answer:
        """Waits for the replies to a command, and forgets them; see :meth:`look`."""
        try:
            return self.look(seq, alive)
        finally:
            self.forget(seq)

    def forget(self, seq: int) -> None:
        """Expects no more replies to a command."""
        with self._lock:
            self._answers.pop(seq, None)

    def look(self, seq: int, alive: Callable[[], None]) -> Answer:
        """Waits for the replies to a command, which may be asked for once more.

        Args:
            seq: A command announced by :meth:`expect`.
            alive: Called every second; raises when nothing can come any more.

        Raises:
            SessionError: The session was lost meanwhile.
            RemoteError: The command failed.
        """
        answer, since = self._answers[seq], None
        while not answer.wait(1.0, self.pump):
            alive()
            since = self.long_waits.look(since)
        if answer.error is not None:
            self.told = True
            raise answer.error.with_traceback(None)
        if answer.failures:
            raise self._build(answer.failures)
        return answer

    def reach(self, workers: Sequence[int], pump: Pump, alive: Callable[[], None]) -> None:
        """Waits until workers have executed everything issued before.

        Unlike :meth:`wait`, for which a command is issued, this only asks how far
        the workers are; transports that can be asked let waiting threads work.

        Args:
            workers: Whom to ask.
            pump: Asks and waits.
            alive: Called every second; raises when nothing can come any more.

        Raises:
            SessionError: The session was lost meanwhile.
        """
        gates = [threading.Lock() for _ in workers]
        for gate in gates:
            gate.acquire()
        for worker, gate in zip(workers[1:], gates[1:], strict=True):
            pump.ask(worker, gate)
        ask: int | None = workers[0]
        since = None
        for gate in gates:
            while not pump.wait(gate, 1.0, ask):
                ask = None
                alive()
                since = self.long_waits.look(since)
            ask = None
        if self._lost is not None:
            self.told = True
            raise self._lost.with_traceback(None)

    def raise_pending(self) -> None:
        """Raises the first error that no call has raised yet, if there is one.

        Raises:
            RemoteError: The failure of the oldest failed command.
        """
        if not self._pending:
            return
        with self._lock:
            first = min(self._pending, default=0)
            if all(kind is FailureKind.ABORTED for _, kind in self._pending.get(first, ())):
                self._await_cause(first)
                first = min(self._pending, default=0)
            if not first:
                return  # another thread's call has raised it
            failures = self._pending.pop(first)
            others = len(self._pending)
            self._pending.clear()
        error = self._build(failures)
        if others:
            error.add_note(f"{others} later command(s) failed too; the first cause is shown")
        raise error

    def _await_cause(self, seq: int) -> None:
        """An aborted collective names other ranks; their own report is the cause.

        A rank reports before it acknowledges, so once every rank has passed the
        command there is nothing more to wait for.
        """
        deadline = time.monotonic() + _CAUSE_WAIT_S
        while self._lost is None and self._acked() < seq and time.monotonic() < deadline:
            kinds = (kind for found in self._pending.values() for _, kind in found)
            if any(kind is not FailureKind.ABORTED for kind in kinds):
                return
            self._arrived.wait(_CAUSE_POLL_S)

    def _build(self, failures: list[tuple[RemoteFailure, FailureKind]]) -> RemoteError:
        """One error from the failures of one command; causes before consequences."""
        ordered = sorted(
            failures, key=lambda f: (f[1] is FailureKind.ABORTED, f[0].seq, f[0].worker)
        )
        with self._lock:
            for failure, _ in ordered:
                self._pending.pop(failure.seq, None)
                self._raised[failure.seq] = None
            while len(self._raised) > _REMEMBERED_SITES:
                self._raised.popitem(last=False)
        return _ERRORS[ordered[0][1]]([failure for failure, _ in ordered])
