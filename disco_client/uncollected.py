"""What the interpreter must not be interrupted in by finalizers."""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Callable
from contextvars import ContextVar, Token
from itertools import chain, starmap
from operator import attrgetter, methodcaller
from types import FrameType
from typing import TypeVar

from disco_client.locks import make_lock
from disco_client.reentry import is_collecting

__all__ = ["collects_here", "current_frames", "frames_of", "reset_variable", "set_variable"]

_Value = TypeVar("_Value")

_lock = make_lock()  # one that a signal's handler may meet again

if hasattr(os, "register_at_fork"):
    # A child would have a lock that nobody frees, and no collection.
    os.register_at_fork(
        before=_lock.acquire, after_in_parent=_lock.release, after_in_child=_lock.release
    )


def collects_here() -> bool:
    """Whether the calling thread is in a finalizer that the interpreter may call within others.

    Before Python 3.12 it collects garbage wherever it allocates, also while a function in C is
    in the middle of its work. Then a finalizer may not set a variable of the context: somebody
    else, numpy for one, may be setting another one, and goes on with memory that was freed.
    """
    return sys.version_info < (3, 12) and is_collecting()


def current_frames() -> dict[int, FrameType]:
    """The innermost frame of each thread, by the thread's identifier.

    Before Python 3.12 the interpreter may collect garbage while it makes this, with its list of
    threads locked. What is called for dead objects may give way to a thread that waits for that
    list to start another, and then both wait for ever (python/cpython issue 106883).
    """
    return _call(sys._current_frames)  # noqa: SLF001  (public, in spite of its name)


_outer = attrgetter("f_back")


def frames_of(thread: int) -> list[FrameType]:
    """The frames of a thread, the innermost first; none where there is no such thread.

    They are found by one call of a function in C, during which the thread does not go on. Else
    ``f_back`` of a frame that it has left meanwhile has been something else in Python 3.11.

    Args:
        thread: Its identifier.
    """
    frames: list[FrameType] = []
    innermost = map(methodcaller("get", thread), starmap(sys._current_frames, ((),)))  # noqa: SLF001  (as above)
    # It goes through the list while that grows.
    _call(frames.extend, filter(None, chain(innermost, map(_outer, frames))))
    return frames


def set_variable(variable: ContextVar[_Value], value: _Value) -> Token[_Value]:
    """Sets a variable of the context.

    Before Python 3.12 the interpreter may collect garbage while it does. A finalizer that sets a
    variable as well frees what it still reads; see :func:`collects_here`.
    """
    return _call(variable.set, value)


def reset_variable(variable: ContextVar[_Value], token: Token[_Value]) -> None:
    """Gives a variable of the context the value before; see :func:`set_variable`."""
    _call(variable.reset, token)


def _call(call: Callable[..., _Value], *args: object) -> _Value:
    """Calls a function in C while nothing is collected; from Python 3.12 on, nothing is anyway."""
    if sys.version_info >= (3, 12):
        return call(*args)
    with _lock:
        collects = gc.isenabled()
        try:
            gc.disable()
            return call(*args)
        finally:
            if collects:
                gc.enable()
