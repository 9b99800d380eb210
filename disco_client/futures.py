"""Values that are to come: futures, and awaits of asyncio.

No thread waits for such an answer. The thread that reads replies calls back, and what may take
time, such as fetching a large array, is left to a few threads of the session, or done by the thread
that waits for it. Functions of the program, which may wait for anything, have threads of their own.
"""

from __future__ import annotations

import atexit
import concurrent.futures
import contextlib
import threading
import weakref
from collections import deque
from collections.abc import (
    AsyncGenerator,
    AsyncIterator,
    Callable,
    Generator,
    Iterable,
    Iterator,
    Sequence,
)
from functools import partial
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn, Protocol, Self, cast

from disco_client.copies import Handle
from disco_client.errors import DiscoError, SessionError
from disco_client.locks import check_free
from disco_client.output import logger_of
from disco_client.reentry import Condition
from disco_client.threads import ThreadRefused, is_own, start_thread
from disco_client.waiting import Deadline

if TYPE_CHECKING:
    import asyncio

    from disco_client.command_log import CommandLog
    from disco_client.replies import Inbox
    from disco_client.scopes import Scope
    from disco_client.transport.base import Pump

__all__ = [
    "AsCompleted",
    "Background",
    "RefFuture",
    "as_completed",
    "await_all",
    "await_room",
    "send_soon",
]


_logger = logger_of("disco.futures")


class Background:
    """Threads for work that may wait; they are started when there is some, and used again.

    Not those of :mod:`concurrent.futures`: a thread that gives these some work may be entered
    again meanwhile, and interrupted.

    Args:
        name: What the names of the threads begin with.
        most: How many there are at most.
    """

    RESULTS = 4
    """For reading answers, which waits for nothing but the answer."""

    CALLBACKS = 4096
    """For functions of the program: as many as may wait for each other at once."""

    _disowned = True  # until there is something to end

    def __init__(self, name: str, most: int) -> None:
        self._name, self._most = name, most
        self._crew = _Crew()
        self._disowned = False

    def prepare(self) -> None:
        """Makes sure that there is a thread, which serves where the system refuses more.

        Raises:
            ThreadRefused: The system starts none.
        """
        if not (self._crew.threads or self._crew.closed):
            self._start()
            self._crew.works.put(_nothing)  # so that it counts as one without work

    def _start(self) -> None:
        _all.add(self)
        name = f"{self._name}_{len(self._crew.threads)}"
        thread = threading.Thread(target=self._crew.serve, name=name, daemon=True)
        try:
            start_thread(thread)
        except ThreadRefused:
            raise
        except RuntimeError:
            self.close()  # the interpreter ends, and whoever comes works by itself

    def run(self, work: Callable[[], object]) -> None:
        """Runs something in one of them; works are begun in the order in which they came.

        Raises:
            ThreadRefused: There is none, and the system starts none.
        """
        crew = self._crew
        if self._disowned:
            work()
            return
        try:
            crew.idle.pop()
        except IndexError:
            if len(crew.threads) < self._most and not crew.closed:
                self._start_another()
        crew.works.put(work)
        if crew.closed:
            crew.drain()

    def _start_another(self) -> None:
        try:
            self._start()
        except ThreadRefused:
            if not self._crew.threads:  # else one of them has it to do
                raise

    def close(self, *, wait: bool = False) -> None:
        """Ends the threads when they have nothing left to do; idempotent.

        Args:
            wait: Whether to wait for that.
        """
        if not self._disowned:
            self._crew.end()
            for thread in list(self._crew.threads) if wait else ():
                thread.join()

    def __del__(self) -> None:
        self.close()

    async def call(self, work: Callable[[], None]) -> None:
        """Runs something in one of them, and awaits it; if that is cancelled, it goes on."""
        errors: list[BaseException] = []
        waiter, wake = _waiter()

        def run() -> None:
            try:
                work()
            except BaseException as error:  # noqa: BLE001  (raised where it is awaited)
                errors.append(error)
            wake()

        self.run(run)
        await waiter
        if errors:
            raise errors[0]

    def disown(self) -> None:
        """Runs everything in the calling thread of a forked child, which has none of these."""
        self._disowned = True


class _Crew:
    """What the threads of a :class:`Background` share, which ends with it.

    Attributes:
        works: What there is to do; None lets a thread end.
        idle: As many entries as there are threads without work, or more.
        threads: Those that have begun.
        closed: Whether they end when there is nothing left to do.
    """

    def __init__(self) -> None:
        self.works: SimpleQueue[Callable[[], object] | None] = SimpleQueue()
        self.idle: list[None] = []
        self.threads: list[threading.Thread] = []
        self.closed = False

    def serve(self) -> None:
        """Works, until the end."""
        self.threads.append(threading.current_thread())
        while (work := self.works.get()) is not None:
            try:
                work()
            except BaseException:
                _logger.exception("a thread of the session goes on after an error")
            del work  # not kept until there is another one
            self.idle.append(None)
        self.works.put(None)  # for the next one

    def end(self) -> None:
        """Lets the threads end."""
        if not self.closed:
            self.closed = True
            self.works.put(None)

    def drain(self) -> None:
        """Works in this thread, as there may be no other one any more."""
        with contextlib.suppress(Empty):
            for _ in range(self.works.qsize()):
                work = self.works.get_nowait()
                if work is None:
                    self.works.put(None)
                else:
                    work()


_all: weakref.WeakSet[Background] = weakref.WeakSet()


def _end_all() -> None:
    for background in list(_all):
        background.close(wait=True)


# Before the interpreter waits for threads of the program, as concurrent.futures does: what was
# begun is done, and no thread of its own is stopped in the middle of that.
getattr(threading, "_register_atexit", atexit.register)(_end_all)


# What programs hold. --------------------------------------------------------------------------


class RefFuture(Handle, concurrent.futures.Future[Any]):
    """A value that was asked for, and has not come yet.

    Made by :meth:`DRef.future <disco_client.DRef.future>`. Any thread may wait for it, and
    asyncio tasks may await it, several times too. Cancelling an await leaves it as it is;
    :meth:`cancel` gives up the command whose result was asked for.

    Attributes:
        ref: The reference that was asked for, if it was one.
        give_up: Gives up the command whose result that is.
        check_may_wait: Raises an error in an event loop that must not be stopped.

    Examples:
        >>> future = session.get_global_func("numpy.arange")(3).future()
        >>> future.result(timeout=60)
        array([0, 1, 2])
    """

    _instead: ClassVar[str] = "future.result() is the value, which can be copied and sent"

    def __init__(
        self,
        inbox: Inbox,
        background: Background,
        callbacks: Background,
        seq: int,
        scope: Scope,
        read: Callable[[], Any],
        check_may_wait: Callable[[], None],
        alive: Callable[[], None],
    ) -> None:
        """Made by a session, never by a program.

        Args:
            inbox: Gets the answer.
            background: Reads it, unless it can be read at once, or a thread waits for it.
            callbacks: Runs functions of the program.
            seq: The command that asks.
            scope: Who asks.
            read: Reads the answer, which has come; raises what went wrong.
            check_may_wait: See above.
            alive: Makes sure that an answer can arrive.
        """
        super().__init__()
        self.ref: Any = None
        self.give_up: Callable[[], object] = _nothing
        self._inbox = inbox
        self._background = background
        self._callbacks = callbacks
        self._seq = seq
        self._scope = scope
        self._read = read
        self.check_may_wait = check_may_wait
        self._alive = alive
        self._condition = Condition()  # of the base
        # Who finishes it, or cancels it: the first one.
        self._claims: list[object] = []
        self._told = False

    def __copy__(self) -> Self:
        # There is one answer, which wakes this one.
        return self

    # When the answer comes ----------------------------------------------------------------

    def arrived(self) -> None:
        """Called when the answer has come, or never will; in the thread that knows first."""
        # What interrupts a thread of the program is not to be taken for the error of this one.
        if is_own() and self._inbox.is_plain(self._seq, self._scope):
            self._finish(self._read)
            return
        try:
            self._background.run(lambda: self._finish(self._read))
        except SessionError as error:  # in this thread it could wait for what this one reads next
            self._finish(partial(self._refuse, error))

    def _refuse(self, error: SessionError) -> NoReturn:
        self._inbox.forget(self._seq)
        raise error

    def _finish(self, read: Callable[[], Any], *, here: bool = False) -> None:
        """Reads the answer, unless another thread does, or it was cancelled.

        Args:
            read: Reads it.
            here: Whether this is the thread that waits for it; what interrupts that is raised,
                and the answer can be read once more where it has no arrays.
        """
        claim = object()
        try:
            self._claims.append(claim)
            if self._claims[0] is not claim:
                return
            value = read()
        except BaseException as error:
            known = isinstance(error, DiscoError)
            if here and not known and self._inbox.is_open(self._seq):
                self._unclaim(claim)
                raise
            # With its traceback it would keep this future, which keeps it.
            self.set_exception(error.with_traceback(None) if known else error)
        else:
            self.set_result(value)
        self._inbox.forget(self._seq)

    def _unclaim(self, claim: object) -> None:
        if self._claims and self._claims[0] is claim:
            self._claims.clear()

    def add_done_callback(self, fn: Callable[[RefFuture], object]) -> None:  # type: ignore[override]
        """Calls a function with the future when its value has come, in a thread of the session.

        It may wait, also for other futures and their functions.

        Args:
            fn: The function; called at once, in this thread, where the value is there already.

        Raises:
            SessionError: The system starts no thread for it.
        """
        if self.done():
            super().add_done_callback(fn)  # type: ignore[arg-type]  (it gets this future)
        else:
            # Never in a thread that brings or reads answers: others wait for what that does next.
            self._callbacks.prepare()
            self.when_done(lambda _done: self._callbacks.run(lambda: _call(fn, self)))

    def when_done(self, call: Callable[[Any], object]) -> None:
        """The same for a function of the client's own, which does not wait, in any thread."""
        super().add_done_callback(call)

    # Waiting ------------------------------------------------------------------------------

    def cancel(self) -> bool:
        """Gives up the value, unless it has come.

        The command whose result it is ends, or is left out, as by :meth:`DRef.cancel
        <disco_client.DRef.cancel>`.

        Returns:
            Whether it is cancelled: nobody gets the value any more.
        """
        claim = object()
        try:
            self._claims.append(claim)
            if self._claims[0] is not claim:
                return self.cancelled()
            self._inbox.forget(self._seq)
        except BaseException:
            self._unclaim(claim)
            raise
        super().cancel()
        self.set_running_or_notify_cancel()
        self.give_up()
        return True

    def mark_told(self) -> None:
        """Notes that who asked knows what went wrong; else its error is left for another wait."""
        self._told = True

    def result(self, timeout: float | None = None) -> Any:
        """Waits for the value.

        Args:
            timeout: Seconds.

        Raises:
            CancelledError: It was cancelled.
            DiscoTimeout: It has not come yet; the call may be repeated.
            RemoteError: As ``ref.get()`` in the scope that made the future.
            SessionError: The session is closed or lost.
            WouldBlock: It has not come yet, and this is a task of an asyncio session; await it.
        """
        error = self.exception(timeout)
        if error is not None:
            try:
                raise error
            finally:
                del self, error  # else they would keep each other
        return super().result(0)

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """Waits for the value; the error that :meth:`result` raises, or None.

        Args:
            timeout: Seconds.

        Raises:
            CancelledError, DiscoTimeout, WouldBlock: As for :meth:`result`.
        """
        deadline = Deadline.of(timeout)
        if not self.done():
            self.check_may_wait()
            # This thread can read the answer, instead of one that has to be woken and wakes it.
            if not self._inbox.attend(self._seq, self._alive, deadline):
                pass  # another thread reads it, or will
            elif deadline is None:
                self._finish(self._read, here=True)
            else:
                self.arrived()  # where reading takes long, the wait ends in time
        if not self.done():
            self._await(deadline)
        error = super().exception(0)
        self.mark_told()
        return error

    def _await(self, deadline: Deadline | None) -> None:
        """Waits for the thread that reads the answer."""
        done = threading.Lock()
        done.acquire()
        self.when_done(lambda _done: done.release())
        if not done.acquire(timeout=-1 if deadline is None else deadline.remaining()):
            raise deadline.error()  # type: ignore[union-attr]  (else it has waited)

    def __await__(self) -> Generator[Any, None, Any]:
        if not self.done():
            waiter, wake = _waiter()
            self.when_done(lambda _done: wake())
            yield from waiter
        try:
            return self.result()
        finally:
            del self  # else an error, whose traceback has this frame, would keep itself

    def __del__(self) -> None:
        # An attribute is missing where __init__ raised.
        if not getattr(self, "_told", True) and self._exception is not None:
            self._inbox.give_back(self._exception)

    _exception: BaseException | None  # of the base, which only tells it to who waits


def _call(call: Callable[[RefFuture], object], future: RefFuture) -> None:
    check_free()
    try:
        call(future)
    except Exception:
        _logger.exception("a function that was called with %r failed", future)


# In a loop of asyncio ---------------------------------------------------------------------


class _Wakeups:
    """What the tasks of one loop do together: sending questions, and waking for answers."""

    _AT_ONCE = 24

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._to_send: set[Pump] = set()
        self._loop = weakref.ref(loop)
        self._ready: deque[asyncio.Future[None]] = deque()
        self._scheduled = False

    def post(self, waiter: asyncio.Future[None]) -> None:
        """Wakes a waiter soon."""
        self._ready.append(waiter)
        if not self._scheduled:
            self._scheduled = True
            loop = self._loop()
            if loop is not None:
                with contextlib.suppress(RuntimeError):  # it is closed
                    loop.call_soon_threadsafe(self._wake)

    def send_soon(self, pump: Pump) -> None:
        """Sends what was issued, when the tasks that are ready now have run."""
        loop = self._loop()
        if not self._to_send and loop is not None:
            loop.call_soon(self._send)
        self._to_send.add(pump)

    def _send(self) -> None:
        pumps, self._to_send = self._to_send, set()
        for pump in pumps:
            pump.send()

    def _wake(self) -> None:
        for _ in range(min(len(self._ready), self._AT_ONCE)):
            waiter = self._ready.popleft()
            if not waiter.done():
                waiter.set_result(None)
        if not self._ready:
            self._scheduled = False  # before looking again, so that none is overlooked
        loop = self._loop()
        if self._ready and loop is not None:
            self._scheduled = True
            loop.call_soon(self._wake)


_wakeups: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, _Wakeups]
_wakeups = weakref.WeakKeyDictionary()


def _of(loop: asyncio.AbstractEventLoop) -> _Wakeups:
    found = _wakeups.get(loop)
    return _wakeups.setdefault(loop, _Wakeups(loop)) if found is None else found


def _waiter() -> tuple[asyncio.Future[None], Callable[[], None]]:
    """Something that the running task can await, and what any thread calls to wake it."""
    import asyncio

    loop = asyncio.get_running_loop()
    wakeups = _of(loop)
    waiter: asyncio.Future[None] = loop.create_future()
    return waiter, lambda: wakeups.post(waiter)


def send_soon(pump: Pump) -> None:
    """Sends what tasks of the running loop have issued, those that are ready now together."""
    import asyncio

    _of(asyncio.get_running_loop()).send_soon(pump)


@contextlib.asynccontextmanager
async def _within(deadline: Deadline | None) -> AsyncGenerator[None]:
    """Ends the block with a DiscoTimeout when its time is over."""
    import asyncio

    if deadline is None:
        yield
        return
    limit = asyncio.timeout(deadline.remaining())
    try:
        async with limit:
            yield
    except TimeoutError:
        if not limit.expired():
            raise
        raise deadline.error() from None


async def await_room(log: CommandLog) -> None:
    """Waits until many commands can be issued without waiting, if one cannot.

    Raises:
        SessionError: The session is closed or lost.
    """
    if log.is_full():
        while not log.window.has_much_room:
            waiter, wake = _waiter()
            log.window.call_when_room(wake)
            await waiter
    log.check_open()


async def await_all(
    log: CommandLog, ask: Callable[[], Sequence[RefFuture]], deadline: Deadline | None = None
) -> list[Any]:
    """Asks once there is room for it, and awaits all answers.

    Args:
        log: The session's.
        ask: Issues the questions.
        deadline: When to end the wait.

    Raises:
        DiscoTimeout: Not all have come.
        RemoteError: Something failed.
        SessionError: The session is closed or lost.
    """
    if deadline is not None:
        async with _within(deadline):
            return await await_all(log, ask)
    await await_room(log)
    asked = list(ask())
    values: list[Any] = []
    try:
        while len(values) < len(asked):
            values.append(await asked[len(values)])
    finally:
        while asked:  # in this frame, which is in the traceback, they would keep their errors
            asked.pop().cancel()
    return values


# Several, as they come ----------------------------------------------------------------------


class _Asked(Protocol):
    """What has a future: a reference."""

    def future(self, worker: int = 0) -> RefFuture: ...


class AsCompleted:
    """Futures in the order in which their values come; made by :func:`as_completed`.

    An iterator, for ``for`` as well as ``async for``.
    """

    def __init__(self, futures: Iterable[RefFuture], timeout: float | None) -> None:
        self._futures = list(dict.fromkeys(futures))
        self._timeout = timeout

    def __iter__(self) -> Iterator[RefFuture]:
        deadline = Deadline.of(self._timeout)
        done: SimpleQueue[RefFuture] = SimpleQueue()
        for future in self._futures:
            future.when_done(done.put)
        for future in self._futures:
            if done.empty():
                future.check_may_wait()
            try:
                yield done.get(timeout=None if deadline is None else deadline.remaining())
            except Empty:
                raise cast("Deadline", deadline).error() from None

    async def __aiter__(self) -> AsyncIterator[RefFuture]:
        done: deque[RefFuture] = deque()
        wake: Callable[[], None] = _nothing

        def note(future: Any) -> None:
            done.append(future)
            wake()

        for future in self._futures:
            future.when_done(note)
        deadline = Deadline.of(self._timeout)
        for _ in self._futures:
            while not done:
                waiter, wake = _waiter()
                if not done:
                    async with _within(deadline):
                        await waiter
            yield done.popleft()


def _nothing() -> None:
    """The callback while no task waits, and work that only starts a thread."""


def as_completed(
    refs: Iterable[_Asked | RefFuture], worker: int = 0, timeout: float | None = None
) -> AsCompleted:
    """Asks for the values of several references, and yields a future for each as it comes.

    ::

        for future in disco_client.as_completed(refs):
            print(future.ref, future.result())

    All questions leave now. ``async for`` does the same in a task.

    Args:
        refs: References, of one session or of several, or futures that were made before.
        worker: Whose values are asked for.
        timeout: Seconds for all of them together.

    Returns:
        An iterable of futures that are done: ``result()`` returns the value of each, or raises
        what went wrong with it, and ``ref`` is its reference. It raises
        :class:`~disco_client.DiscoTimeout` where one has not come in time.

    Examples:
        >>> arange = session.get_global_func("numpy.arange")
        >>> refs = [arange(2), arange(3)]
        >>> sorted(len(future.result()) for future in disco_client.as_completed(refs))
        [2, 3]
    """
    Deadline.of(timeout)  # says now what is wrong with it
    return AsCompleted(
        [ref if isinstance(ref, RefFuture) else ref.future(worker) for ref in refs], timeout
    )
