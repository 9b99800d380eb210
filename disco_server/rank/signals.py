"""What a rank does with exceptions that come from outside the call that it runs.

A handler of a signal raises wherever the rank happens to be. In a call of the session's, that is
the call's failure, as in any program. Elsewhere the rank reads a frame, sends a reply or waits,
and an exception there would lose what is half done; so the handlers that functions install with
``signal.signal`` are run inside a guard, which logs what they raise, and the rank goes on.
"""

from __future__ import annotations

import contextlib
import signal
import sys
import traceback
from collections.abc import Callable
from types import FrameType
from typing import Any

__all__ = ["CALL_ENDS", "RANK_ENDS", "CallGuard", "RankEnded"]


class RankEnded(BaseException):
    """Raised inside a rank that is over; whatever it runs has not failed for that."""


CALL_ENDS = (SystemExit, RankEnded)
"""What ends the rank where a function raises it; all else is the failure of its call."""

RANK_ENDS = (*CALL_ENDS, KeyboardInterrupt, MemoryError)
"""What ends the rank where it is raised between calls; all else is logged."""


class CallGuard:
    """Whether a rank runs a call, and what was raised when it did not; for the rank's one thread.

    As a context, which may be nested, it is work of the rank's own, also within a call: what is
    raised meanwhile by a handler is raised in the call when that work is done.

    Attributes:
        calling: Set while code of the session's runs.
    """

    def __init__(self) -> None:
        self.calling = False
        self._own = 0
        self._kept: BaseException | None = None
        self._logging = False

    @property
    def interruptible(self) -> bool:
        """Whether a handler may raise: in a call, outside of work of the rank's own."""
        return self.calling and not self._own

    def run(self, func: Callable[..., Any], /, *args: Any, **named: Any) -> Any:
        """Calls code of the session's."""
        self.calling = True
        try:
            return func(*args, **named)
        finally:
            self.calling = False

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
        if self.calling and self._own and self._kept is None:
            self._kept = error
            return
        if self._logging:  # of one that came a moment before
            return
        self._logging = True
        said = "disco: this was raised while the worker ran no call; it goes on\n"
        # The stream may be one that a function has put there.
        with contextlib.suppress(BaseException):
            sys.stderr.write(said + "".join(traceback.format_exception(error, chain=False)))
        self._logging = False

    def install(self) -> None:
        """Runs what ``signal.signal`` is given from now on inside this guard."""
        set_handler, get_handler = signal.signal, signal.getsignal

        def guarded(number: int, handler: Any) -> Any:
            own = _GuardedHandler(self, handler) if callable(handler) else handler
            return _original(set_handler(number, own))

        def known(number: int) -> Any:
            return _original(get_handler(number))

        signal.signal, signal.getsignal = guarded, known


class _GuardedHandler:
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
    return handler.handler if isinstance(handler, _GuardedHandler) else handler
