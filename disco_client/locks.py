"""Locks of sessions: in which order a thread takes them, and whether it has one.

Threads that take two locks in different orders may wait for each other for ever. So each lock has
a place in one order, `ORDER`. Where ``DISCO_DEBUG`` is 1, a thread that takes a lock out of order
gets an AssertionError before it waits, as does one that calls a function of the program with one.

A signal handler or a finalizer may run while its thread has a lock, and wait for an answer there.
If a thread that answers depend on waits for that lock, neither goes on. So whoever has waited for
a moment asks whether its thread has any lock, and if so gives up. See docs/threads.md.
"""

from __future__ import annotations

import contextlib
import os
import threading
import weakref
from typing import TYPE_CHECKING, Any, Final

from disco_client.errors import Reentered
from disco_client.reentry import is_collecting, owned

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

__all__ = ["ORDER", "check_free", "check_no_lock_held", "check_order", "make_lock", "unordered"]

ORDER: Final = ("object", "connection", "stream", "sent", "session", "output")
"""The places of locks. A thread that has one takes only those of later places."""

_RLock: Any = type(threading.RLock())


class _Made(weakref.ref[Any]):
    """A lock that was made, and the number of its place."""

    place: int


_made: set[_Made] = set()


class _CheckedLock(_RLock):  # type: ignore[misc]  (it is a class, of no public name)
    """A reentrant lock that a thread has to take in order."""

    place: int

    @property
    def __enter__(self) -> Callable[[], bool]:
        # The check is made when the method is looked up: the call itself stays one of a function
        # in C, which nothing interrupts.
        if not owned(self)():
            _check(self.place)
        return super().__enter__  # type: ignore[no-any-return]


_checked = os.environ.get("DISCO_DEBUG") == "1"


def check_order() -> None:
    """Lets the locks that are made from now on be checked, whatever the environment says."""
    global _checked  # noqa: PLW0603  (a switch of this module)
    _checked = True


class _Here(threading.local):
    """What is known of the calling thread.

    Attributes:
        unordered: In how many blocks of :func:`unordered` it is.
    """

    unordered: int = 0


_here = _Here()


@contextlib.contextmanager
def unordered() -> Generator[None]:
    """Checks no order in a block: a signal handler comes between any two steps of its thread."""
    _here.unordered += 1
    try:
        yield
    finally:
        _here.unordered -= 1


def make_lock(place: str = ORDER[0]) -> threading.RLock:
    """Makes a reentrant lock, of which :func:`check_no_lock_held` knows.

    Args:
        place: Its place in `ORDER`.
    """
    number = ORDER.index(place)
    lock: Any = _CheckedLock() if _checked else threading.RLock()
    if _checked:
        lock.place = number
    made = _Made(lock, _made.discard)
    made.place = number
    _made.add(made)
    return lock  # type: ignore[no-any-return]


def _held() -> list[int]:
    """The places of the locks that the calling thread has."""
    # A copy is made in one step; while a tuple of them is, a lock that is collected may leave.
    return [made.place for made in _made.copy() if (lock := made()) is not None and owned(lock)()]


def _check(place: int) -> None:
    """Makes sure that the calling thread may take a lock of a place."""
    before = max(_held(), default=-1)
    # A finalizer comes between any two steps, too; the collector runs in one thread at a time.
    if before >= place and not (_here.unordered or is_collecting()):
        raise AssertionError(
            f"a thread that has a lock of place {ORDER[before]!r} takes one of place"
            f" {ORDER[place]!r}; the order is {', '.join(ORDER)}, see docs/threads.md"
        )


def check_free() -> None:
    """Makes sure that a function of the program is called without a lock, where that is checked.

    It may take as long as it likes, wait for anything, and use the session.
    """
    if _checked and _held() and not is_collecting():
        raise AssertionError("a function of the program is called by a thread that has a lock")


def check_no_lock_held() -> None:
    """Makes sure that the calling thread has no lock for which others may wait.

    Raises:
        Reentered: It has one.
    """
    if _held():
        raise Reentered
