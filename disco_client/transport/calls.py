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

import grpc

from disco_client.clock import LONGEST_S
from disco_client.reentry import Event
from disco_client.threads import ThreadRefused, start_thread

__all__ = ["ask", "run_uninterrupted"]


_T = TypeVar("_T")

_CANCEL_S = 5.0


def ask(
    call: Any,
    request: Any,
    *,
    timeout: float,
    quiet_s: float = LONGEST_S,
    on_wait: Callable[[], object] = bool,
    **options: Any,
) -> Any:
    """Makes a call with one answer, and returns that; see `run_uninterrupted`.

    Args:
        call: Of a channel or a line.
        request: What to ask.
        timeout: Seconds. gRPC itself would count them on the wall clock, which programs
            freeze and move.
        quiet_s: After so many seconds without an answer ``on_wait`` is called, and this waits on.
        on_wait: See there.
        options: Other options of the call.

    Raises:
        grpc.RpcError: It failed, or was not answered in time.
    """
    return run_uninterrupted(
        lambda: call.future(request, **options),
        lambda made: _result(made, timeout, min(quiet_s, timeout), on_wait),
    )


def _result(made: Any, timeout: float, quiet_s: float, on_wait: Callable[[], object]) -> Any:
    over = Event()

    def end(_made: object) -> None:
        over.set()

    made.add_done_callback(end)
    if quiet_s < timeout and not over.wait(quiet_s):
        on_wait()
    left = timeout - quiet_s * (quiet_s < timeout)
    if not over.wait(min(left, LONGEST_S)):
        made.cancel()
        if made.cancelled():
            raise grpc.RpcError(f"DEADLINE_EXCEEDED: no answer within {timeout:g} s")
    return made.result()


def run_uninterrupted(begin: Callable[[], Any], finish: Callable[[Any], _T]) -> _T:
    """Makes a call in a thread of its own, where this is the main thread.

    Args:
        begin: Makes the call.
        finish: Waits for its end, and returns the result.

    Raises:
        KeyboardInterrupt: Ctrl-C was pressed; the call was cancelled, and is over.
        ThreadRefused: There is no thread for it.
    """
    if threading.current_thread() is not threading.main_thread():
        return finish(begin())
    work = _Work(begin, finish)
    thread = threading.Thread(target=work.run, name="disco-call", daemon=True)
    try:
        try:
            start_thread(thread)
        except ThreadRefused:
            work.over.release()  # nothing has begun
            raise
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
        self._ended = False
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
            self._ended = True
            self.over.release()

    def cancel(self) -> None:
        """Ends the call, and waits for that: its buffers are the caller's again."""
        self._cancelled = True
        if self._ended:  # and the lock may be taken already
            return
        if self._call is not None:
            try:
                start_thread(threading.Thread(target=self._call.cancel, daemon=True))
            except ThreadRefused:  # there is none: then here, whatever another Ctrl-C breaks
                self._call.cancel()
        self.over.acquire(timeout=_CANCEL_S)

    def outcome(self) -> _T:
        if self._error is not None:
            raise self._error
        return self._found[0]
