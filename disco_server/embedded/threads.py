"""A session whose workers are threads of this process."""

from __future__ import annotations

import contextlib
import ctypes
import itertools
import os
import secrets
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from disco_client.arguments import check_session
from disco_client.clock import monotonic
from disco_client.errors import (
    ConfigError,
    SessionClosed,
    SessionError,
    WorkerLost,
    describe_session_end,
    describe_worker_end,
    worker_lost,
)
from disco_client.forks import ForkLock
from disco_client.locks import make_lock
from disco_client.output import ThreadStreamBase, print_logs
from disco_client.outside_interrupts import OnInterrupt, check_on_interrupt
from disco_client.reentry import Condition
from disco_client.session import Session
from disco_client.threads import start_thread
from disco_client.transport.base import Bound, ClientEnd, RankPlace, Welcome
from disco_client.uncollected import frames_of
from disco_client.waiting import AUTO, read_hang_report
from disco_client.wire.batch import OutgoingBatch
from disco_client.wire.codec import EncodedReply, EnvelopeKind
from disco_client.wire.reports import Inspection, RankReport, RankState, decode_report
from disco_client.wire.values import ArrayPorter, Device
from disco_server.collectives.local import LocalWorld
from disco_server.collectives.select import default_library, open_groups
from disco_server.embedded.sender import Sender
from disco_server.modules.base import LoadRules
from disco_server.observe.printed_lines import LastLines, LineCutter, decode_lines
from disco_server.observe.rank_reports import report_cut, report_memory
from disco_server.observe.stacks import format_stack
from disco_server.rank.coroutines import close_loop
from disco_server.rank.errors import describe_end
from disco_server.rank.executor import Executor
from disco_server.rank.signals import RankEnded, absorb_raised
from disco_server.rank.worker import Worker, WorkerDevice, set_current_worker

if TYPE_CHECKING:
    from disco_client.tracing.ring_cuts import Since
    from disco_server.collectives.process_groups import ProcessGroups

__all__ = [
    "BorrowedArray",
    "BorrowedArrays",
    "RankOutput",
    "RankThread",
    "ThreadStream",
    "ThreadTransport",
    "ThreadedSession",
    "TransferBroken",
    "redirect",
    "restore",
]


# What worker threads print: cut into lines, with their rank, or left out.
#
# While a session with worker threads lives, ``sys.stdout`` and ``sys.stderr`` are
# streams that check which thread writes: what a worker prints goes to its
# session, everything else to the original stream.


_here = threading.local()


class RankOutput:
    """The output of one worker thread.

    Args:
        emit: Called with whether the lines are from standard error, and the lines.

    Attributes:
        last_lines: The last ones, for the report of a death.
    """

    def __init__(self, emit: Callable[[bool, list[str]], None]) -> None:
        self._emit = emit
        self.last_lines = LastLines()
        self._cutters = LineCutter(self.last_lines), LineCutter(self.last_lines)

    def attach(self) -> None:
        """Makes it the output of this thread."""
        _here.output = self

    def write(self, is_error: bool, text: str) -> None:
        """Takes text and passes on complete lines."""
        if text:
            self._feed(is_error, text.encode("utf-8", "backslashreplace"))

    def close(self) -> None:
        """Passes on what did not end with a line break."""
        for is_error in (False, True):
            self._feed(is_error, b"")

    def _feed(self, is_error: bool, data: bytes) -> None:
        block = self._cutters[is_error].feed(data)
        if block is None:
            return
        _here.output = None  # the sink may print them in this thread
        try:
            self._emit(is_error, decode_lines(block))
        finally:
            _here.output = self


class ThreadStream(ThreadStreamBase):
    """Replaces a standard stream; what worker threads write goes to their sessions."""

    def __init__(self, inner: Any, is_error: bool) -> None:
        self.inner = inner
        self._is_error = is_error

    def write(self, text: str) -> int:
        """Writes text where this thread's output goes."""
        output: RankOutput | None = getattr(_here, "output", None)
        if output is not None:
            output.write(self._is_error, text)
        elif self.inner is not None:
            return self.inner.write(text)
        return len(text)

    def writelines(self, lines: Iterable[str]) -> None:
        """Writes several texts."""
        for line in lines:
            self.write(line)

    def flush(self) -> None:
        """Flushes the stream below, unless this thread writes elsewhere."""
        if getattr(_here, "output", None) is None and self.inner is not None:
            self.inner.flush()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)


_lock = ForkLock()
_sessions = 0
_streams: dict[str, ThreadStream] = {}


def redirect() -> None:
    """Makes the standard streams depend on the thread; once for each session.

    Those that the program has replaced since an earlier session began do so from now on, too.
    """
    global _sessions  # noqa: PLW0603  (the standard streams are the process's too)
    with _lock.held():
        _sessions += 1
        _redirect()


def _redirect() -> None:
    for name, is_error in (("stdout", False), ("stderr", True)):
        if getattr(sys, name) is not _streams.get(name):
            _streams[name] = ThreadStream(getattr(sys, name), is_error)
            setattr(sys, name, _streams[name])


def restore() -> None:
    """Undoes :func:`redirect`; a stream that other code has replaced since stays."""
    global _sessions  # noqa: PLW0603  (as above)
    with _lock.held():
        _sessions -= 1
        if _sessions == 0:
            _restore()


def _restore() -> None:
    for name, stream in _streams.items():
        if getattr(sys, name) is stream:
            setattr(sys, name, stream.inner)
    _streams.clear()


# Host arrays passed from the client's thread to a worker's, with one copy.


Bytes = np.ndarray[Any, np.dtype[np.uint8]]

_COPIED_PER_S = 2e9
"""About how many bytes a core copies a second."""


class TransferBroken(OSError):
    """An array will not come: the client broke off, or the session ended."""

    def __init__(self, why: str = "") -> None:
        super().__init__("the upload was broken off" + (f": {why}" if why else ""))


class BorrowedArray:
    """One array in transfer: the client's own memory, until a copy was made of it.

    Either the worker requests it while the client still waits, and copies it straight to
    its destination, or the client makes a copy, which the worker keeps.
    """

    def __init__(self, data: memoryview) -> None:
        self._lock = make_lock()
        self._borrowed: Bytes | None = np.frombuffer(data, np.uint8)
        self._copy: Bytes | None = None
        self._why = ""
        self._returned = threading.Lock()
        self._returned.acquire()

    def await_return(self) -> None:
        """Returns when the client's memory is its own again."""
        borrowed = self._borrowed
        if borrowed is None:
            return
        if not self._returned.acquire(timeout=borrowed.nbytes / _COPIED_PER_S):
            with self._lock:
                if self._borrowed is not None:
                    self._copy, self._borrowed = self._borrowed.copy(), None

    def break_off(self, why: str = "") -> None:
        """Withdraws the memory without a copy; the worker gets an error."""
        with self._lock:
            self._borrowed = self._copy = None
            self._why = why

    def drop(self) -> None:
        """Returns the client's memory: no worker needs the bytes."""
        with self._lock:
            self._give_back()

    def take(self) -> Bytes:
        """Returns an array of its own with the bytes.

        Raises:
            TransferBroken: The client has broken it off.
        """
        with self._lock:
            copy, self._copy = self._copy, None
            if copy is None:
                copy = self._source().copy()
                self._give_back()
        return copy

    def copy_into(self, out: Bytes) -> None:
        """Fills an array with the bytes.

        Raises:
            TransferBroken: The client has broken it off.
            ValueError: The array is of another size.
        """
        with self._lock:
            source = self._source()
            if source.nbytes != out.nbytes:
                msg = f"expected {out.nbytes} bytes, got {source.nbytes}"
                raise ValueError(msg)
            out[...] = source
            self._give_back()

    def _source(self) -> Bytes:
        source = self._copy if self._copy is not None else self._borrowed
        if source is None:
            raise TransferBroken(self._why)
        return source

    def _give_back(self) -> None:
        if self._borrowed is not None:
            self._borrowed = None
            self._returned.release()
        self._copy = None


class BorrowedArrays:
    """The arrays in transfer to one worker, by ticket."""

    def __init__(self) -> None:
        self._lock = make_lock()
        self._changed = Condition(self._lock)
        self._arrays: dict[int, BorrowedArray] = {}
        self._unwanted: set[int] = set()
        self._closed = False

    def lend(self, ticket: int, data: memoryview) -> BorrowedArray:
        """Puts an array under its ticket."""
        array = BorrowedArray(data)
        self._put(ticket, array)
        return array

    def _put(self, ticket: int, array: BorrowedArray) -> None:
        with self._lock:
            unwanted = ticket in self._unwanted
            if unwanted:
                self._unwanted.discard(ticket)
            else:
                self._arrays[ticket] = array
                self._changed.notify_all()
        if unwanted:
            array.drop()

    def give_up(self, ticket: int, why: str) -> None:
        """Notes that an array will not come; a thread that waits for it gets the reason."""
        with self._lock:
            array = self._arrays.get(ticket)
        if array is not None:
            array.break_off(why)
            return
        array = BorrowedArray(memoryview(b""))
        array.break_off(why)  # before a worker can take it, which may wait for it
        self._put(ticket, array)

    def discard(self, ticket: int) -> None:
        """Drops an array that no command will take, now or when it arrives."""
        with self._changed:
            array = self._arrays.pop(ticket, None)
            if array is None:
                self._unwanted.add(ticket)
        if array is not None:
            array.drop()

    def get(self, ticket: int) -> BorrowedArray:
        """Waits for the array of a ticket.

        Raises:
            TransferBroken: The session ended meanwhile.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._closed or ticket in self._arrays)
            if ticket not in self._arrays:
                raise TransferBroken
            return self._arrays.pop(ticket)

    def close(self) -> None:
        """Ends every wait."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()


# One worker as a thread of the client's process.


_POLL_S = 0.001

_Given: TypeAlias = "OutgoingBatch | threading.Lock | EnvelopeKind | None"
OnDeath = Callable[[WorkerLost], None]


class _SessionEnded(RankEnded, SystemExit):
    """Raised inside a worker thread whose session is over.

    Where that is starting a thread, Python may raise it in the new one, which no code of it sees
    (:func:`~disco_client.threads.call_undisturbed`). Of all exceptions only SystemExit ends a
    thread without a word.
    """


class RankThread(ArrayPorter):
    """Runs one rank; its commands and its answers are objects.

    Args:
        worker: The rank.
        client: Where answers and output go.
        on_death: Called when the thread ended by itself, which ends the session.
        wake_peers: Lets ranks that wait for each other look at what is interrupted.

    Attributes:
        borrowed: The arrays that it takes over from the program.
        thread: The rank's own.
    """

    def __init__(
        self,
        worker: Worker,
        client: ClientEnd,
        on_death: OnDeath,
        wake_peers: Callable[[], object],
    ) -> None:
        self._worker = worker
        self._wake_peers = wake_peers
        self._client = client
        self._on_death = on_death
        self._inbox: deque[_Given] = deque()
        self._arrivals: SimpleQueue[None] = SimpleQueue()
        self._output = RankOutput(self._emit)
        self._ending = self._raised = self._left = False
        self.borrowed = BorrowedArrays()
        self.thread = threading.Thread(
            target=self._run, name=f"{worker.session_name}-rank-{worker.worker_id}", daemon=True
        )

    def start(self) -> None:
        """Begins to execute.

        Raises:
            ThreadRefused: The system starts no thread for it.
        """
        start_thread(self.thread)

    def give(self, given: _Given) -> None:
        """Adds commands to execute, or what to do after those before.

        Args:
            given: Commands; a lock to free; EnvelopeKind.OPEN_CCL, to open the process groups
                because a peer did; or None, which lets the rank leave.
        """
        self._inbox.append(given)
        self._arrivals.put(None)

    # The rank's own thread ----------------------------------------------------------

    def _run(self) -> None:
        try:
            self._work()
        finally:
            self._left = True
            if self._raised:
                absorb_raised(_SessionEnded)

    def _work(self) -> None:
        set_current_worker(self._worker)
        self._output.attach()
        try:
            self._serve()
        except _SessionEnded:
            pass
        except BaseException as error:  # noqa: BLE001  (whatever a called function raised)
            self._die(error)
        finally:
            self._leave()

    def _leave(self) -> None:
        try:
            close_loop()
        finally:
            self._output.close()
            self._worker.close()
            set_current_worker(None)
            self.wake_waiters()

    def _serve(self) -> None:
        executor = Executor(self._worker, self)
        self._worker.guard.wake = self._look_at_interrupts
        while not self._ending and not executor.stopped:
            given = self._next()
            if given is None:
                return
            if isinstance(given, OutgoingBatch):
                if given.last_seq > executor.seq:  # else its delivery was repeated
                    executor.run_decoded(given)
            elif given is EnvelopeKind.OPEN_CCL:
                with contextlib.suppress(Exception):  # the command that needs it reports the error
                    self._worker.meet()
            elif not isinstance(given, EnvelopeKind):
                executor.settle()
                self._client.acknowledge(self._worker.worker_id, executor.seq)
                given.release()

    def _next(self) -> _Given:
        while True:
            with contextlib.suppress(IndexError):
                return self._inbox.popleft()
            # Peers may wait for this rank's refusal, which needs calls of `poll`.
            self._await_arrival(_POLL_S if self._worker.poll() else None)

    def _await_arrival(self, seconds: float | None) -> None:
        """Waits for so long, None without an end, for what is given, and takes nothing.

        What another thread raises in this one comes here, when the wait is over.
        """
        try:
            self._arrivals.get(timeout=seconds)
        except Empty:
            pass
        except BaseException as error:  # noqa: BLE001  (whatever code of the session raises)
            self._worker.guard.outside(error)

    def _die(self, error: BaseException) -> None:
        self._output.close()
        worker, name = self._worker.worker_id, self._worker.session_name
        status, how = describe_end(error, self._worker.flight)
        self._on_death(
            worker_lost(
                describe_worker_end(worker, how, name),
                worker=worker,
                node=self._worker.node,
                exit_status=status,
                output=self._output.last_lines,
            )
        )

    def _emit(self, is_error: bool, lines: list[str]) -> None:
        self._client.printed(self._worker.worker_id, self._worker.node, is_error, lines)

    def interrupt(self, until: int, ends: int) -> None:
        """Lets the rank leave commands out, and end the one that runs; for another thread."""
        ident = self.thread.ident
        if ident is not None and self.thread.is_alive():
            self._worker.guard.interrupt_thread(ident, until, ends)

    def cancel(self, commands: Sequence[tuple[int, int]]) -> None:
        """Lets the rank end commands, or leave them out; for another thread."""
        self._worker.flight.cancel(commands)
        self.interrupt(0, 0)  # to look there

    def _look_at_interrupts(self) -> None:
        self.interrupt(0, 0)
        self._wake_peers()

    def report(self, *, stacks: bool, flights: bool) -> RankReport:
        """Reports what the rank does; for any thread."""
        worker, ident, stack, note = self._worker, self.thread.ident, "", ""
        alive = self.thread.is_alive()
        if stacks and alive:
            stack = format_stack(frames_of(ident or 0))
        elif stacks:
            note = "the thread has ended"
        report = report_memory(
            worker.worker_id, worker.node, os.getpid(), *worker.flight.copy(), flights=flights
        )
        state = RankState.RUNNING if alive else RankState.ENDED
        return replace(decode_report(report), state=state, stack=stack, note=note)

    def cut(self, since: Sequence[Since]) -> RankReport:
        """Returns what is new in its records; for any thread."""
        worker, ended = self._worker, not self.thread.is_alive()
        return decode_report(
            report_cut(
                worker.worker_id, worker.node, os.getpid(), worker.flight.read, since, ended=ended
            )
        )

    def wake_waiters(self) -> None:
        """Frees the locks that no answer will free; the rank has ended, or is about to."""
        with contextlib.suppress(IndexError):
            while True:
                given = self._inbox.popleft()
                if given is not None and not isinstance(given, (OutgoingBatch, EnvelopeKind)):
                    given.release()

    # The executor's sink --------------------------------------------------------------

    @property
    def porter(self) -> ArrayPorter:
        """Carries the arrays that are too large for a command."""
        return self

    @property
    def live(self) -> Callable[[int, Any], None]:
        """Answers with objects."""
        return self._answer

    def _answer(self, seq: int, value: Any) -> None:
        self._client.live(self._worker.worker_id, seq, value)

    def reply(self, raw: bytes, ack: int) -> None:  # noqa: ARG002  (it is in there)
        """Passes on what is encoded even here: acknowledgements and failures."""
        self._client.reply(self._worker.worker_id, EncodedReply.FromString(raw))

    def collect(self, ticket: int, dtype: np.dtype[Any], shape: Sequence[int]) -> Any:
        """Waits for an uploaded array and returns it, an array of its own.

        Raises:
            OSError: It will not come.
        """
        return self.borrowed.get(ticket).take().view(dtype).reshape(tuple(shape))

    def collect_into(self, ticket: int, out: np.ndarray[Any, Any]) -> None:
        """Waits for an uploaded array and copies it to its destination.

        Raises:
            OSError: It will not come.
            ValueError: It is of another size.
        """
        self.borrowed.get(ticket).copy_into(out.reshape(-1).view(np.uint8))

    def discard(self, ticket: int) -> None:
        """Drops an uploaded array that no command will collect."""
        self.borrowed.discard(ticket)

    # The end ----------------------------------------------------------------------------

    def join(self, timeout: float) -> bool:
        """Waits until the rank has left; whether it has."""
        if self.thread.ident is None or self.thread is threading.current_thread():
            return True
        self.thread.join(max(timeout, 0.0))
        return not self.thread.is_alive()

    def end(self) -> None:
        """Makes the rank leave as soon as it runs Python code again."""
        self._ending = True
        self.borrowed.close()
        self.give(None)
        ident = self.thread.ident
        if ident is None or ident == threading.get_ident() or not self.thread.is_alive():
            return
        thread, raised = ctypes.c_ulong(ident), ctypes.py_object(_SessionEnded)
        # No other thread runs between these lines, as in `CallGuard.interrupt_thread`.
        if not self._left:
            self._raised = True
            ctypes.pythonapi.PyThreadState_SetAsyncExc(thread, raised)
            between = self._worker.guard.between
            if between is not None:
                between()  # a loop that waits does not notice it otherwise


NODE = "local"
_END_GRACE_S = 0.5
_numbers = itertools.count(1)


class ThreadedSession(Session):
    """A session whose workers are threads of this process; see :class:`Session`.

    Arrays are not sent: a host array costs one copy, and so does one that is fetched. What
    could not travel is fetched as the very object that the worker holds, be it a function or
    anything else, and ``debug_get_from_remote`` returns that of everything, of an array its
    very memory. Collectives move data in memory (``local``).

    Args:
        num_workers: How many workers.
        num_groups: Into how many equal, consecutive groups they are divided.
        ccl: The collective library: ``"local"``, which serves for ``"mpi"`` as well.
        logs: Whether what workers print is written to standard error, each line
            with its rank.
        hang_report: After how many seconds a call that waits prints what the ranks do
            to standard error, once, and again if they do something else; 0 or None for
            never. The default is what ``DISCO_HANG_REPORT_S`` says, else 30.
        on_interrupt: What Ctrl-C in a call that waits ends: ``"wait"`` the wait, and the second
            time within a second also what the session executes; ``"session"`` both at once, as
            one wants of a notebook's cell. See :meth:`Session.interrupt`.

    Raises:
        ConfigError: An argument is wrong.
        SessionError: The system starts too few threads for it.

    Examples:
        >>> with disco_client.ThreadedSession(2) as threads:
        ...     print(threads.allreduce(threads.broadcast(np.ones(2))).numpy())
        [2. 2.]
    """

    def __init__(
        self,
        num_workers: int,
        num_groups: int = 1,
        *,
        ccl: str | None = None,
        logs: bool = True,
        hang_report: float | None = AUTO,
        on_interrupt: OnInterrupt = "wait",
    ) -> None:
        check_session(num_workers, num_groups, ccl, 1.0)
        read_hang_report(hang_report)
        check_on_interrupt(on_interrupt)
        if ccl not in (None, "local", "mpi"):
            msg = (
                f"the collective library {ccl!r} cannot be chosen here: leave ccl out or use "
                "'local'; for GPUs call session.init_ccl('nccl', 0, 1, ...) with one for each "
                "worker"
            )
            raise ConfigError(msg)
        transport = ThreadTransport(num_workers, num_groups, ccl or "")
        super().__init__(
            transport,
            log_sink=print_logs if logs else None,
            hang_report=hang_report,
            on_interrupt=on_interrupt,
        )


class ThreadTransport(Bound):
    """Carries a session to threads of this process."""

    def __init__(self, num_workers: int, num_groups: int, ccl: str) -> None:
        name = f"threads-{next(_numbers)}"
        places = tuple(RankPlace(w, NODE, os.getpid(), "cpu") for w in range(num_workers))
        self._welcome = Welcome(secrets.randbits(64), name, places, num_groups=num_groups)
        self._num_groups = num_groups
        self._ccl = ccl
        self._world = LocalWorld(num_workers, num_groups)
        self._ranks: list[RankThread] = []
        self._threads: frozenset[threading.Thread] = frozenset()
        self._client: ClientEnd | None = None
        self._sender: Sender | None = None
        self._end_lock = make_lock()
        self._over = False
        self._error: SessionError | None = None

    @property
    def welcome(self) -> Welcome:
        """Which session this is, and where its workers run."""
        return self._welcome

    sends_lone = True
    """No sender's thread is woken for a command that comes alone."""

    @property
    def entered(self) -> bool:
        """Whether the calling thread is in the middle of handing commands to workers, or is one."""
        if threading.current_thread() in self._threads:
            return True
        return self._sender is not None and self._sender.entered()

    @property
    def pump(self) -> ThreadTransport:
        """Lets waiting threads send by themselves."""
        return self

    @property
    def progress(self) -> ThreadTransport:
        """The pump, which can ask workers how far they are."""
        return self

    @property
    def draining(self) -> tuple[str, ...]:
        """None: its only node is this process."""
        return ()

    def start(self, client: ClientEnd) -> None:
        """Begins to execute what is issued."""
        self._client = client
        count = len(self._welcome.ranks)
        workers = [self._worker(w, count) for w in range(count)]
        wake = self._world.wake
        self._ranks = [RankThread(worker, client, self._rank_died, wake) for worker in workers]
        self._threads = frozenset(rank.thread for rank in self._ranks)
        redirect()
        for rank in self._ranks:
            rank.start()
        self._sender = Sender(client, self._deliver)

    def _worker(self, worker_id: int, count: int) -> Worker:
        return Worker(
            worker_id,
            count,
            self._num_groups,
            open_groups=self._open_groups,
            ccl=self._ccl,
            ordinary_ccl=default_library(self._world),
            node=NODE,
            place=WorkerDevice(
                Device("cpu", 0),
                local_rank=worker_id,
                end_session=lambda why: self._library_lost(worker_id, why),
            ),
            session_name=self._welcome.name,
            allow_modules=("*",),
            allow_read=("*",),
            allow_save=("*",),
            loading=LoadRules(("*",), in_program=True),
        )

    def _open_groups(self, worker: Worker, ccl: str) -> ProcessGroups:
        # A rank that failed before its first collective would not open it by itself.
        for worker_id, rank in enumerate(self._ranks):
            if worker_id != worker.worker_id:
                rank.give(EnvelopeKind.OPEN_CCL)
        return open_groups(
            ccl,
            worker_id=worker.worker_id,
            num_workers=worker.num_workers,
            num_groups=worker.num_groups,
            world=self._world,
            loss=worker.loss,
        )

    def _deliver(self, batch: OutgoingBatch, asked: int | None) -> None:
        first = asked or 0
        for rank in (*self._ranks[first:], *self._ranks[:first]):
            rank.give(batch)

    # Waiting ----------------------------------------------------------------------------

    def flush(self) -> None:
        """Hands everything that was issued to the workers."""
        if self._sender is not None:
            self._sender.flush()

    send = flush  # workers answer in their own threads

    def ask(self, worker: int, waiter: threading.Lock) -> None:
        """Sends what was issued; the worker frees a lock when it has executed all of it."""
        if self._sender is not None:
            self._sender.flush(worker)
        self._ranks[worker].give(waiter)
        if self._over:
            self._ranks[worker].wake_waiters()

    def wait(self, waiter: threading.Lock, seconds: float, ask: int | None = None) -> bool:
        """Sends what was issued, and waits up to ``seconds`` for a lock to be free."""
        if ask is None:
            self.send()
        else:
            self.ask(ask, waiter)
        return waiter.acquire(timeout=seconds)

    def interrupt(self, until: int, workers: Sequence[int], *, force: bool = False) -> bool:
        """Interrupts commands; nothing ends a thread by force."""
        if not force:
            for worker, rank in enumerate(self._ranks):
                rank.interrupt(until, until if worker in workers else 0)
            self._world.wake()
        return not force

    def cancel(self, commands: Sequence[tuple[int, int]]) -> None:
        """Cancels commands."""
        for rank in self._ranks:
            rank.cancel(commands)
        self._world.wake()

    def check_alive(self) -> None:
        """Raises the session's error, once it has one."""
        if self._error is not None:
            raise self._error

    def inspect(
        self, *, stacks: bool, flights: bool, since: Sequence[Since] | None = None
    ) -> Inspection:
        """Reports what the workers do, or did before they ended."""
        if since is None:
            reports = [rank.report(stacks=stacks, flights=flights) for rank in self._ranks]
        else:
            reports = [rank.cut(since) for rank in self._ranks]
        welcome = self._welcome
        return Inspection(welcome.session, welcome.name, len(welcome.ranks), tuple(reports))

    # Arrays -----------------------------------------------------------------------------

    def upload(self, ticket: int, worker: int, data: memoryview) -> None:
        """Passes an array's bytes to a worker; returns when they may be changed."""
        array = self._ranks[worker].borrowed.lend(ticket, data)
        try:
            self.send()
            array.await_return()
        except BaseException:
            array.break_off()  # the worker may have taken it, so that giving up finds nothing
            raise

    def give_up(self, uploads: Sequence[tuple[int, int]], why: str = "") -> None:
        """Announces that arrays, by ticket and worker, will not come."""
        for ticket, worker in uploads:
            self._ranks[worker].borrowed.give_up(ticket, why)

    def decline(self, downloads: Sequence[tuple[int, int]]) -> None:
        """Does nothing: no array is ever offered."""

    def download(self, ticket: int, worker: int, into: memoryview) -> None:
        """Refuses: answers are objects here, so no array is ever offered."""
        msg = f"worker {worker} offers no array {ticket} of {len(into)} bytes"
        raise SessionError(msg)

    # The end ------------------------------------------------------------------------------

    def _rank_died(self, error: WorkerLost) -> None:
        self._finish(error)

    def _library_lost(self, worker: int, why: str) -> None:
        """Ends the session: other threads may be in a call that never returns."""
        text = describe_session_end(why, self._welcome.name)
        self._finish(worker_lost(text, worker=worker, node=NODE, exit_status=1, output=[]))

    def close(self, timeout: float) -> None:
        """Lets the workers execute what is left, for a moment, then ends them; idempotent."""
        del timeout  # threads that do not leave at once cannot be waited for
        if self._sender is not None and not self._over:
            self._sender.join(_END_GRACE_S)
        deadline = monotonic() + _END_GRACE_S
        for rank in self._ranks:
            rank.give(None)
        for rank in self._ranks:
            rank.join(deadline - monotonic())
        self._finish(SessionClosed(f"session {self._welcome.name!r} was shut down"))
        deadline = monotonic() + _END_GRACE_S
        for rank in self._ranks:
            rank.join(deadline - monotonic())

    def _finish(self, error: SessionError) -> None:
        with self._end_lock:
            if self._over:
                return
            self._over = True
        self._error = error
        if self._client is not None:
            self._client.lost(error)
            restore()
        self._world.close()
        for rank in self._ranks:
            rank.end()
