"""Who reads a session's replies: a thread that waits for one, or else the session's keeper.

A thread that waits reads the replies itself, which saves two switches between threads. There
are two epoll objects for that: `replies` with the sockets that replies come from, and `house`
with everything else of the session and, while no thread waits, `replies` itself. A thread that
waits removes `replies` from `house`, so the keeper does not wake for what it need not handle. A
program that waits once waits again soon, so the keeper gets it back only when no thread has
waited for a moment, or at once where something is to be read though no thread waits.

A thread that waits may be entered again by a signal handler that waits too: while it polls, the
handler reads in its place. An exception may come out of any bytecode of it. What it had begun to
handle is handled again by the next thread that reads, so handling may be repeated. No lock
decides who reads: a comparison and an assignment do, between which CPython calls nothing and
switches to no other thread.
"""

from __future__ import annotations

import contextlib
import math
import os
import select
import threading
import time
import weakref
from collections.abc import Callable

from disco_client.clock import LONGEST_S, monotonic
from disco_client.descriptors import opening_descriptors
from disco_client.errors import Reentered
from disco_client.forks import leave_in_children
from disco_client.locks import make_lock

__all__ = ["READABLE", "SharedReader"]

READABLE: int = getattr(select, "EPOLLIN", 1)
_ONCE: int = getattr(select, "EPOLLONESHOT", 1 << 30)
_IDLE_S = 0.05
"""How often the keeper checks whether a thread has waited since the last time; what comes
for no thread is read up to twice as much later."""

_QUICK_S = 0.001
"""After a wait that took longer, the next one does not poll: the processor is the workers'."""


_LOOK_S = 0.001
"""How often the end of reading looks whether a thread still reads."""


class _Turn:
    """The turn of a thread that reads.

    Attributes:
        ident: The thread.
        polls: Whether it only polls, so that a signal handler in it may read.
    """

    __slots__ = ("ident", "polls")

    def __init__(self) -> None:
        self.ident = threading.get_ident()
        self.polls = False


def _eventfd(made: contextlib.ExitStack, at_first: int) -> int:
    fd = os.eventfd(at_first, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
    made.callback(os.close, fd)
    return fd


class SharedReader:
    """Lets threads take turns at reading, one at a time; Linux only.

    The keeper is a thread of its owner that calls :meth:`keep` again and again.

    Args:
        handle: Handles events of ``replies``, and what was left of those before where an
            exception interrupted it; called by one thread at a time.
        looks: How often a waiting thread polls before it sleeps, where waits are short.

    Attributes:
        replies: Has the sockets that replies come from.
        house: Has what only the keeper looks after.
        wake_fd: Is among what :meth:`keep` returns after :meth:`wake`.
        unattended: Whether something is to be read though no thread waits for it.

    Raises:
        DescriptorRefused: The system has too few descriptors for it.
    """

    def __init__(
        self, handle: Callable[[list[tuple[int, int]]], object], *, looks: int = 0
    ) -> None:
        self._handler = handle
        self._whole = True
        self._looks = looks
        self._reading: _Turn | None = None
        self.unattended: Callable[[], bool] = lambda: False
        # Weak, as an exception may keep a thread from saying that it waits no more.
        self._followers: weakref.WeakSet[threading.Lock] = weakref.WeakSet()
        self._apart = False
        self._led = False
        self._timed = False
        self._quick = True
        self._closed = False
        self._open = make_lock()
        with opening_descriptors("reading what workers reply"), contextlib.ExitStack() as made:
            self.replies = made.enter_context(select.epoll())
            self.house = made.enter_context(select.epoll())
            self.wake_fd, self._over, self._again = (_eventfd(made, at) for at in (0, 0, 1))
            self._close = made.pop_all().close
        self._replies_fd = self.replies.fileno()
        self.replies.register(self._over, READABLE)
        self.replies.register(self._again, 0)
        self.house.register(self.wake_fd, READABLE)
        self.house.register(self._replies_fd, READABLE)
        leave_in_children(self, SharedReader._leave)

    # The keeper's side --------------------------------------------------------------------

    def keep(self, seconds: float = math.inf) -> list[int]:
        """Waits until something is ready, and reads replies if no thread of the program does.

        Args:
            seconds: How long to wait at most, up to a day.

        Returns:
            The other descriptors of ``house`` that are ready.
        """
        if self._timed:
            seconds = min(seconds, _IDLE_S)
        events = self.house.poll(min(max(seconds, 0.0), LONGEST_S))
        if self._timed:
            self._take_back()
        ready: list[int] = []
        for fd, _ in events:
            if fd == self._replies_fd:
                self.read()
            else:
                ready.append(fd)
        if self.wake_fd in ready:
            with contextlib.suppress(BlockingIOError):
                os.eventfd_read(self.wake_fd)
        return ready

    def read(self) -> bool:
        """Reads what is there, without waiting; False where another thread reads."""
        turn = _Turn()
        try:
            if self._reading is not None:
                return False
            self._reading = turn
            self._handle(self.replies.poll(0))
            return True
        finally:
            if self._reading is turn:
                self._reading = None

    def _handle(self, events: list[tuple[int, int]]) -> None:
        self._whole = False
        self._handler(events)
        self._whole = True

    @property
    def entered(self) -> bool:
        """Whether the calling thread is reading, and does more than wait."""
        turn = self._reading
        return turn is not None and not turn.polls and turn.ident == threading.get_ident()

    def _take_back(self) -> None:
        """Reads the replies from now on, if no thread has led since the last time."""
        if self._led:
            self._led = False
            return
        self.attend()
        if not self._apart:
            self._timed = False
            self.read()  # also what an interrupted thread has left

    def attend(self) -> None:
        """Lets the keeper read replies from now on, unless a thread of the program does."""
        turn = _Turn()
        try:
            if self._reading is None and self._apart and not self._closed:
                self._reading = turn
                self.house.modify(self._replies_fd, READABLE)
                self._apart = False
        finally:
            if self._reading is turn:
                self._reading = None

    def wake(self) -> None:
        """Lets :meth:`keep` return."""
        self._write(self.wake_fd)

    def _write(self, fd: int) -> None:
        """Writes to one of the descriptors, which the program has again once they are closed."""
        with self._open:
            if not self._closed:
                with contextlib.suppress(OSError):
                    os.eventfd_write(fd, 1)

    def notify_reader(self) -> None:
        """Lets the thread that reads look whether its lock is free."""
        with self._open:
            if not self._closed:
                self.replies.modify(self._again, READABLE | _ONCE)

    # The program's side -------------------------------------------------------------------

    def wait(
        self,
        waiter: threading.Lock,
        seconds: float,
        send: Callable[[], Callable[[], bool] | None],
    ) -> bool:
        """Sends, and reads replies until a lock is free.

        Args:
            waiter: The lock; some reply will free it.
            seconds: How long to wait at most, up to a day.
            send: Sends what was issued; returns whether the reply need not be waited for,
                because its content is known, or None.

        Returns:
            Whether this thread holds the lock now, or need not hold it.

        Raises:
            Reentered: This thread is handling replies.
        """
        if not 0.0 <= seconds <= LONGEST_S:
            seconds = min(max(seconds, 0.0), LONGEST_S)
        turn, reading = _Turn(), self._reading
        if reading is not None and reading.ident == turn.ident:
            return self._wait_inside(reading, waiter, seconds, send)
        follows = reading is not None
        try:
            if follows:
                # Before another look, so that the thread that leads sees it when it stops.
                self._followers.add(waiter)
            if self._reading is None and not self._closed:
                self._reading = turn
                self._lead()
                return self._read_until(waiter, seconds, turn, send())
            if not follows:
                follows = True
                self._followers.add(waiter)
                self.attend()  # where no thread reads any more, which may not have seen this one
            send()
            return waiter.acquire(timeout=seconds)
        finally:
            if self._reading is turn:
                self._reading = None
            if follows:
                self._followers.discard(waiter)
            # Another thread reads from now on; after a while the keeper does.
            if self._followers or self.unattended():
                self.attend()

    def _wait_inside(
        self,
        turn: _Turn,
        waiter: threading.Lock,
        seconds: float,
        send: Callable[[], Callable[[], bool] | None],
    ) -> bool:
        """The same in a signal handler of the thread that reads."""
        if not turn.polls:
            raise Reentered
        turn.polls = False
        try:
            return self._read_until(waiter, seconds, turn, send())
        finally:
            turn.polls = True
            self.notify_reader()  # what the interrupted call waits for may have come meanwhile

    def _lead(self) -> None:
        """Takes the replies from the keeper."""
        self._led = True
        if not self._apart:
            self._apart = True
            self.house.modify(self._replies_fd, 0)
        if not self._timed:
            self._timed = True
            os.eventfd_write(self.wake_fd, 1)  # from now on the keeper watches the time

    def _read_until(
        self,
        waiter: threading.Lock,
        seconds: float,
        turn: _Turn,
        seen: Callable[[], bool] | None,
    ) -> bool:
        began = monotonic()
        if not self._whole:
            self._handle([])  # what an interrupted thread has left, which no poll tells
        for _ in range(self._looks if self._quick else min(self._looks, 1)):
            if waiter.acquire(blocking=False) or (seen is not None and seen()):
                return True
            events = self.replies.poll(0)
            if events:
                self._handle(events)
            elif self._quick:
                os.sched_yield()
        while not waiter.acquire(blocking=False):
            left = began + seconds - monotonic()
            if left <= 0:
                self._quick = False
                return False
            turn.polls = True
            events = self.replies.poll(left)
            turn.polls = False
            self._handle(events)
        self._quick = monotonic() - began < _QUICK_S
        return True

    # The end ------------------------------------------------------------------------------

    def end(self) -> None:
        """Wakes the thread that leads, whose lock is free by now; idempotent."""
        self._write(self._over)

    def close(self, release: Callable[[], object] = lambda: None) -> None:
        """Ends reading; the keeper calls this last.

        Args:
            release: Called when no thread reads any more, before the descriptors are closed.
        """
        self.end()
        turn = _Turn()
        while self._reading is not turn:
            if self._reading is None:
                self._reading = turn
            else:
                time.sleep(_LOOK_S)
        with self._open:
            self._closed = True
        self._reading = None
        release()
        self._close()

    def _leave(self) -> None:
        self._closed = True
        self._close()
