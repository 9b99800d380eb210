"""What a rank does with exceptions that come from outside the call that it runs.

A handler of a signal raises wherever the rank happens to be. In a call of the session's, that is
the call's failure, as in any program. Elsewhere the rank reads a frame, sends a reply or waits,
and an exception there would lose what is half done; so the handlers that functions install with
``signal.signal`` are run inside a guard, which logs what they raise, and the rank goes on.

An interrupt of the program comes in the same way: by a signal, or where the rank is a thread, as
an exception that another thread raises in it.
"""

from __future__ import annotations

import contextlib
import ctypes
import signal
import sys
import threading
import traceback
from collections.abc import Callable, MutableSequence
from types import FrameType
from typing import Any

from disco_client.clock import monotonic
from disco_server.observe.flight import SLOT_MASK

__all__ = [
    "AGAIN_S",
    "CALL_ENDS",
    "RANK_ENDS",
    "CallGuard",
    "CommandInterrupted",
    "NotBegun",
    "RankEnded",
    "absorb_raised",
]


class RankEnded(BaseException):
    """Raised inside a rank that is over; whatever it runs has not failed for that."""


class CommandInterrupted(BaseException):
    """Raised in the call that a rank runs, because the program has interrupted its command."""


class NotBegun(CommandInterrupted):
    """Raised in place of a call that is left out, because the program has interrupted it before."""


CALL_ENDS = (SystemExit, RankEnded)
"""What ends the rank where a function raises it; all else is the failure of its call."""

RANK_ENDS = (*CALL_ENDS, KeyboardInterrupt, MemoryError)
"""What ends the rank where it is raised between calls; all else is logged."""

AGAIN_S = 0.5
"""How long a function that has been interrupted may clean up before it is interrupted again."""

_NONE_CANCELLED = [-1] * (SLOT_MASK + 1)

_raise_in_thread = ctypes.pythonapi.PyThreadState_SetAsyncExc
_RAISED = ctypes.py_object(CommandInterrupted)


def absorb_raised(kind: type[BaseException]) -> None:
    """Ends what another thread has raised in this one, if it has not come by now.

    It is raised here once more, and caught. CPython 3.11 keeps one flag for all threads, which
    says that something is to be raised in one of them; only raising clears it, not taking it back
    and not the end of the thread. While the flag is set, every call in every thread is slower, and
    a function that is traced by ``sys.settrace``, as debuggers do, never begins. Another thread may
    clear the flag before this one has looked, so that it takes several attempts.

    Args:
        kind: What was raised.
    """
    ident, raised = ctypes.c_ulong(threading.get_ident()), ctypes.py_object(kind)
    try:
        while True:
            _raise_in_thread(ident, raised)
            _look_for_raised()
    except kind:
        pass


def _look_for_raised() -> None:
    """Python raises at the latest when it calls a function in Python."""


class CallGuard:
    """Whether a rank runs a call, and what was raised when it did not; for the rank's one thread.

    As a context, which may be nested, it is work of the rank's own, also within a call: what is
    raised meanwhile by a handler is raised in the call when that work is done.

    Attributes:
        calling: Set while code of the session's runs.
        position: The number of the command that is executed, or was last.
        until: Commands up to this one are left out if they have not begun.
        ends: Such a command ends also if it has begun.
        cancelled: At ``seq & SLOT_MASK``, the number of a command that ends, or is left out.
        aimed: The command in which an interrupt was raised last.
        aims: How often one was raised, or kept for the call to end with.
        between: Set while an event loop of the call's runs, and no step of a coroutine of it:
            ends the call, in whatever thread it is called. The loop would lose what it has begun
            by an exception, and waits for no bytecode.
        wake: Lets the rank's thread look at what is interrupted; called in another one.
        on_interrupt: Called when commands are interrupted, in whatever thread; must not wait.
    """

    def __init__(self) -> None:
        self.calling = False
        self.position = 0
        self.cancelled: MutableSequence[int] | memoryview[int] = _NONE_CANCELLED
        self.wake: Callable[[], object] = lambda: None
        self.until = -1
        self.ends = -1
        self.on_interrupt: Callable[[], object] = lambda: None
        self._own = 0
        self._kept: BaseException | None = None
        self._logging = False
        self.between: Callable[[], object] | None = None
        self.aims = 0
        self.aimed = -1
        self._aimed_at = 0.0
        self._raised = False

    @property
    def interruptible(self) -> bool:
        """Whether a handler may raise: in a call, outside of work of the rank's own."""
        return self.calling and not self._own and self.between is None

    @property
    def interrupted(self) -> bool:
        """Whether the command that is executed is to end."""
        seq = self.position
        return seq <= self.ends or self.cancelled[seq & SLOT_MASK] == seq

    def is_left_out(self, seq: int) -> bool:
        """Whether a command does not begin any more."""
        return seq <= self.until or self.cancelled[seq & SLOT_MASK] == seq

    def run(self, func: Callable[..., Any], /, *args: Any, **named: Any) -> Any:
        """Calls code of the session's.

        Raises:
            NotBegun: The program has interrupted the command before.
        """
        self.calling = True
        try:
            # Looked at inside, so that an interrupt is either seen here or raised from here on.
            if self.is_left_out(self.position):
                raise NotBegun
            return func(*args, **named)
        finally:
            self.calling = False
            self.land()

    def __enter__(self) -> None:
        """Begins work of the rank's own."""
        # One number, so that nothing is half done wherever a handler raises.
        self._own += 1

    def __exit__(self, *_: object) -> None:
        """Ends it."""
        self._own -= 1
        kept = self._kept
        if kept is not None and self.interruptible:
            self._kept = None
            raise kept

    def outside(self, error: BaseException) -> None:
        """Takes what was raised while no code of the session's ran: logs it, or keeps it.

        Raises:
            BaseException: The same, where it is one of `RANK_ENDS`.
        """
        if isinstance(error, RANK_ENDS):
            raise error
        between = self.between
        if self.calling and (self._own or between is not None) and self._kept is None:
            self._kept = error
            if between is not None:
                self.aims += 1
                between()
            return
        if self._logging:  # of one that came a moment before
            return
        self._logging = True
        said = "disco: this was raised while the worker ran no call; it goes on\n"
        # The stream may be one that a function has put there.
        with contextlib.suppress(BaseException):
            sys.stderr.write(said + "".join(traceback.format_exception(error, chain=False)))
        self._logging = False

    # Interrupts -----------------------------------------------------------------------

    def interrupt(self, until: int, ends: int) -> None:
        """Notes an interrupt, in the rank's own thread: a handler calls it anywhere.

        Raises:
            CommandInterrupted: The command that is executed ends here.
        """
        if self._note(until, ends) and self.calling:
            self.aimed, self._aimed_at = self.position, monotonic()
            self.aims += 1
            if self.between is not None:
                self.between()
            elif self._own:
                self._kept = self._kept or CommandInterrupted()  # when that work is done
            else:
                raise CommandInterrupted

    def handler(self, until_and_ends: Callable[[], tuple[int, int]]) -> Callable[..., None]:
        """The handler of the signal of an interrupt.

        Args:
            until_and_ends: What :meth:`interrupt` takes.
        """

        def handle(_number: int, _frame: FrameType | None) -> None:
            self.interrupt(*until_and_ends())

        return handle

    def interrupt_thread(self, thread: int, until: int, ends: int) -> None:
        """Does the same from another thread.

        Args:
            thread: The identifier of the rank's thread.
            until: As the attribute.
            ends: As the attribute.
        """
        ident, kept = ctypes.c_ulong(thread), CommandInterrupted()
        if not (self._note(until, ends) and self.calling):
            return
        now = monotonic()
        # The interpreter changes threads where a function begins, a call of C returns or a loop
        # goes back: for the last time where `interrupted` begins. So what is found from there on
        # is so still when it is acted on.
        if self.interrupted and self.calling:
            self.aimed, self._aimed_at = self.position, now
            self.aims += 1
            if self.between is not None:
                self.between()
            elif self._own:
                self._kept = self._kept or kept
            else:
                self._raised = True
                _raise_in_thread(ident, _RAISED)

    def take_kept(self) -> BaseException | None:
        """Takes what was raised while an event loop ran, which the call that ran it fails with."""
        kept, self._kept = self._kept, None
        return kept

    def land(self) -> None:
        """Ends what another thread has raised in this one, if it has not come by now.

        To be called when a call is over, before anything that must not be interrupted. The
        interpreter may forget for a while to look for an exception, where it has just raised one
        in another thread.

        Raises:
            CommandInterrupted: It has come at this moment, and so is over as well.
        """
        if self._raised:
            self._raised = False
            absorb_raised(CommandInterrupted)

    def _note(self, until: int, ends: int) -> bool:
        """Notes how far an interrupt goes; whether the running command is to end now."""
        self.ends = max(self.ends, ends)
        self.until = max(self.until, until)
        self.on_interrupt()
        again = self.aimed != self.position or monotonic() - self._aimed_at >= AGAIN_S
        return self.interrupted and again

    def install(self) -> None:
        """Runs what ``signal.signal`` is given from now on inside this guard."""
        set_handler, get_handler = signal.signal, signal.getsignal

        def guarded(number: int, handler: Any) -> Any:
            own = GuardedHandler(self, handler) if callable(handler) else handler
            return _original(set_handler(number, own))

        def known(number: int) -> Any:
            return _original(get_handler(number))

        signal.signal, signal.getsignal = guarded, known


class GuardedHandler:
    """A handler of a session's function."""

    def __init__(self, guard: CallGuard, handler: Callable[[int, FrameType | None], Any]) -> None:
        self.handler = handler
        self._guard = guard

    def __call__(self, number: int, frame: FrameType | None) -> None:
        if self._guard.interruptible:
            self.handler(number, frame)
            return
        try:
            self.handler(number, frame)
        except BaseException as error:  # noqa: BLE001  (whatever it raises)
            self._guard.outside(error)


def _original(handler: Any) -> Any:
    return handler.handler if isinstance(handler, GuardedHandler) else handler
