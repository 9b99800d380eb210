"""Locks of sessions, and whether the calling thread has one.

A signal handler or a finalizer may run while its thread has a lock, and wait for an answer there.
If a thread that answers depend on waits for that lock, neither goes on. So whoever has waited for
a moment asks whether its thread has any lock, and if so gives up.
"""

from __future__ import annotations

import threading
import weakref
from typing import Any

from disco_client.errors import Reentered
from disco_client.reentry import owned

__all__ = ["check_no_lock_held", "make_lock"]

_locks: set[weakref.ref[Any]] = set()


def make_lock() -> threading.RLock:
    """Makes a reentrant lock, of which :func:`check_no_lock_held` knows."""
    lock = threading.RLock()
    _locks.add(weakref.ref(lock, _locks.discard))
    return lock


def check_no_lock_held() -> None:
    """Makes sure that the calling thread has no lock for which others may wait.

    Raises:
        Reentered: It has one.
    """
    for known in tuple(_locks):
        lock = known()
        if lock is not None and owned(lock)():
            raise Reentered
