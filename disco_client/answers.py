"""The answers that calls of a session wait for."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from typing import Any

from disco_client.errors import SessionError
from disco_client.failed_commands import Report
from disco_client.session_end import SessionEnd
from disco_client.transport.base import Pump

__all__ = ["Answer", "Answers"]


class Answer:
    """The replies to one command; complete when every asked worker replied."""

    __slots__ = ("asked", "error", "failures", "missing", "replied", "values", "waiter")

    def __init__(self, answers: int) -> None:
        self.asked: int = answers
        self.missing: int = answers
        self.replied: set[int] = set()
        self.values: dict[int, Any] = {}
        self.failures: list[Report] = []
        self.error: SessionError | None = None
        self.waiter: threading.Lock = threading.Lock()
        self.waiter.acquire()

    @property
    def complete(self) -> bool:
        """Whether nothing more is waited for: every reply, or the session's end, has come."""
        return not self.missing or self.error is not None

    def take(self, worker: int, value: Any, failure: Report | None) -> None:
        """Takes the reply of a worker; one that has come before changes nothing."""
        if worker not in self.replied:
            if failure is None:
                self.values[worker] = value
            elif failure not in self.failures:
                self.failures.append(failure)
            self.replied.add(worker)
        self.missing = self.asked - len(self.replied)

    def end(self, error: SessionError) -> None:
        """Ends the wait with an error."""
        self.error = error
        self.missing = 0
        self.open()

    def reopen(self) -> None:
        """Waits for all replies anew."""
        self.missing = self.asked
        self.replied.clear()
        self.values.clear()
        self.failures.clear()

    def wait(self, timeout: float, pump: Pump | None = None) -> bool:
        """Waits up to ``timeout`` seconds; whether the answer is complete."""
        if pump is not None:
            return pump.wait(self.waiter, timeout)
        return self.waiter.acquire(timeout=timeout)

    def open(self) -> None:
        """Wakes the waiting thread; may be repeated."""
        with contextlib.suppress(RuntimeError):  # it is free
            self.waiter.release()


class Answers:
    """The answers to come of one session, by the number of the command; a lock guards them.

    Args:
        ending: How far the session has come to its end.

    Attributes:
        expected: All of them.
        unattended: What to call for those that no thread waits for.
    """

    __slots__ = ("_ending", "expected", "unattended")

    def __init__(self, ending: SessionEnd) -> None:
        self._ending = ending
        self.expected: dict[int, Answer] = {}
        self.unattended: dict[int, Callable[[], None]] = {}

    @property
    def oldest_unattended(self) -> int:
        """The number of the oldest command whose answer no thread waits for; 0 without one."""
        # A copy is made in one step, so no lock is needed.
        return next(iter([*self.unattended]), 0)

    def expect(self, seq: int, count: int) -> None:
        """Prepares for the replies of so many workers to a command that is about to be sent."""
        answer = Answer(count)
        self.expected[seq] = answer
        if self._ending.error is not None:
            answer.error = self._ending.error
            answer.open()

    def take(self, seq: int, worker: int, value: Any, failure: Report | None) -> Answer | None:
        """Takes the reply of a worker to a command.

        Returns:
            The answer, or None where none is expected. A thread that waits for it has been
            woken if it is complete.
        """
        answer = self.expected.get(seq)
        if answer is not None and answer.error is None:
            answer.take(worker, value, failure)
            if answer.missing == 0:
                answer.open()
        return answer

    def end(
        self, make: Callable[[], SessionError], first: int, last: int
    ) -> list[Callable[[], None]]:
        """Ends the waits for some commands, each with an error of its own.

        Args:
            make: Makes the error.
            first: The number of the first of these commands.
            last: That of the last one.

        Returns:
            What is to be called, without the lock.
        """
        calls: list[Callable[[], None]] = []
        for seq, answer in list(self.expected.items()):
            if first <= seq <= last and answer.missing and answer.error is None:
                answer.end(make())
                call = self.unattended.pop(seq, None)
                if call is not None:
                    calls.append(call)
        return calls

    def end_all(self, error: SessionError) -> list[Callable[[], None]]:
        """Ends all waits with one error, because the session is over.

        Returns:
            What is to be called, without the lock.
        """
        for answer in list(self.expected.values()):
            if answer.missing and answer.error is None:
                answer.end(error)
        calls, self.unattended = list(self.unattended.values()), {}
        return calls

    def reopen(self) -> None:
        """Prepares for other workers to repeat all answers that are still awaited."""
        for seq, answer in list(self.expected.items()):
            if answer.missing == 0 and answer.error is None:
                # A caller that has this answer may still find that its arrays are gone.
                self.expected[seq] = Answer(answer.asked)
            elif answer.missing:
                answer.reopen()

    def forget(self, seq: int) -> Answer | None:
        """Expects no more replies to a command; returns what has come."""
        answer = self.expected.pop(seq, None)
        self.unattended.pop(seq, None)
        if answer is not None and answer.missing:
            answer.open()  # a thread may wait for what another one takes back
        return answer
