"""Scopes of errors: blocks, asyncio tasks and threads of the program.

A command belongs to the scope that issues it, and its errors are raised where that scope
waits. Finding the scope is part of issuing a command, so the result is cached in a context
variable, with the thread or task that it is for. Contexts are copied, for new tasks and by
``asyncio.to_thread``; a thread or task that finds the entry of another one looks it up again.
"""

from __future__ import annotations

import os
import sys
import threading
import weakref
from collections.abc import Callable, Iterable, Sequence
from contextvars import Context, ContextVar
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Self, cast

from disco_client.copies import Handle
from disco_client.locks import make_lock
from disco_client.uncollected import (
    collects_here,
    current_frames,
    frames_of,
    reset_variable,
    set_variable,
)

if TYPE_CHECKING:
    import asyncio
    from types import FrameType, TracebackType

__all__ = ["NO_SCOPE", "Block", "Scope", "current_owner", "current_scope", "in_event_loop"]


class Scope:
    """Issues commands, and gets their errors.

    Args:
        owner: The task, or what lives as long as the thread or the block.
        is_thread: Whether it is a thread's.
    """

    __slots__ = ("_owner", "closed", "is_thread")

    def __init__(self, owner: object = None, *, is_thread: bool = False) -> None:
        self._owner = None if owner is None else weakref.ref(owner)
        self.is_thread: bool = is_thread
        self.closed: bool = False

    @property
    def ended(self) -> bool:
        """Whether it has ended, so that it will not wait again."""
        if self.closed or self._owner is None:
            return self.closed
        owner: Any = self._owner()
        return owner is None or (not self.is_thread and owner.done())


NO_SCOPE = Scope()
"""The scope of commands that no call of the program issued."""


class _Thread:
    """Lives exactly as long as a thread; identifiers of threads are used again."""

    __slots__ = ("__weakref__", "scope")

    def __init__(self) -> None:
        self.scope = Scope(self, is_thread=True)


class _Local(threading.local):
    """The thread-local state.

    Attributes:
        me: Lives as long as the thread.
        key: Identifies it in contexts, which may live longer. Another one while a finalizer has
            a scope of its own, so that it is looked for.
        finalizer: Takes the place of the context variable in a finalizer's blocks.
    """

    def __init__(self) -> None:
        self.me = _Thread()
        self.key = object()
        self.finalizer: _Found | None = None


class _Found:
    """The value of the context variable.

    Attributes:
        key: The key of the thread that it is for; None for a task.
        task: Returns the task; weakly, because copies of a context may outlive it.
        scope: Its scope.
        blocks: The blocks that it is in, the innermost first. Weakly: an exception may come
            before the first line of a block's end, and then only the ``with`` ends that kept it.
    """

    __slots__ = ("blocks", "key", "scope", "task")

    def __init__(
        self,
        key: object,
        task: Callable[[], object],
        scope: Scope,
        blocks: tuple[weakref.ref[Block], ...],
    ) -> None:
        self.key = key
        self.task = task
        self.scope = scope
        self.blocks = blocks

    def within(self, log: object) -> Scope:
        """The scope for commands of a log: that of the innermost of its blocks, if any."""
        for each in self.blocks:
            block = each()
            if block is not None and block.log is log and block.entered:
                return block.scope
        return self.scope


_local = _Local()
_found: ContextVar[_Found | None] = ContextVar("disco_scope", default=None)
_mark: ContextVar[object] = ContextVar("disco_mark", default=None)
_tasks: weakref.WeakKeyDictionary[Any, Scope] = weakref.WeakKeyDictionary()
_loops: weakref.WeakSet[asyncio.AbstractEventLoop] = weakref.WeakSet()
_lock = make_lock()
_asyncio: Any = None


def _renew_lock() -> None:
    """Replaces it in a forked child, where a thread of the parent may have held it."""
    global _lock  # noqa: PLW0603  (a lock cannot be freed otherwise)
    _lock = make_lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew_lock)


def current_scope(log: object) -> Scope:
    """The caller's scope: a block of this log, else the task, else the thread.

    Args:
        log: A session's, by which its blocks are known.
    """
    found = _found.get()
    if found is None or _running_loop() is not None or found.key is not _local.key:
        found = _look(found)
    return found.within(log) if found.blocks else found.scope


def current_owner() -> Scope:
    """The scope of the calling task, or else thread, whatever blocks it is in."""
    return _look(_found.get()).scope


def in_event_loop() -> bool:
    """Whether an event loop of asyncio runs the caller: a task of it, or a callback."""
    return _find_loop() is not None


def _look(found: _Found | None) -> _Found:
    """The entry of the calling task or thread; looked up and cached if there is none."""
    inside = _local.finalizer
    if inside is not None and collects_here():
        return inside
    loop: Any = _find_loop()
    task = None if loop is None else _asyncio.current_task(loop)
    if task is None:
        if found is None or found.key is not _local.key:
            found = _keep(None, _find_scope(found, loop), found)
    elif found is None or found.task() is not task:
        with _lock:
            _loops.add(cast("asyncio.AbstractEventLoop", loop))
        found = _keep(task, _scope_of(task), found)
    return found


def _keep(task: object, scope: Scope, before: _Found | None) -> _Found:
    blocks = () if before is None else before.blocks
    if task is None:
        found = _Found(_local.key, _no_task, scope, blocks)
    else:
        found = _Found(None, weakref.ref(task), scope, blocks)
    if not collects_here():
        set_variable(_found, found)
    return found


def _no_task() -> None:
    """Takes the place of a reference to a task where there is none."""


def _find_scope(before: _Found | None, loop: Any) -> Scope:
    """The scope of a caller outside of any task; its context may be a copy of a task's."""
    # A callback of a loop has the context of the code that scheduled it.
    task = _find_lender() if loop is None and _asyncio is not None else None
    if task is not None:
        return _scope_of(task)
    return _local.me.scope if before is None or before.scope.is_thread else before.scope


def _find_loop() -> Any:
    """The loop that runs in this thread; none does before the program has loaded asyncio."""
    global _asyncio, _running_loop
    if _asyncio is None:
        module = sys.modules.get("asyncio")
        if module is None or not hasattr(module, "to_thread"):
            return None
        # The public one raises where no loop runs.
        _asyncio, _running_loop = module, module._get_running_loop  # noqa: SLF001
    return _running_loop()


# Until asyncio is imported, this checks whether it is.
_running_loop: Callable[[], Any] = partial(sys.modules.get, "asyncio")


def _scope_of(task: Any) -> Scope:
    with _lock:
        scope = _tasks.get(task)
        if scope is None:
            scope = _tasks[task] = Scope(task)
        return scope


# Where asyncio.to_thread was called -----------------------------------------------------


def _find_lender() -> Any:
    """The task in whose context this thread works, if there is one.

    A copied context does not name its origin. The task, however, waits for this thread, or
    is about to, in a function that holds the copy; a mark in the copy identifies it.
    """
    if collects_here():
        return None  # what a finalizer does is the thread's, as no mark can be set
    mark = object()
    token = set_variable(_mark, mark)
    try:
        with _lock:
            loops = list(_loops)
        task = _find_waiting(loops, mark)
        if task is None:
            me = threading.get_ident()
            stacks = [frames_of(each) for each in current_frames() if each != me]
            loops = _add_loops(loops, stacks)
            # If it is still running, it is found here, or is waiting by now.
            task = _find_running(loops, stacks, mark) or _find_waiting(loops, mark)
        return task
    finally:
        reset_variable(_mark, token)


def _find_waiting(loops: Sequence[Any], mark: object) -> Any:
    for loop in loops:
        for task in () if loop.is_closed() else _asyncio.all_tasks(loop):
            step = task.get_coro()
            while step is not None:
                if _holds(getattr(step, "cr_frame", None), mark):
                    return task
                step = getattr(step, "cr_await", None)
    return None


def _find_running(loops: Sequence[Any], stacks: Sequence[Sequence[Any]], mark: object) -> Any:
    running = [_asyncio.current_task(loop) for loop in loops if not loop.is_closed()]
    for stack in stacks:
        if any(_holds(frame, mark) for frame in stack):
            for task in running:
                if task is not None and getattr(task.get_coro(), "cr_frame", None) in stack:
                    return task
    return None


def _holds(frame: FrameType | None, mark: object) -> bool:
    """Whether a function has the context with the mark."""
    if frame is None:
        return False
    # Its names in asyncio, and in anyio and others.
    for name in {"ctx", "context"}.intersection(frame.f_code.co_varnames):
        held = frame.f_locals.get(name)
        if isinstance(held, Context) and held.get(_mark) is mark:
            return True
    return False


def _add_loops(known: list[Any], stacks: Iterable[Iterable[FrameType]]) -> list[Any]:
    """Adds the loops that run in other threads and are not known yet."""
    loops = set(known)
    for stack in stacks:
        for frame in stack:
            if frame.f_globals.get("__name__") in ("asyncio.base_events", "asyncio.runners"):
                for held in frame.f_locals.values():
                    if isinstance(held, _asyncio.AbstractEventLoop):
                        loops.add(held)
                    elif isinstance(held, _asyncio.Task):
                        loops.add(held.get_loop())
    with _lock:
        _loops.update(loops)
    return list(loops)


# Blocks -----------------------------------------------------------------------------------


class _BlockOwner:
    """Lives as long as a block, which an exception may keep from saying that it ends."""

    def done(self) -> bool:
        """Whether it is over though it lives."""
        return False


def _no_op(_scope: Scope) -> None:
    """What a block gives up that nobody can cancel."""


class Block(Handle):
    """A scope for commands issued inside of a ``with`` block, and by tasks started there.

    Args:
        log: The log of the session whose commands it takes.
        give_up: Cancels what a scope has issued.
        cancels: Whether what was issued in the block is cancelled where an exception leaves it.

    Attributes:
        scope: The scope of the block.
        entered: Whether it has begun and not ended.
    """

    _instead: ClassVar[str] = "session.scope() makes another block"

    def __init__(
        self, log: object, give_up: Callable[[Scope], object] = _no_op, *, cancels: bool = False
    ) -> None:
        self.log = log
        self._give_up = give_up
        self._cancels = cancels
        self._owner = _BlockOwner()
        self.scope: Scope = Scope(self._owner)
        self.entered: bool = False
        self._leave: Callable[[], object] | None = None

    def __enter__(self) -> Self:
        if self._leave is not None or self.scope.closed:
            msg = "a scope can be entered once; session.scope() makes another one"
            raise RuntimeError(msg)
        found = _look(_found.get())
        inside = _Found(found.key, found.task, found.scope, (weakref.ref(self), *found.blocks))
        if collects_here():
            self._leave = _enter_in_finalizer(inside)
        else:
            self._leave = partial(reset_variable, _found, set_variable(_found, inside))
        self.entered = True  # last, as an exception may come before
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.entered, self.scope.closed = False, True  # first, and without a call
        leave, self._leave = self._leave, None
        if leave is not None:
            leave()
            if kind is not None and self._cancels:
                self.cancel()

    def cancel(self) -> None:
        """Gives up what was issued in the block so far: workers end it, or leave it out.

        See ``ref.cancel()``; what is issued afterwards is executed.
        """
        self._give_up(self.scope)


def _enter_in_finalizer(inside: _Found) -> Callable[[], object]:
    """Lets a block take what its thread issues until it ends; returns what ends that."""
    key, outer = _local.key, _local.finalizer

    def leave() -> None:
        _local.key, _local.finalizer = key, outer

    _local.key, _local.finalizer = object(), inside
    return leave
