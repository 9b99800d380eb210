"""Calls of gRPC that Ctrl-C interrupts without harm.

Python raises KeyboardInterrupt between any two steps of the main thread. Where that is
inside gRPC, just after it took a lock of the channel, the lock stays taken, and every later
call on the channel waits for ever. So calls of the main thread are made by another one, on
which no signal is raised.
"""

from __future__ import annotations

import _thread
import threading
from collections.abc import Callable
from typing import Any, Generic, TypeVar

__all__ = ["apart", "ask"]

_T = TypeVar("_T")
_CANCEL_S = 5.0


def ask(call: Any, *args: Any, **options: Any) -> Any:
    """Makes a call with one answer, and returns that; see `apart`.

    Args:
        call: Of a channel or a line.
        args: What it is called with.
        options: Likewise.
    """
    return apart(lambda: call.future(*args, **options), lambda made: made.result())


def apart(begin: Callable[[], Any], finish: Callable[[Any], _T]) -> _T:
    """Makes a call in a thread of its own, where this is the main thread.

    Args:
        begin: Makes the call.
        finish: Waits for its end, and returns what came.

    Raises:
        KeyboardInterrupt: Somebody pressed Ctrl-C; the call was cancelled, and is over.
    """
    if threading.current_thread() is not threading.main_thread():
        return finish(begin())
    work = _Work(begin, finish)
    try:
        threading.Thread(target=work.run, name="disco-call", daemon=True).start()
        work.over.acquire()
    except BaseException:
        work.cancel()
        raise
    return work.outcome()


class _Work(Generic[_T]):
    def __init__(self, begin: Callable[[], Any], finish: Callable[[Any], _T]) -> None:
        self._begin = begin
        self._finish = finish
        self._call: Any = None
        self._cancelled = False
        self._found: list[_T] = []
        self._error: BaseException | None = None
        # A bare lock, because an Event has another one inside, which Ctrl-C could leave taken.
        self.over = _thread.allocate_lock()
        self.over.acquire()

    def run(self) -> None:
        try:
            self._call = call = self._begin()
            if self._cancelled:
                call.cancel()
            self._found.append(self._finish(call))
        except BaseException as error:  # noqa: BLE001  (it is the caller's)
            self._error = error
        finally:
            self.over.release()

    def cancel(self) -> None:
        """Ends the call, and waits for that: its buffers are the caller's again."""
        self._cancelled = True
        if self._call is not None:
            threading.Thread(target=self._call.cancel, daemon=True).start()
        self.over.acquire(timeout=_CANCEL_S)

    def outcome(self) -> _T:
        if self._error is not None:
            raise self._error
        return self._found[0]
