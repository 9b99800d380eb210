"""Threads that a session needs, on a system that may start no more of them.

Python raises a bare RuntimeError where the system refuses a thread. gRPC is worse off: without its
own threads it aborts the process or waits for ever, so it is used only where they can be had.
"""

from __future__ import annotations

import _thread
import contextlib
import os
import sys
import threading
import time
import weakref
from collections.abc import Callable, Generator
from functools import partial
from queue import SimpleQueue
from typing import TYPE_CHECKING

from disco_client.clock import monotonic
from disco_client.errors import SessionError

if TYPE_CHECKING:
    from types import FrameType

__all__ = [
    "ThreadRefused",
    "call_undisturbed",
    "check_threads",
    "is_helper",
    "is_own",
    "is_refusal",
    "limits",
    "start_thread",
    "starting",
    "starts_none",
]

_REFUSED = "start new thread"
"""What every Python says of a thread that the system does not start."""

_AT_THE_END = "interpreter shutdown"
"""In what Python 3.12 and later say of a thread that is to start when the interpreter ends."""

_GONE_S = 1.0
"""For how long the system may take to count a thread that has ended no more."""


class ThreadRefused(SessionError, RuntimeError):
    """The system starts no more threads for this process; the message says what to do."""


def limits() -> str:
    """The limit of this user's threads and processes, and how it is raised."""
    now = memory = ""
    with contextlib.suppress(ImportError):
        import resource  # not where there is no such limit

        soft, _ = resource.getrlimit(resource.RLIMIT_NPROC)
        now = "" if soft == resource.RLIM_INFINITY else f", {soft} now"
        space, _ = resource.getrlimit(resource.RLIMIT_AS)
        if space != resource.RLIM_INFINITY:
            memory = (
                f" or that of memory, in which each has a stack (ulimit -v, {space >> 10} now),"
            )
    return (
        f"raise the limit of processes and threads (ulimit -u{now}; in a container --pids-limit,"
        f" of a systemd unit TasksMax),{memory} or end others of this user"
    )


def is_refusal(error: RuntimeError) -> bool:
    """Whether an error says that the system starts no thread."""
    return _REFUSED in str(error)


def starts_none(error: RuntimeError) -> bool:
    """Whether an error says that no thread starts, refused or because the interpreter ends."""
    return is_refusal(error) or _AT_THE_END in str(error)


@contextlib.contextmanager
def starting(what: str) -> Generator[None]:
    """Makes a typed error of a thread that the system refuses in the block.

    Args:
        what: What it is for.

    Raises:
        ThreadRefused: It does.
    """
    try:
        yield
    except RuntimeError as error:
        if isinstance(error, ThreadRefused) or not is_refusal(error):
            raise
        msg = f"the system starts no thread for {what} ({error}); {limits()}"
        raise ThreadRefused(msg) from error


def is_own() -> bool:
    """Whether the calling thread is one of a session, so that no signal handler interrupts it."""
    return _OWN in vars(threading.current_thread())


_BEGINNING = threading.Thread._bootstrap_inner.__code__  # type: ignore[attr-defined]  # noqa: SLF001  (there is no other way)
"""Where every thread of Python begins."""

_HELPING = (__name__, "disco_client.transport.calls", "disco_client.transport.run_clock")
"""Whose threads other threads wait for, besides gRPC's."""


class _Known(threading.local):
    """What is known of the calling thread.

    Attributes:
        helper: Whether it is a helper; None if that was not looked up yet.
    """

    helper: bool | None = None


_known = _Known()


def is_helper() -> bool:
    """Whether the calling thread carries a call of gRPC, or does something that waits need.

    A finalizer may run there. While it waits the other thread does not go on, which may be the
    one that it waits for. A session's threads are waited for until they begin, all at their end.
    """
    helper = _known.helper
    if helper is None:
        frame: FrameType | None = sys._getframe()  # noqa: SLF001  (as above)
        inner, module = frame, ""
        while frame is not None:
            # The outermost is of the function with which a thread without an object begins.
            module = str(frame.f_globals.get("__name__"))
            if frame.f_code is _BEGINNING:
                # Also before the thread's first line, when current_thread() does not know it yet.
                thread = frame.f_locals["self"]
                target = getattr(thread, "_target", None)  # none once it is over
                if getattr(thread, _SERVES, False):
                    return True
                if inner.f_code.co_name != _RUN and (_OWN in vars(thread) or target is None):
                    return True
                module = str(getattr(target, "__module__", ""))
                break
            inner, frame = frame, frame.f_back
        helper = _known.helper = module in _HELPING or module.partition(".")[0] == "grpc"
    return helper


_RUN = threading.Thread.run.__name__
_OWN, _SERVES = "disco_own", "disco_serves"


def start_thread(thread: threading.Thread, *, serves: bool = False) -> None:
    """Starts a thread of a session.

    Args:
        thread: It.
        serves: Whether waits of the session need what it does, so that a wait there is refused.

    Raises:
        ThreadRefused: The system does not; the thread is named.
    """
    vars(thread)[_OWN] = True
    vars(thread)[_SERVES] = serves
    with starting(thread.name):
        call_undisturbed(thread.start)


def call_undisturbed(call: Callable[[], object]) -> None:
    """Calls something that an exception of a signal handler must not interrupt.

    That is done in a thread of its own, which has no signal handlers. This one waits.

    Raises:
        RuntimeError: The system starts no thread.
    """
    over: SimpleQueue[object] = SimpleQueue()
    done = False
    errors: list[BaseException] = []

    def run() -> None:
        nonlocal done
        try:
            call()
        except BaseException as error:  # noqa: BLE001  (raised where it is waited for)
            errors.append(error)
        finally:
            done = True

    # Until a new thread runs, Python takes it for the one that starts it: what is raised
    # asynchronously in this one may end it before its first line. Then there is another.
    while not done:
        task = partial(run)
        # The thread alone keeps its task, however it ends. The callback is a function in C: one
        # in Python could be interrupted here, where this thread may be the last to drop the task.
        ended = weakref.ref(task, over.put)
        # Not by a Thread, whose start is not whole before it returns.
        _thread.start_new_thread(task, ())
        del task
        over.get()
        del ended
    if errors:
        raise errors.pop()


def check_threads(count: int, what: str) -> None:
    """Makes sure that the system starts so many more threads, by starting them for a moment.

    Args:
        count: How many.
        what: What they are for.

    Raises:
        ThreadRefused: It starts fewer.
    """
    over = threading.Lock()
    over.acquire()
    made: list[threading.Thread] = []
    try:
        with starting(f"{what}, which needs {count} more"):
            for _ in range(count):
                thread = threading.Thread(
                    target=_pass, args=(over,), name="disco-check", daemon=True
                )
                thread.start()
                made.append(thread)
    finally:
        over.release()
        for thread in made:
            thread.join()
        # A thread is counted until the kernel has released it, a moment after it was joined.
        until = monotonic() + _GONE_S
        while any(map(_is_there, made)) and monotonic() < until:
            time.sleep(0)


def _pass(gate: threading.Lock) -> None:
    with gate:
        pass


def _is_there(thread: threading.Thread) -> bool:
    return os.path.exists(f"/proc/self/task/{thread.native_id}")  # noqa: PTH110  (asked often)
