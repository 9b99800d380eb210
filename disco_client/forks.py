"""Sessions in processes that are forked from their own.

A forked child has a copy of every session object, but neither its threads nor a right
to its workers: what it sent would mix with what its parent sends, and its exit would end
the parent's workers. So right after the fork each session releases everything that is the
parent's, and refuses everything from then on. Whatever holds a descriptor, a mapping or a lock
that is the parent's says here how a child lets go of it (:func:`leave_in_children`).

gRPC is of no use in such a child, old channels and new ones: its threads are missing, its
locks may be taken, and its poller shares the parent's set of descriptors. New channels were
measured to hang there or to abort the process, with its fork support on and off. Closing a
channel waits for those threads, and so does the end of its last reference. Its fork support
itself wakes threads in the child that are not there, and one of 31 children was ended by
SIGABRT for it; so it is off unless the environment says otherwise or gRPC was imported before.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import os
import sys
import weakref
from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import Any, TypeVar

from disco_client.errors import ConfigError, SessionClosed
from disco_client.locks import make_lock

__all__ = [
    "ForkLock",
    "check_grpc",
    "keep_in_children",
    "leak",
    "leave_in_children",
    "not_here",
]

if "grpc" not in sys.modules:  # which reads it once, when it is imported
    os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")

_Kept = TypeVar("_Kept")
_Owned = TypeVar("_Owned")
_SPAWN = (
    "start such processes by multiprocessing's 'spawn' or 'forkserver' instead of a fork, and open"
    " a session of their own there"
)


@dataclass
class _Grpc:
    """Whether gRPC was used here, and in a process that this one was forked from."""

    here: bool = False
    before: bool = False


_grpc = _Grpc()
_owned: weakref.WeakKeyDictionary[Any, Callable[[Any], object]] = weakref.WeakKeyDictionary()
_kept: weakref.WeakSet[object] = weakref.WeakSet()


def leave_in_children(owned: _Owned, leave: Callable[[_Owned], object]) -> _Owned:
    """Lets every process that is forked from this one leave an object to this one.

    Args:
        owned: What a child must not use; it is held weakly.
        leave: Called with it in the child, right after the fork, in any order: it closes the
            child's copies of descriptors, and makes locks anew. It takes none, which a thread
            that does not live there may hold, and tells nobody.

    Returns:
        The object.
    """
    _owned[owned] = leave
    return owned


def keep_in_children(thing: _Kept) -> _Kept:
    """Makes every process that is forked from this one :func:`leak` an object; returns it."""
    _kept.add(thing)
    return thing


def leak(thing: object) -> None:
    """Keeps an object, and all that it refers to, beyond the end of the interpreter."""
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(thing))


def not_here(name: str) -> SessionClosed:
    """The error that the calls of a session raise in a child."""
    how = _SPAWN if _grpc.before else f"open another one here, or {_SPAWN}"
    return SessionClosed(f"session {name!r} belongs to the process that forked this one; {how}")


def check_grpc() -> None:
    """To be called before gRPC is used.

    Raises:
        ConfigError: This process was forked from one that has used it.
    """
    if _grpc.before:
        raise ConfigError(
            "this process was forked from one that has used gRPC for a session, after which gRPC"
            f" works here no more; {_SPAWN}, or fork before the first session is opened"
        )
    _grpc.here = True


class ForkLock:
    """A lock of a module; free in a child, even if a thread held it at the fork."""

    def __init__(self) -> None:
        self._renew()
        leave_in_children(self, ForkLock._renew)

    @contextlib.contextmanager
    def held(self) -> Generator[None]:
        """Holds it while a block runs."""
        with self._lock:
            yield

    def _renew(self) -> None:
        self._lock = make_lock()


def _leave_all() -> None:
    _grpc.before = _grpc.before or _grpc.here
    if _grpc.before:
        # What is garbage already may hold channels and servers, too, which wait at their end
        # for threads that are missing here. So none of it is ever collected.
        gc.freeze()
    for thing in list(_kept):
        leak(thing)
    errors: list[Exception] = []
    for owned, leave in list(_owned.items()):
        try:
            leave(owned)
        except Exception as error:  # noqa: BLE001  (the others are to be left all the same)
            errors.append(error)
    if errors:
        raise ExceptionGroup("what a forked child could not leave to its parent", errors)


if hasattr(os, "register_at_fork"):  # where processes can be forked
    os.register_at_fork(after_in_child=_leave_all)
