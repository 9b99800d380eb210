"""Enters a thread between any two bytecodes, and programs that know what must have happened.

A program of :class:`Program` does numbered steps on a session, and notes what it has begun and
what has returned. Something interrupts it meanwhile: :class:`Raising` by exceptions, those of
signal handlers or asynchronous ones; :class:`Handling` by signal handlers that use the session
themselves; :class:`Finalizing` by finalizers that the garbage collector runs. Then the workers'
logs must be what the program's notes say.
"""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import gc
import itertools
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Self

import numpy as np

import disco_client as di
from disco_client import outside_interrupts
from disco_client.locks import unordered
from disco_server.rank.signals import CommandInterrupted

__all__ = [
    "Finalizing",
    "Handling",
    "Hang",
    "Interruption",
    "OutOfTime",
    "Program",
    "Raising",
    "Stopped",
    "in_thread",
    "watched",
]

LARGE = 1 << 15
"""Elements of an array that travels beside the commands."""

_SIGNALS = (signal.SIGALRM, signal.SIGUSR1, signal.SIGUSR2, signal.SIGTERM, signal.SIGINT)
_WATCH = signal.SIGVTALRM
_AGAIN_S = 5
_LOOK_S = 0.001
_SWITCH_S = 1e-4
"""How long a thread of Python runs before another one may; the others interrupt it at any place."""

_BROKEN_OFF = "the upload was broken off"


class Interruption(Exception):
    """What a signal handler or another thread raises in the program."""


class OutOfTime(Interruption, TimeoutError):
    """The same, of the class that programs with a time limit raise, and sockets do as well."""


class Stopped(Interruption, RuntimeError):
    """The same, of a class that Python raises where the system starts no thread."""


class Hang(AssertionError):
    """A test is not over in time, and probably never would be."""


# Around a test ----------------------------------------------------------------------------


@contextlib.contextmanager
def watched(seconds: int = 30) -> Iterator[list[Any]]:
    """Puts back what interruptions change, and raises :class:`Hang` where a block takes too long.

    Python only prints what is raised in a finalizer. Here it is collected in the list, and is an
    error unless it is an interruption or a refusal to wait.

    Args:
        seconds: After so many whole seconds the stacks of all threads are written, and the main
            thread is interrupted. Only time in which other threads can run counts: the system may
            let the process stand still, and one collection of garbage may take seconds.
    """
    handlers = {number: signal.getsignal(number) for number in (*_SIGNALS, _WATCH)}
    thresholds, hook, switching = gc.get_threshold(), sys.unraisablehook, sys.getswitchinterval()
    ignored: list[Any] = []
    over = threading.Event()

    def collect(unraisable: Any) -> None:
        # Without the rest of it, which would keep alive what is being finalized.
        ignored.append(unraisable.exc_value)

    def stop(_number: int, _frame: object) -> None:
        if not over.is_set():
            raise Hang(f"not over after {seconds} s; the stacks are on standard error")

    watcher = threading.Thread(target=_watch, args=(over, seconds), daemon=True)
    signal.signal(_WATCH, stop)
    sys.unraisablehook = collect
    sys.setswitchinterval(_SWITCH_S)
    watcher.start()
    # Without Python, because a finalizer may hang in the thread that watches, too.
    faulthandler.dump_traceback_later(3 * seconds, exit=True, file=_stderr())
    try:
        yield ignored
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        gc.set_threshold(*thresholds)
        gc.collect()  # what interruptions have left is this block's, and not the next one's
        over.set()
        watcher.join()
        faulthandler.cancel_dump_traceback_later()
        for number, handler in handlers.items():
            signal.signal(number, handler)
        sys.unraisablehook = hook
        sys.setswitchinterval(switching)
    wrong = [error for error in ignored if not _is_harmless(error)]
    if wrong:
        raise ExceptionGroup("raised in finalizers and callbacks", [*wrong])


def _watch(over: threading.Event, seconds: int) -> None:
    """Interrupts the main thread after so many looks, and again now and then until it is over."""
    main = threading.main_thread().ident
    assert main is not None
    looks = 0
    while not over.wait(1.0):
        looks += 1
        if looks >= seconds and (looks - seconds) % _AGAIN_S == 0:
            faulthandler.dump_traceback(file=_stderr())
            signal.pthread_kill(main, _WATCH)


def _stderr() -> Any:
    return sys.__stderr__ or sys.stderr


def _is_harmless(error: BaseException) -> bool:
    """Whether an error in a finalizer is an interruption, or tells of what one has left to it."""
    kinds = (Interruption, KeyboardInterrupt, CommandInterrupted, di.Reentered, ResourceWarning)
    return isinstance(error, kinds)


def in_thread(work: Callable[[], object]) -> threading.Thread:
    """Starts something in another thread; its ``join`` raises what that has raised."""
    return _Thread(work)


class _Thread(threading.Thread):
    def __init__(self, work: Callable[[], object]) -> None:
        super().__init__(daemon=True)
        self._work = work
        self._error: BaseException | None = None
        self.start()

    def run(self) -> None:
        try:
            self._work()
        except BaseException as error:  # noqa: BLE001  (raised by join)
            self._error = error

    def join(self, timeout: float | None = None) -> None:
        super().join(timeout)
        error, self._error = self._error, None
        if error is not None:
            raise error


# The program ------------------------------------------------------------------------------


class Program:
    """Does numbered steps on a session; each notes its number on all workers.

    Several threads may do steps of one program. Each thread has a log of its own, in which its
    numbers ascend.

    Attributes:
        steps: What it can do, by name.
        done: How many calls have returned.
        wrong: What was not as it should be, also where nobody can be told of it.
        refused: How many waits inside an issue were refused.
        served: How many values came inside another call.
        broken_off: How many waits have raised the error of an upload that was interrupted.
    """

    _keys = itertools.count()

    def __init__(self, session: di.Session, seed: int = 0) -> None:
        self.session = session
        self.random = random.Random(seed)
        self.wrong: list[str] = []
        self.refused = self.served = self.broken_off = self._uploading = 0
        self._key = f"{os.getpid()}-{next(self._keys)}"
        self._numbers = itertools.count(1)
        self._begun: defaultdict[int, list[int]] = defaultdict(list)
        self._done: defaultdict[int, list[int]] = defaultdict(list)
        # Not more, as each is fetched in the end.
        self._kept: deque[tuple[Any, int]] = deque(maxlen=500)
        self._note = session.get_global_func("reentry.note")
        self._workers = session.num_workers
        with session.capture("noted") as self._captured:
            self._captured.output(
                self._note(self._captured.input("log"), self._captured.input("number"))
            )
        session.sync_all()

    @property
    def done(self) -> int:
        return sum(map(len, self._done.values()))

    def step(self, names: Sequence[str] = ()) -> None:
        """Does one step by chance, of some or of all."""
        with self._settled():
            getattr(self, self.random.choice(names or self.STEPS))()

    @contextlib.contextmanager
    def _settled(self) -> Iterator[None]:
        """Takes the error of an upload that was interrupted: its command fails, whoever waits."""
        try:
            yield
        except di.RemoteError as error:
            if not self._uploading or _BROKEN_OFF not in str(error):
                raise
            self.broken_off += 1

    def same(self, got: object, want: object) -> None:
        """Makes sure of a value."""
        # Not np.array_equal, which takes whatever is raised in it for a difference.
        shapes, equal = (np.shape(got), np.shape(want)), np.asarray(got) == np.asarray(want)
        if shapes[0] != shapes[1] or not np.all(equal):
            self.wrong.append(f"got {got!r}, expected {want!r}")
            raise AssertionError(self.wrong[-1])

    def number(self) -> int:
        """The number of a call that this thread is about to make."""
        number = next(self._numbers)
        self._begun[threading.get_ident()].append(number)
        return number

    def noted(self, number: int) -> None:
        """A call of this thread has returned."""
        self._done[threading.get_ident()].append(number)

    def log(self, thread: int | None = None) -> str:
        """The name of a thread's log."""
        return f"{self._key}-{threading.get_ident() if thread is None else thread}"

    # Steps that only issue

    def call(self) -> tuple[di.DRef, int]:
        """A call."""
        number = self.number()
        ref = self._note(self.log(), number)
        self.noted(number)
        return ref, number

    def call_kept(self) -> None:
        """A call whose value is looked at in the end."""
        self._kept.append(self.call())

    def drop(self) -> None:
        """Values that are not looked at any more."""
        if self._kept:
            del self._kept[self.random.randrange(len(self._kept))]

    def small(self) -> None:
        """An array that travels in a command."""
        number = self.number()
        self._kept.append((self.session.copy_to_worker_0(np.full(3, number)), number))

    def ask(self) -> None:
        """A future."""
        ref, number = self.call()
        self._kept.append((ref.future(self._worker()), number))

    def run(self) -> None:
        """A run of a program that was captured before."""
        number = self.number()
        self._captured(self.log(), number)
        self.noted(number)

    # Steps that wait

    def fetch(self) -> None:
        """A value."""
        ref, number = self.call()
        self.same(ref.get(self._worker()), number)

    def fetch_all(self) -> None:
        """The values of all workers."""
        ref, number = self.call()
        self.same(ref.get_all(), [number] * self._workers)

    def await_future(self) -> None:
        """The value of a future."""
        ref, number = self.call()
        self.same(ref.future(self._worker()).result(), number)

    def sync(self) -> None:
        """All workers."""
        self.call()
        self.session.sync_all()

    def sync_one(self) -> None:
        """One worker."""
        self.call()
        self.session.sync_worker(self._worker())

    def large(self) -> None:
        """An array that travels beside the commands, to all workers."""
        number = self.number()
        self._uploading += 1  # stays so where it is interrupted
        ref = self.session.broadcast(np.full(LARGE, number))
        self._uploading -= 1
        if number % 4 == 0:
            self._kept.append((ref, number))

    def copy(self) -> None:
        """Arrays of the program, to a worker and from it."""
        number, worker = self.number(), self._worker()
        ref = self.session.empty((4,), "int64")
        ref.debug_copy_from(worker, np.full(4, number))
        self.same(ref.numpy(worker), np.full(4, number))
        size = self.random.choice((4, LARGE))
        host = np.zeros(size, "int64")
        self._uploading += 1
        sent = self.session.copy_to_worker_0(np.full(size, number))
        self._uploading -= 1
        self.session.copy_from_worker_0(host, sent)
        self.same(host, np.full(size, number))

    def capture(self) -> None:
        """A program that is captured now."""
        number = self.number()
        with self.session.capture() as captured:
            captured.output(self._note(self.log(), captured.input("number")))
        ref = captured(number)
        self.noted(number)
        self.same(ref.get(self._worker()), number)

    def blocks(self) -> None:
        """Calls in a block that sends them together, and in one that has its errors."""
        with self.session.batch():
            first, one = self.call()
            second, other = self.call()
        with self.session.scope():
            self.same((first.get(), second.get()), (one, other))

    def tensor(self) -> None:
        """A distributed tensor."""
        number = self.number()
        tensor = self.session.distribute(np.full((4, 2), float(number)), None, "S[0]")
        self.same((tensor + 1).sum(axis=0).numpy(), [4.0 * (number + 1)] * 2)

    def _worker(self) -> int:
        return self.random.randrange(self._workers)

    ISSUES = ("call", "call_kept", "call_kept", "drop", "small", "ask", "run")
    INSIDE = tuple(name for name in ISSUES if name != "ask")
    WAITS = ("fetch", "fetch_all", "await_future", "sync", "sync_one", "large", "copy", "tensor")
    BLOCKS = ("capture", "blocks")
    STEPS = ISSUES + WAITS + BLOCKS
    BESIDE = ISSUES + WAITS + ("blocks",)
    """What is done while a handler uses the session, whose calls a capture would take as well."""

    # Inside other calls

    def issue_inside(self) -> None:
        """Issues something that has no answer."""
        self.step(self.INSIDE)

    def wait_inside(self) -> bool:
        """Waits for something; whether that was served, and not refused."""
        return self.try_inside(self.WAITS)

    def try_inside(self, names: Sequence[str]) -> bool:
        """Does one of some steps; whether that was served, and not refused."""
        try:
            self.step(names)
        except di.Reentered:
            self.refused += 1
            return False
        self.served += 1
        return True

    # What must have happened

    def check(self) -> None:
        """Compares the notes of the workers with those of this program."""
        assert self.wrong == []
        for _ in range(self._uploading):
            with self._settled():
                self.session.sync_all()
        self.session.sync_all()
        for kept, number in tuple(self._kept):
            with self._settled():
                # A reference of worker 0, or the future of a value of any worker.
                got = kept.result() if isinstance(kept, di.RefFuture) else kept.get()
                assert np.all(got == number), (got, number)
        self._kept.clear()
        reader = self.session.get_global_func("reentry.noted")
        for thread in list(self._begun):
            logs = reader(self.log(thread)).get_all()
            self._compare(self._begun[thread], self._done[thread], logs)

    def _compare(self, begun: list[int], done: list[int], logs: list[list[int]]) -> None:
        """Compares the logs that all workers have of one thread with its notes."""
        for worker, log in enumerate(logs):
            others = sorted(set(log) ^ set(logs[0]))
            assert log == logs[0], f"workers 0 and {worker} differ in the calls {others}"
            assert log == sorted(set(log)), f"executed twice, or not in their order: {log}"
            assert set(log) <= set(begun), "calls that were never made were executed"
            lost = sorted(set(done) - set(log))
            assert not lost, f"the calls {lost} had returned and were not executed"


# What interrupts --------------------------------------------------------------------------


class Raising:
    """Interrupts steps of this thread by exceptions, one at a time; a context manager.

    Args:
        way: ``"timer"``, ``"thread"`` or ``"child"``: who sends the signal whose handler raises.
            ``"async"``: another thread raises asynchronously.
        number: The signal.
        interval: Seconds between two.
        kind: What is raised.

    Attributes:
        caught: How many exceptions have come out of a step.
    """

    def __init__(
        self,
        way: str,
        number: int = signal.SIGALRM,
        interval: float = 0.002,
        seed: int = 0,
        kind: type[BaseException] = Interruption,
    ) -> None:
        self.caught = 0
        self._kind = kind
        self._number, self._interval, self._way = number, interval, way
        self._random = random.Random(seed)
        self._armed = self._busy = False
        self._sender: Any = contextlib.nullcontext()

    def __enter__(self) -> Self:
        # Ctrl-C twice within a second in waits interrupts the session, which is another matter.
        self._twice_s, outside_interrupts._TWICE_S = outside_interrupts._TWICE_S, 0.0
        self._ident = threading.get_ident()
        if self._way == "async":
            self._sender = _Repeated(self._inject, self._interval)
        else:
            signal.signal(self._number, self._raise)
            self._sender = sending(self._way, self._number, self._interval)
        self._sender.__enter__()
        return self

    def __exit__(self, *_error: object) -> None:
        self._sender.__exit__(None, None, None)
        outside_interrupts._TWICE_S = self._twice_s

    def during(self, step: Callable[[], object]) -> bool:
        """Does a step, which may be interrupted; whether it was."""
        try:
            try:
                self._armed = True
                step()
            finally:
                self._disarm()
        except self._kind:
            self.caught += 1
            return True
        return False

    def _disarm(self) -> None:
        # No call here lets other threads run: they would interrupt this one here, and not the step.
        self._armed = False
        while self._busy:
            pass
        for _ in range(3):  # an asynchronous exception that is set is raised here
            pass

    def _chosen(self) -> bool:
        """Whether this one raises: every other one by chance, so that long steps end as well."""
        if not self._armed or self._random.random() < 0.5:
            return False
        self._armed = False
        return True

    def _raise(self, _number: int, _frame: object) -> None:
        if self._chosen():
            raise self._kind

    def _inject(self) -> None:
        self._busy = True
        if self._chosen():
            kind = ctypes.py_object(self._kind)
            ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(self._ident), kind)
        self._busy = False


class Handling:
    """Calls something in a signal handler, again and again; a context manager.

    Args:
        act: What is called, never inside itself.
        way, number, interval: As for :class:`Raising`.

    Attributes:
        came: How often it was called.
    """

    def __init__(
        self,
        act: Callable[[], object],
        way: str = "timer",
        number: int = signal.SIGALRM,
        interval: float = 0.002,
    ) -> None:
        self.came = 0
        self._act, self._inside = act, False
        self._number = number
        self._sender = (way, number, interval)

    def __enter__(self) -> Self:
        signal.signal(self._number, self._handle)
        self._sending = sending(*self._sender)
        self._sending.__enter__()
        return self

    def __exit__(self, *_error: object) -> None:
        self._sending.__exit__(None, None, None)
        signal.signal(self._number, signal.SIG_IGN)

    def _handle(self, _number: int, _frame: object) -> None:
        if self._inside:
            return
        self._inside = True
        try:
            self.came += 1
            with unordered():
                self._act()
        finally:
            self._inside = False


class Finalizing:
    """Lets the garbage collector run finalizers nearly wherever something is allocated.

    Each finalizer leaves another object to finalize, and calls something now and then. The block
    is over once no other thread is in such a call.

    Args:
        act: What is called, in whatever thread collects garbage.
        often: One finalizer of how many calls it.

    Attributes:
        came: How often it was called.
    """

    def __init__(self, act: Callable[[], object], often: int = 50, seed: int = 0) -> None:
        self.came = 0
        self._act, self._often = act, often
        self._random = random.Random(seed)
        self._active = False
        self._running: list[int] = []

    def __enter__(self) -> Self:
        self._thresholds = gc.get_threshold()
        gc.collect()
        self._active = True
        _Garbage(self._finalize)
        gc.set_threshold(1)
        return self

    def __exit__(self, *_error: object) -> None:
        self._active = False
        gc.set_threshold(*self._thresholds)
        # What other threads call may need what is closed after this block.
        while any(thread != threading.get_ident() for thread in tuple(self._running)):
            time.sleep(_LOOK_S)
        gc.collect()

    def _finalize(self) -> None:
        ident = threading.get_ident()
        # Not inside of another one, which may have taken the number before.
        outermost = ident not in self._running
        self._running.append(ident)  # before the look whether it is active: the end looks after it
        try:
            if self._active and outermost and self._random.randrange(self._often) == 0:
                self.came += 1
                self._act()
        finally:
            self._running.remove(ident)
            if self._active:
                _Garbage(self._finalize)


class _Garbage:
    """An object in a cycle, which nothing else refers to."""

    def __init__(self, finalize: Callable[[], None]) -> None:
        self.cycle = self
        self.finalize = finalize

    def __del__(self) -> None:
        self.finalize()


class _Repeated:
    """Does something again and again in a thread of its own; a context manager."""

    def __init__(self, act: Callable[[], object], interval: float) -> None:
        self._act, self._interval = act, interval
        self._over = threading.Event()

    def __enter__(self) -> None:
        self._thread = in_thread(self._run)

    def __exit__(self, *_error: object) -> None:
        self._over.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._over.wait(self._interval):
            self._act()


@contextlib.contextmanager
def sending(way: str, number: int, interval: float) -> Iterator[None]:
    """Sends a signal to this process again and again, which must have a handler for it.

    Args:
        way: The ``"timer"`` of the process, which has one signal; a ``"thread"``; or a ``"child"``.
        number: The signal.
        interval: Seconds between two.
    """
    me = os.getpid()
    if way == "timer":
        assert number == signal.SIGALRM
        signal.setitimer(signal.ITIMER_REAL, interval, interval)
        try:
            yield
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
    elif way == "thread":
        with _Repeated(lambda: os.kill(me, number), interval):
            yield
    else:
        script = f"while kill -s {number} {me}; do sleep {interval}; done"
        child = subprocess.Popen(["sh", "-c", script], stderr=subprocess.DEVNULL)
        try:
            yield
        finally:
            child.kill()
            child.wait()
