"""Keeps what signal handlers raise out of the stand-in, as a library in C does.

The real library is C code: a handler of Python's runs when it returns. The stand-in is Python, in
which a handler could raise anywhere, with its streams half changed. So handlers of real-time
signals, of which nothing but an interrupt of a rank makes use, run when the thread is outside.
"""

from __future__ import annotations

import _signal
import os
import signal
import threading
from pathlib import Path
from types import FrameType
from typing import Any

__all__ = ["defer"]

_OWN = str(Path(__file__).parents[1]) + os.sep
_AGAIN_S = 0.001


def defer() -> None:
    """Lets the handlers that this process has wait until the stand-in has returned."""
    if threading.current_thread() is not threading.main_thread():
        return
    for number in range(signal.SIGRTMIN, signal.SIGRTMAX + 1):
        handler = _signal.getsignal(number)
        if callable(handler):
            _signal.signal(number, _Deferring(handler))


class _Deferring:
    """A handler that waits."""

    def __init__(self, handler: Any) -> None:
        self._handler = handler

    def __call__(self, number: int, frame: FrameType | None) -> None:
        if _inside(frame):
            again = threading.Timer(_AGAIN_S, os.kill, (os.getpid(), number))
            again.daemon = True
            again.start()
        else:
            self._handler(number, frame)


def _inside(frame: FrameType | None) -> bool:
    while frame is not None:
        if frame.f_code.co_filename.startswith(_OWN):
            return True
        frame = frame.f_back
    return False
