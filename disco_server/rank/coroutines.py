"""Runs the coroutines that functions of a rank return, each to its end, on a loop of the rank's.

The loop is there from the first of them until the session ends, so that what one call leaves in
it, such as a client, a lock or a task, is there for the next. It runs while a command awaits a
coroutine, in the rank's own thread, and stands still between them.

An interrupt raises an exception between two bytecodes, by which a loop would lose a callback that
it is about to run; and a loop that waits runs no bytecode. So an exception is raised in steps of
coroutines only. Elsewhere the interrupt asks the loop to cancel the command's task.
"""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable, Coroutine
from contextlib import suppress
from types import CoroutineType, TracebackType
from typing import TYPE_CHECKING, Any, TypeAlias, cast

from disco_server.modules.unfinished import is_generator, refuse_unfinished
from disco_server.rank.signals import CALL_ENDS, CallGuard, CommandInterrupted, NotBegun

if TYPE_CHECKING:
    import asyncio

__all__ = ["OWN_CODE", "close_loop", "finished"]

_Coroutine: TypeAlias = "CoroutineType[Any, Any, Any]"

_END_S = 1.0
"""How long tasks may clean up when the session ends."""


_here = threading.local()
"""Of each rank's thread, where one has run coroutines."""


def finished(guard: CallGuard, result: Any) -> Any:
    """Returns what a call has returned; of a coroutine, what that returns at its end.

    Args:
        guard: That of the rank whose thread this is.
        result: What the call has returned.

    Raises:
        BaseException: The coroutine raised it.
        CommandInterrupted: The program has interrupted the command.
        ConfigError: It is a coroutine inside of another one.
    """
    if type(result) is not CoroutineType:
        return result
    here: RankCoroutines | None = getattr(_here, "coroutines", None)
    if here is None or here.guard is not guard:
        close_loop()
        here = _here.coroutines = RankCoroutines(guard)
    return here.finish(result)


def close_loop() -> None:
    """Cancels the tasks that are left in the loop of this thread's rank, and closes it."""
    here: RankCoroutines | None = getattr(_here, "coroutines", None)
    if here is not None:
        _here.coroutines = None
        here.close()


class RankCoroutines:
    """Runs coroutines for one rank, in its thread; nothing is there before the first.

    Args:
        guard: The rank's.

    Attributes:
        guard: The same.
    """

    def __init__(self, guard: CallGuard) -> None:
        self.guard = guard
        self._loop: asyncio.AbstractEventLoop | None = None
        # The coroutine whose result the command waits for, and its task.
        self._awaited: _Coroutine | None = None
        self._main: asyncio.Task[Any] | None = None
        # How many of the guard's interrupts have reached the tasks.
        self._taken = 0
        # Whether a task runs that an earlier command has left.
        self._elsewhere = False

    def finish(self, result: Any) -> Any:
        """See :func:`finished`, of a result that has yet to be computed."""
        if self._awaited is not None:
            refuse_unfinished(result)
        guard, coroutine = self.guard, cast("_Coroutine", result)
        try:
            with guard:
                loop = self._loop or self._open()
            if guard.calling:  # in a step of a program, which is one call
                value = self.run(loop, coroutine)
            else:
                value = guard.run(self.run, loop, coroutine)
        except NotBegun:  # but the function that has made the coroutine had begun
            raise CommandInterrupted from None
        finally:
            if inspect.getcoroutinestate(coroutine) == inspect.CORO_CREATED:
                coroutine.close()
        if not is_generator(value):
            refuse_unfinished(value)
        return value

    def _open(self) -> asyncio.AbstractEventLoop:
        # Not before: importing it takes longer than all else that a rank does at its start.
        import asyncio

        self._loop = loop = asyncio.new_event_loop()
        loop.set_task_factory(self._make_task)
        return loop

    def _make_task(
        self, loop: asyncio.AbstractEventLoop, coroutine: Any, **options: Any
    ) -> asyncio.Task[Any]:
        from asyncio import Task

        if type(coroutine) is CoroutineType:
            inner = cast("_Coroutine", coroutine)
            coroutine = InterruptibleCoroutine(inner, self.guard.position, self.step)
        return Task(coroutine, loop=loop, **options)

    def run(self, loop: asyncio.AbstractEventLoop, coroutine: _Coroutine) -> Any:
        """Runs a coroutine to its end; a part of a call.

        Raises:
            BaseException: The coroutine raised it.
            CommandInterrupted: The program has interrupted the command.
        """
        guard, raised = self.guard, None
        self._taken = guard.aims
        guard.between = self._ask
        self._awaited = coroutine
        try:
            self._main = main = self._make_task(loop, coroutine)
            main.add_done_callback(lambda _main: loop.stop())
            while not main.done():
                try:
                    loop.run_forever()
                except CALL_ENDS:
                    if main.done() and not main.cancelled():
                        main.exception()  # which nobody else asks for
                    raise
                except BaseException as error:  # noqa: BLE001  (a task has raised KeyboardInterrupt)
                    raised = raised or error
                    main.cancel()
            raised = guard.take_kept() or raised
            return self._result(main, raised)
        except BaseException as error:
            _leave_out_own(error)
            raise
        finally:
            self._awaited = self._main = None
            guard.between = None

    def _result(self, main: asyncio.Task[Any], raised: BaseException | None) -> Any:
        from asyncio import CancelledError

        try:
            result = main.result()
        except CancelledError as error:
            if raised is None and self.guard.interrupted:
                raise CommandInterrupted().with_traceback(error.__traceback__) from None
            raise raised or error from None
        if raised is not None:
            raise raised
        return result

    # What ends a command -------------------------------------------------------------

    def _ask(self) -> None:
        """Has the loop cancel the command's task, in whatever thread this is called."""
        # A task of an earlier command goes on, but one that never awaits would keep the loop:
        # the next interrupt is raised in it.
        if self._elsewhere:
            self.guard.between = None
        if self._loop is not None:
            with suppress(RuntimeError):  # it was closed at this moment
                self._loop.call_soon_threadsafe(self._cancel)

    def _cancel(self) -> None:
        if self._main is not None and self._taken != self.guard.aims:
            self._taken = self.guard.aims
            self._main.cancel()

    def step(
        self,
        coroutine: _Coroutine,
        born: int,
        go_on: Callable[..., Any],
        *of: Any,
    ) -> Any:
        """Lets a coroutine go on until it awaits something, which is returned.

        Args:
            coroutine: The coroutine.
            born: In which command its task was made. Only those of the command that is executed
                are interrupted.
            go_on: Its ``send`` or ``throw``.
            *of: What that takes.
        """
        while True:
            try:
                if born == self.guard.position:
                    return self._step_within(coroutine, go_on, of)
                return self._step_elsewhere(go_on, of)
            except CommandInterrupted as error:
                # It may have come right before the step or after it.
                if coroutine.cr_frame is not None:
                    go_on, of = coroutine.throw, (error,)
                elif coroutine is self._awaited:
                    raise
                else:  # so that asyncio does not report that nobody has asked for it
                    from asyncio import CancelledError

                    raise CancelledError().with_traceback(error.__traceback__) from None

    def _step_within(
        self,
        coroutine: _Coroutine,
        go_on: Callable[..., Any],
        of: tuple[Any, ...],
    ) -> Any:
        guard = self.guard
        before = guard.between
        try:
            # From here on an interrupt is raised, so that one that has come before is seen here.
            guard.between = None
            if guard.aims != self._taken and before is not None:
                go_on, of = coroutine.throw, (CommandInterrupted(),)
            result = go_on(*of)
            _look()
        finally:
            # No other thread runs between these lines, see `CallGuard.interrupt_thread`.
            interrupted = guard.aims != self._taken
            self._taken = guard.aims
            guard.between = before
            if interrupted and coroutine is not self._awaited and self._main is not None:
                self._main.cancel()  # it may not wait for this one
            guard.land()
        return result

    def _step_elsewhere(self, go_on: Callable[..., Any], of: tuple[Any, ...]) -> Any:
        guard = self.guard
        before = guard.between
        self._elsewhere = before is not None
        try:
            return go_on(*of)
        finally:
            self._elsewhere = False
            guard.between = before
            guard.land()

    def close(self) -> None:
        """Cancels the tasks that are left, and closes the loop, if there is one."""
        loop, self._loop = self._loop, None
        if loop is None:
            return
        from asyncio import all_tasks, wait, wait_for

        self._taken = self.guard.aims
        try:
            left = all_tasks(loop)
            for task in left:
                task.cancel()
            if left:
                loop.run_until_complete(wait(left, timeout=_END_S))
            loop.run_until_complete(wait_for(loop.shutdown_asyncgens(), _END_S))
        except Exception:  # noqa: BLE001, S110  (of the session's own code; the rank ends)
            pass
        finally:
            loop.close()


OWN_CODE = frozenset(
    each.__code__ for each in (CallGuard.run, finished, RankCoroutines.finish, RankCoroutines.run)
)
"""What stands in a traceback between the caller of a function and its first line."""


class InterruptibleCoroutine(Coroutine[Any, Any, Any]):
    """A coroutine whose steps an interrupt may end.

    Args:
        coroutine: The coroutine.
        born: The command in which its task was made.
        step: See :meth:`RankCoroutines.step`.
    """

    def __init__(self, coroutine: _Coroutine, born: int, step: Callable[..., Any]) -> None:
        self._coroutine = coroutine
        self._born = born
        self._step = step

    def send(self, value: Any, /) -> Any:
        """Lets it go on with a value."""
        return self._step(self._coroutine, self._born, self._coroutine.send, value)

    def throw(self, *error: Any) -> Any:
        """Lets it go on with an exception."""
        return self._step(self._coroutine, self._born, self._coroutine.throw, *error)

    def close(self) -> None:
        """Ends it."""
        self._coroutine.close()

    def __await__(self) -> Any:
        """As of the coroutine."""
        return self._coroutine.__await__()

    def __getattr__(self, name: str) -> Any:
        """As of the coroutine: its name and its frame, which descriptions of a task show."""
        return getattr(self._coroutine, name)


def _look() -> None:
    """Python raises what another thread has raised in this one when it calls a function."""


def _leave_out_own(error: BaseException) -> None:
    """Leaves the frames of this module out of a traceback, and of those that it is chained to."""
    seen: set[int] = set()
    left: list[BaseException | None] = [error]
    while left:
        each = left.pop()
        if each is None or id(each) in seen:
            continue
        seen.add(id(each))
        each.__traceback__ = _without_own(each.__traceback__)
        left += each.__cause__, each.__context__
        if isinstance(each, BaseExceptionGroup):
            left += cast("BaseExceptionGroup[BaseException]", each).exceptions


def _without_own(trace: TracebackType | None) -> TracebackType | None:
    """A traceback without the frames of this module."""
    kept: list[TracebackType] = []
    while trace is not None:
        if trace.tb_frame.f_globals is not globals():
            kept.append(trace)
        trace = trace.tb_next
    for each, below in zip(kept, (*kept[1:], None), strict=False):
        each.tb_next = below
    return kept[0] if kept else None
