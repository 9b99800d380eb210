"""Ctrl-C while a thread does work of its session's transport.

Python runs signal handlers in the main thread between any two bytecodes, and Ctrl-C's
raises there. In the middle of sending or of reading replies that would corrupt the session's
stream. So while the main thread does such work, Ctrl-C is only noted, and its handler runs
when the work is done, or at once while the thread only waits.
"""

from __future__ import annotations

import importlib
import signal
import threading
from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    from types import FrameType

__all__ = ["HeldInterrupts"]

# signal.signal turns numbers into enums and back, which costs more than a reply
# takes to arrive; the function of `_signal` that it calls does the same without that.
_signal: Any = importlib.import_module("_signal")
_SIGINT = int(signal.SIGINT)


class HeldInterrupts:
    """A context that defers Ctrl-C; does nothing outside the main thread.

    Attributes:
        open: Set while Ctrl-C may be delivered at once, because no transfer is under way.
        delivered: Whether one was.
    """

    # Defaults of the class, because an instance is made for each wait.
    open = False
    delivered = False
    _noted = False
    _frame: FrameType | None = None
    _previous: Any = None

    def __enter__(self) -> Self:
        if threading.get_ident() == threading.main_thread().ident:
            previous = _signal.getsignal(_SIGINT)
            # A handler that is no Python function could not be restored.
            if callable(previous):
                self._previous = previous
                _signal.signal(_SIGINT, self._note)
        return self

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self.open:
            self.open = False  # the next one is deferred while this one is handled
            self.delivered = True
            self._previous(number, frame)
        else:
            self._noted, self._frame = True, frame

    def __exit__(self, *_: object) -> None:
        if self._previous is None:
            return
        _signal.signal(_SIGINT, self._previous)
        if self._noted:
            self._previous(_SIGINT, self._frame)
