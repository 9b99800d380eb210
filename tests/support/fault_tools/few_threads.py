"""Processes that the system lets start few threads: really, or as a test says."""

from __future__ import annotations

import contextlib
import ctypes
import os
import re
import resource
import threading
from collections import Counter
from collections.abc import Callable, Iterator

__all__ = ["NotPermitted", "become_poor", "refusing"]

_PR_SET_KEEPCAPS, _PR_CAP_AMBIENT, _RAISE = 8, 47, 2
_CAP_VERSION = 0x20080522
_READ_ANYTHING = 1, 2  # CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH: this Python may be root's own


class NotPermitted(Exception):
    """This process may not become another user's."""


def become_poor(threads: int, uid: int) -> None:
    """Makes this process one of a user who has no other, with a limit of threads.

    The kernel counts the threads of all processes of a user, and not those of root. It and the
    processes that it starts may still read every file.

    Args:
        threads: How many the user may have.
        uid: The user.

    Raises:
        NotPermitted: It is not root's, or may not do that.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    header = (ctypes.c_uint32 * 2)(_CAP_VERSION, 0)
    bits = sum(1 << number for number in _READ_ANYTHING)
    sets = (ctypes.c_uint32 * 6)(bits, bits, bits)
    try:
        kept = libc.prctl(_PR_SET_KEEPCAPS, 1, 0, 0, 0)
        os.setgroups([])
        os.setgid(uid)
        os.setuid(uid)
    except OSError as error:
        raise NotPermitted(f"this user may not become another: {error}") from None
    if kept or libc.capset(header, sets):
        raise NotPermitted("this process cannot keep a capability")
    if any(libc.prctl(_PR_CAP_AMBIENT, _RAISE, number, 0, 0) for number in _READ_ANYTHING):
        raise NotPermitted("this process cannot pass on a capability")
    resource.setrlimit(resource.RLIMIT_NPROC, (threads, threads))


@contextlib.contextmanager
def refusing(refuse: Callable[[str], bool]) -> Iterator[Counter[str]]:
    """Lets the start of some threads of this process fail, as it does where there is none left.

    Args:
        refuse: Says whether it fails, by the name of the thread without its numbers.

    Yields:
        How often threads were started, or refused, by these names.
    """
    real, seen = threading.Thread.start, Counter[str]()

    def start(thread: threading.Thread) -> None:
        name = re.sub(r"[-_]\d+", "", thread.name)
        seen[name] += 1
        if refuse(name):
            raise RuntimeError("can't start new thread")
        real(thread)

    threading.Thread.start = start  # type: ignore[method-assign]
    try:
        yield seen
    finally:
        threading.Thread.start = real  # type: ignore[method-assign]
