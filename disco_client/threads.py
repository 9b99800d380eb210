"""Threads that a session needs, on a system that may start no more of them.

Python raises a bare RuntimeError where the system refuses a thread. gRPC is worse off: without its
own threads it aborts the process or waits for ever, so it is used only where they can be had.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Generator

from disco_client.clock import monotonic
from disco_client.errors import SessionError

__all__ = ["ThreadRefused", "check_threads", "is_refusal", "limits", "start_thread", "starting"]

_REFUSED = "start new thread"
"""What every Python says of a thread that the system does not start."""

_GONE_S = 1.0
"""For how long the system may take to count a thread that has ended no more."""


class ThreadRefused(SessionError, RuntimeError):
    """The system starts no more threads for this process; the message says what to do."""


def limits() -> str:
    """The limit of this user's threads and processes, and how it is raised."""
    now = ""
    with contextlib.suppress(ImportError):
        import resource  # not where there is no such limit

        soft, _ = resource.getrlimit(resource.RLIMIT_NPROC)
        now = "" if soft == resource.RLIM_INFINITY else f", {soft} now"
    return (
        f"raise the limit of processes and threads (ulimit -u{now}; in a container --pids-limit,"
        " of a systemd unit TasksMax), or end others of this user"
    )


def is_refusal(error: RuntimeError) -> bool:
    """Whether an error says that the system starts no thread."""
    return _REFUSED in str(error)


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


def start_thread(thread: threading.Thread) -> None:
    """Starts a thread.

    Raises:
        ThreadRefused: The system does not; the thread is named.
    """
    with starting(thread.name):
        thread.start()


def check_threads(count: int, what: str) -> None:
    """Makes sure that the system starts so many more threads, by starting them for a moment.

    Args:
        count: How many.
        what: What they are for.

    Raises:
        ThreadRefused: It starts fewer.
    """
    over = threading.Event()
    made: list[threading.Thread] = []
    try:
        with starting(f"{what}, which needs {count} more"):
            for _ in range(count):
                thread = threading.Thread(target=over.wait, name="disco-check", daemon=True)
                thread.start()
                made.append(thread)
    finally:
        over.set()
        for thread in made:
            thread.join()
        # A thread is counted until the kernel has released it, a moment after it was joined.
        until = monotonic() + _GONE_S
        while any(map(_is_there, made)) and monotonic() < until:
            time.sleep(0)


def _is_there(thread: threading.Thread) -> bool:
    return os.path.exists(f"/proc/self/task/{thread.native_id}")  # noqa: PTH110  (asked often)
