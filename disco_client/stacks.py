"""Where the threads of this process are, asked for so that none of them stands still."""

from __future__ import annotations

import gc
import os
import sys
import threading
from types import FrameType

__all__ = ["current_frames"]

_lock = threading.RLock()  # one that a signal's handler may meet again

if hasattr(os, "register_at_fork"):
    # A child would have a lock that nobody frees, and no collection.
    os.register_at_fork(
        before=_lock.acquire, after_in_parent=_lock.release, after_in_child=_lock.release
    )


def current_frames() -> dict[int, FrameType]:
    """The innermost frame of each thread, by the thread's identifier.

    Before Python 3.12 the interpreter may collect garbage while it makes this, with its list of
    threads locked. What is called for dead objects may give way to a thread that waits for that
    list to start another, and then both wait for ever (python/cpython issue 106883). So nothing
    is collected meanwhile.
    """
    if sys.version_info >= (3, 12):
        return sys._current_frames()  # noqa: SLF001  (public, in spite of its name)
    with _lock:
        collects = gc.isenabled()
        gc.disable()
        try:
            return sys._current_frames()  # noqa: SLF001  (as above)
        finally:
            if collects:
                gc.enable()
