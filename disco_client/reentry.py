"""Steps that nothing interrupts, in threads that may be entered again at any bytecode.

Signal handlers, finalizers that the garbage collector runs, and asynchronous exceptions come
between two bytecodes of a thread. CPython looks for them when a function begins, when a loop
goes back and when a call returns. So one call of a function in C either happens or does not, with
what it returns where another function in C puts it, and so does a row of assignments without a
call. Other threads do not run in between either.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import sys
import threading
from collections import deque
from collections.abc import Callable
from functools import partial
from itertools import repeat, starmap
from operator import attrgetter, methodcaller
from queue import Empty, SimpleQueue
from typing import Any, TypeVar, cast

from disco_client.threads import call_undisturbed, is_refusal

__all__ = [
    "Condition",
    "Event",
    "import_uninterrupted",
    "is_collecting",
    "is_of_system",
    "move",
    "owned",
]

_Moved = TypeVar("_Moved")


def move(source: deque[_Moved], count: int, target: list[_Moved] | deque[_Moved]) -> None:
    """Moves the first items of a queue behind others, each of them once."""
    target.extend(map(_popleft, repeat(source, count)))


class _Collections(list[object]):
    """Its last item is the collector's dictionary about the collection that is in progress, if any.

    The collector calls ``setattr`` with a phase and that dictionary, and so one of these setters.
    All of them are functions in C, which nothing interrupts: what a signal handler raises in a
    callback of the collector would be lost. The second one leaves only the dictionary's keys.
    """

    start = property(fset=cast("Any", list).append)
    stop = property(fset=cast("Any", list).__init__)


_collections = _Collections()
_begun = threading.local()
gc.callbacks += (partial(setattr, _begun), partial(setattr, _collections))


def is_collecting() -> bool:
    """Whether the calling thread is in a finalizer that the garbage collector has called."""
    return bool(_collections) and _collections[-1] is getattr(_begun, "start", None)


_TIMED_OUT = "timed out"
"""What a socket with a time limit says, without a number."""


def is_of_system(error: BaseException) -> bool:
    """Whether the system has raised an error, and not a signal handler that came between.

    Handlers raise the same classes, above all TimeoutError, and what they raise is the program's.
    The system's errors have a number, or they are plain OSErrors, as those are that a peer sends.

    Args:
        error: An error that says that the system has refused something, or a peer is gone.
    """
    if isinstance(error, OSError):
        is_plain = type(error) is OSError
        return is_plain or error.errno is not None or str(error) == _TIMED_OUT
    return isinstance(error, MemoryError) or (isinstance(error, RuntimeError) and is_refusal(error))


def import_uninterrupted(name: str) -> Any:
    """Imports a module, in a thread of its own where that was not done before.

    An import that an exception interrupts leaves the module locked for all threads. Where the
    system starts no thread, that is better than no import.
    """
    module = sys.modules.get(name)
    if module is None or getattr(module.__spec__, "_initializing", False):
        try:
            call_undisturbed(partial(importlib.import_module, name))
        except RuntimeError as error:
            if not is_refusal(error):
                raise
    return importlib.import_module(name)


class Condition(threading.Condition):
    """A condition that an exception cannot leave locked; its lock is reentrant.

    ``with`` finds both of the first methods first, and then calls the lock's own, which are
    functions in C. Those of the base are functions in Python.
    """

    __enter__ = property(attrgetter("_lock.__enter__"))  # type: ignore[assignment]
    __exit__ = property(attrgetter("_lock.__exit__"))  # type: ignore[assignment]

    _is_owned: Callable[[], bool]
    _release_save: Callable[[], object]
    _acquire_restore: Callable[[object], None]
    _waiters: deque[threading.Lock]

    def wait(self, timeout: float | None = None) -> bool:
        """As of the base."""
        if not self._is_owned():
            raise RuntimeError("cannot wait on un-acquired lock")
        waiter = threading.Lock()
        waiter.acquire()
        saved: list[object] = []
        try:
            self._waiters.append(waiter)
            saved.extend(starmap(self._release_save, ((),)))
            return waiter.acquire(timeout=-1 if timeout is None else max(timeout, 0.0))
        finally:
            if saved:
                self._acquire_restore(saved[0])
            with contextlib.suppress(ValueError):  # it was notified
                self._waiters.remove(waiter)


class Event:
    """As of :mod:`threading`, without a lock that an exception could leave locked."""

    def __init__(self) -> None:
        self._flag = False
        self._waiting: deque[SimpleQueue[None]] = deque()

    def is_set(self) -> bool:
        """Whether it is set."""
        return self._flag

    def set(self) -> None:
        """Sets it, and wakes all that wait."""
        self._flag = True
        deque(map(_wake, tuple(self._waiting)), 0)

    def clear(self) -> None:
        """Lets threads wait again."""
        self._flag = False

    def wait(self, timeout: float | None = None) -> bool:
        """Waits until it is set; whether it is."""
        queue: SimpleQueue[None] = SimpleQueue()
        try:
            self._waiting.append(queue)
            if not self._flag:
                with contextlib.suppress(Empty):
                    queue.get(timeout=None if timeout is None else max(timeout, 0.0))
        finally:
            with contextlib.suppress(ValueError):
                self._waiting.remove(queue)
        return self._flag


_popleft: Callable[[Any], Any] = methodcaller("popleft")
_wake = methodcaller("put", None)


def owned(lock: Any) -> Callable[[], bool]:
    """Returns what says whether the calling thread holds a reentrant lock.

    Args:
        lock: A ``threading.RLock``.
    """
    return lock._is_owned  # noqa: SLF001  (as threading.Condition does)
