"""How many commands and bytes of a session may be under way, and the calls that wait."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from typing import Any, Protocol, TypeAlias

from disco_client.batches import Batches
from disco_client.clock import monotonic_ns
from disco_client.errors import Reentered, WouldBlock
from disco_client.locks import check_no_lock_held
from disco_client.scopes import current_owner, in_event_loop
from disco_client.session_end import SessionEnd
from disco_client.waiting import Deadline, LongWaits
from disco_client.wire.limits import WINDOW_BYTES

__all__ = ["WINDOW_ARRAY_BYTES", "Bar", "OneOwner", "Waiting", "Window"]

WINDOW_ARRAY_BYTES = 256 << 20
"""The window for arrays that travel beside the log, and are buffered on the workers' nodes."""

_LOOK_ROOM_S = 1.0
"""How often a call that waits for room looks whether that is to be reported."""

_FULL = (
    "as many commands or bytes are under way as may be, and the call would stop the event loop"
    " until workers have executed some; before it, `await session.ready()`"
)

Waiting: TypeAlias = tuple[int, Any]
"""When a wait began, in nanoseconds, and what is known of its reports."""


class Bar(Protocol):
    """Decides which calls may issue commands while not all may."""

    @property
    def exclusive(self) -> bool:
        """Whether one thread or task alone may."""
        ...

    @property
    def over(self) -> bool:
        """Whether those that may need no room."""
        ...

    def __call__(self) -> bool:
        """Whether the call that asks has to wait; may raise."""
        ...


class OneOwner:
    """Admits one thread or task alone: the one that makes it.

    Args:
        over: Whether it needs no room.

    Attributes:
        over: As given.
        former: The bar in whose place it is.
        lifted: Whether it is over.
    """

    exclusive: bool = True

    def __init__(self, *, over: bool = False) -> None:
        self.over: bool = over
        self.former: Bar | None = None
        self.lifted: bool = False
        self._owner: object = current_owner()

    def __call__(self) -> bool:
        """Whether it is another one that asks."""
        return current_owner() is not self._owner


class Window:
    """Says which calls may issue a command now; the others wait.

    Args:
        batches: What is under way.
        commands: How many commands may be.
        ending: Nobody waits once the session takes no more commands.
        lock: The one that guards the batches.

    Attributes:
        commands: As above.
        nbytes: How many bytes commands under way may hold.
        beside: How many bytes of arrays may travel beside them.
        bar: Asked, if set, under the lock and by each call that issues a command, whether
            the call has to wait; may raise.
        asynchronous: Whether calls must not wait in an event loop.
        in_transport: Says whether the calling thread is in the middle of sending or reading.
        long_waits: Is notified each second of waits.
    """

    __slots__ = (
        "_batches",
        "_ending",
        "_for_room",
        "_for_turn",
        "_lock",
        "asynchronous",
        "bar",
        "beside",
        "commands",
        "in_transport",
        "long_waits",
        "nbytes",
    )

    def __init__(
        self, batches: Batches, commands: int, ending: SessionEnd, lock: threading.RLock
    ) -> None:
        self._batches = batches
        self._ending = ending
        self._lock = lock
        self._for_turn: deque[Callable[[], object]] = deque()
        self._for_room: deque[Callable[[], None]] = deque()
        self.commands: int = commands
        self.nbytes: int = WINDOW_BYTES
        self.beside: int = WINDOW_ARRAY_BYTES
        self.bar: Bar | None = None
        self.asynchronous: bool = False
        self.in_transport: Callable[[], bool] = lambda: False
        self.long_waits: LongWaits = LongWaits()

    @property
    def limit(self) -> int:
        """The number of the last command that may be under way, whatever their bytes are."""
        return self._batches.done.slowest + self.commands

    def is_full(self) -> bool:
        """Whether the caller would wait for room."""
        batches, bar = self._batches, self.bar
        if self._ending.refused is not None:
            return False
        if bar is not None and bar.over:
            return bar()
        return (
            batches.newest >= self.limit
            or batches.nbytes > self.nbytes
            or batches.beside > self.beside
            or (bar is not None and bar())
        )

    @property
    def has_much_room(self) -> bool:
        """Whether a quarter of the window is free, so that a caller can issue many commands."""
        batches = self._batches
        return self._ending.refused is not None or (
            batches.newest - batches.done.slowest <= self.commands * 3 // 4
            and batches.nbytes <= self.nbytes * 3 // 4
            and batches.beside <= self.beside * 3 // 4
            and not (self.bar is not None and self.bar.exclusive)
        )

    # Threads that wait --------------------------------------------------------------------------

    def await_notice(self) -> threading.Lock:
        """Returns a lock that is freed when there may be room; the window's lock is held.

        Raises:
            WouldBlock: The caller must not wait.
            Reentered: This thread is sending or reading, so there is no room until it goes on.
        """
        if self.asynchronous and in_event_loop():
            raise WouldBlock(_FULL)
        if self.in_transport():
            raise Reentered
        turn = threading.Lock()
        turn.acquire()
        self._for_turn.append(turn.release)
        return turn

    def wait(
        self, turn: threading.Lock, deadline: Deadline | None, waiting: Waiting | None
    ) -> Waiting:
        """Waits for room, without the lock.

        Args:
            turn: As :meth:`await_notice` returned it.
            deadline: When to end the wait.
            waiting: What it returned before, in the same call.

        Raises:
            DiscoTimeout: The wait has taken too long.
        """
        began, since = waiting or (monotonic_ns(), None)
        try:
            # All are woken when the session is lost, so this ends.
            if not turn.acquire(timeout=_LOOK_ROOM_S if deadline is None else deadline.left()):
                if deadline is not None:
                    deadline.check()
                check_no_lock_held()
                with self._lock:
                    self._batches.trim()
                since = self.long_waits.look(since)
        except KeyboardInterrupt as error:
            self.long_waits.on_interrupt(error)
            raise
        return began, since

    # Whoever is told ----------------------------------------------------------------------------

    def call_on_progress(self, call: Callable[[], object]) -> None:
        """Calls something, once, when workers have executed more; it must not wait."""
        self._for_turn.append(call)

    def call_when_room(self, call: Callable[[], None]) -> None:
        """Calls something, once, when a quarter of the window is free; it must not wait.

        Where an exception interrupts the call, it may be repeated.
        """
        with self._lock:
            self._for_room.append(call)
        self.tell_of_room()

    def wake_callers(self) -> None:
        """Lets calls that wait ask again whether they have to."""
        self.notify()
        self.tell_of_room()

    def notify(self) -> None:
        """Wakes those that wait; workers have executed more."""
        try:
            while True:
                self._for_turn.popleft()()
        except IndexError:
            pass

    def tell_of_room(self) -> None:
        """Calls what waits for a quarter of the window to be free, if it is."""
        if self._for_room:
            with self._lock:
                self._call_while_room()

    def _call_while_room(self) -> None:
        calls = self._for_room
        while calls and self.has_much_room:
            call = calls[0]
            call()
            if calls and calls[0] is call:  # else this thread was here again meanwhile
                calls.popleft()

    def disown(self, lock: threading.RLock) -> None:
        """Begins anew in a forked child, where another lock guards it."""
        self._lock = lock
        self._for_turn = deque()
