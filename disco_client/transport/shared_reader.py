"""Who reads a session's replies: a thread that waits for one, or else the session's keeper.

A thread that waits reads the replies itself, which saves two switches between threads. There
are two epoll objects for that: `replies` with the sockets that replies come from, and `house`
with everything else of the session and, while no thread waits, `replies` itself. A thread that
waits removes `replies` from `house`, so the keeper does not wake for what it need not handle. A
program that waits once waits again soon, so the keeper gets it back only when no thread has
waited for a moment, or at once where something is to be read though no thread waits.
"""

from __future__ import annotations

import contextlib
import math
import os
import select
import threading
from collections.abc import Callable

from disco_client.clock import LONGEST_S, monotonic
from disco_client.interrupts import HeldInterrupts

__all__ = ["READABLE", "SharedReader"]

READABLE: int = getattr(select, "EPOLLIN", 1)
_IDLE_S = 0.05
"""How often the keeper checks whether a thread has waited since the last time; what comes
for no thread is read up to twice as much later."""

_QUICK_S = 0.001
"""After a wait that took longer, the next one does not poll: the processor is the workers'."""


class SharedReader:
    """Lets threads take turns at reading, one at a time; Linux only.

    The keeper is a thread of its owner that calls :meth:`keep` again and again.

    Args:
        handle: Handles events of ``replies``; called by one thread at a time.
        looks: How often a waiting thread polls before it sleeps, where waits are short.

    Attributes:
        replies: Has the sockets that replies come from.
        house: Has what only the keeper looks after.
        wake_fd: Is among what :meth:`keep` returns after :meth:`wake`.
        unattended: Whether something is to be read though no thread waits for it.
    """

    def __init__(
        self, handle: Callable[[list[tuple[int, int]]], object], *, looks: int = 0
    ) -> None:
        self._handle = handle
        self._looks = looks
        self._reading = threading.Lock()
        self.unattended: Callable[[], bool] = lambda: False
        self._followers: set[threading.Lock] = set()
        self._apart = False
        self._led = False
        self._timed = False
        self._quick = True
        self._closed = False
        self.replies = select.epoll()
        self.house = select.epoll()
        self._replies_fd = self.replies.fileno()
        self.wake_fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._over = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self.replies.register(self._over, READABLE)
        self.house.register(self.wake_fd, READABLE)
        self.house.register(self._replies_fd, READABLE)

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
        if not self._reading.acquire(blocking=False):
            return False
        try:
            self._handle(self.replies.poll(0))
        finally:
            self._reading.release()
        return True

    def _take_back(self) -> None:
        """Reads the replies from now on, if no thread has led since the last time."""
        if self._led:
            self._led = False
        elif self._reading.acquire(blocking=False):
            self._hand_back()
            self._timed = False
            self._reading.release()

    def _hand_back(self) -> None:
        """Lets the keeper read; the caller holds the lock."""
        if self._apart and not self._closed:
            self._apart = False
            self.house.modify(self._replies_fd, READABLE)

    def wake(self) -> None:
        """Lets :meth:`keep` return."""
        if not self._closed:
            with contextlib.suppress(OSError):
                os.eventfd_write(self.wake_fd, 1)

    # The program's side -------------------------------------------------------------------

    def wait(
        self,
        waiter: threading.Lock,
        seconds: float,
        send: Callable[[], Callable[[], bool] | None],
        tear: Callable[[BaseException], object],
    ) -> bool:
        """Sends, and reads replies until a lock is free.

        Args:
            waiter: The lock; some reply will free it.
            seconds: How long to wait at most, up to a day.
            send: Sends what was issued; returns whether the reply need not be waited for,
                because its content is known, or None.
            tear: Gets what was raised in the middle of sending or reading.

        Returns:
            Whether this thread holds the lock now, or need not hold it.
        """
        seconds = min(max(seconds, 0.0), LONGEST_S)
        with HeldInterrupts() as held:
            try:
                # The keeper would wake for the reply if this thread began to lead later.
                if not self._lead(waiter):
                    send()
                    return self._follow(waiter, seconds, held)
                try:
                    return self._read_until(waiter, seconds, held, send())
                finally:
                    self._stop_leading()
            except BaseException as error:
                if not (held.open or held.delivered):
                    tear(error)
                raise

    def _lead(self, waiter: threading.Lock) -> bool:
        """Makes the calling thread the one that reads replies; whether it is."""
        self._followers.add(waiter)  # first, so that the thread that leads sees it when it stops
        if not self._reading.acquire(blocking=False):
            return False  # another thread reads for all
        self._followers.discard(waiter)
        if self._closed:
            self._reading.release()
            return False
        self._led = True
        if not self._apart:
            self._apart = True
            self.house.modify(self._replies_fd, 0)
        if not self._timed:
            self._timed = True
            os.eventfd_write(self.wake_fd, 1)  # from now on the keeper watches the time
        return True

    def _stop_leading(self) -> None:
        """Lets another thread lead; after a while the keeper reads again."""
        self._reading.release()
        if self._followers or self.unattended():
            self.attend()

    def _follow(self, waiter: threading.Lock, seconds: float, held: HeldInterrupts) -> bool:
        """Waits for a lock that the leading thread, or the keeper after it, will free."""
        try:
            held.open = True
            got = waiter.acquire(timeout=seconds)
            held.open = False
        finally:
            self._followers.discard(waiter)
        return got

    def attend(self) -> None:
        """Lets the keeper read replies from now on, unless a thread of the program does."""
        if self._apart and self._reading.acquire(blocking=False):
            self._hand_back()
            self._reading.release()

    def _read_until(
        self,
        waiter: threading.Lock,
        seconds: float,
        held: HeldInterrupts,
        seen: Callable[[], bool] | None,
    ) -> bool:
        began = monotonic()
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
            held.open = True
            events = self.replies.poll(left)
            held.open = False
            self._handle(events)
        self._quick = monotonic() - began < _QUICK_S
        return True

    # The end ------------------------------------------------------------------------------

    def end(self) -> None:
        """Wakes the thread that leads, whose lock is free by now; idempotent."""
        if not self._closed:
            with contextlib.suppress(OSError):
                os.eventfd_write(self._over, 1)

    def close(self, release: Callable[[], object] = lambda: None) -> None:
        """Ends reading; the keeper calls this last.

        Args:
            release: Called when no thread reads any more, before the descriptors are closed.
        """
        self.end()
        with self._reading:
            self._closed = True
            release()
            self._close()

    def _close(self) -> None:
        self.replies.close()
        self.house.close()
        os.close(self.wake_fd)
        os.close(self._over)

    def disown(self) -> None:
        """Closes a forked child's copies; takes no lock."""
        if not self._closed:
            self._closed = True
            self._close()
