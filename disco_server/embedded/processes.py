"""A session whose workers are child processes of this one."""

from __future__ import annotations

import contextlib
import errno
import importlib.util
import itertools
import os
import secrets
import select
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from google.protobuf.message import DecodeError

from disco_client.arguments import check_session
from disco_client.arrays.shared_memory import MappedMemory, SharedPool
from disco_client.clock import monotonic
from disco_client.descriptors import Descriptor, describe_refusal
from disco_client.errors import (
    ConfigError,
    SessionClosed,
    SessionError,
    SessionLost,
    describe_exit,
    describe_worker_end,
    worker_lost,
)
from disco_client.locks import make_lock
from disco_client.output import logger_of, print_logs
from disco_client.pb import controller_pb2, node_pb2
from disco_client.reentry import Event, is_of_system, owned
from disco_client.replies import AUTO, read_hang_report
from disco_client.session import Session
from disco_client.threads import ThreadRefused, limits, start_thread
from disco_client.transport.base import Bound, Events, OutgoingBatch, RankPlace, Welcome
from disco_client.transport.progress import Progress
from disco_client.transport.shared_reader import READABLE, SharedReader
from disco_client.wire.arrays import in_pieces
from disco_client.wire.codec import EncodedEnvelope, EncodedReply, EnvelopeKind, envelope
from disco_client.wire.framing import frame
from disco_client.wire.reports import Inspection, decode_report
from disco_server.collectives.loss import may_follow_another
from disco_server.collectives.mpich_memory import kvsname, sweep_shared_memory
from disco_server.core.node import (
    AllGone,
    AssignRank,
    CancelStart,
    Effect,
    EndOrphan,
    EndRank,
    FindHung,
    KillRanks,
    NodeSession,
    NodeState,
    SayGoodbye,
    ServePmi,
    StartRank,
    TellExit,
    TellOpening,
    TellRanksReady,
    WrongEvent,
)
from disco_server.core.nodes import NodeShare
from disco_server.core.pmi import ClosePmi, MeetNodes, NotePmi, SendPmi
from disco_server.embedded.rank_child import RankChild
from disco_server.ipc.arrays import FROM_RANKS, IncomingArray, Offers, OutgoingArray
from disco_server.ipc.assignments import Assignments
from disco_server.ipc.framing import progress_in
from disco_server.ipc.process import fix_hashes, limit_threads
from disco_server.ipc.shares import encode_share
from disco_server.observe.processes import Subject, cut_ranks, inspect_ranks
from disco_server.settings import HASH_SEED, INIT_TIMEOUT_S, check_system, cpu_cores

if TYPE_CHECKING:
    from disco_client.tracing.ring import Since

__all__ = [
    "ENTRYPOINT",
    "Children",
    "ProcessSession",
    "ProcessTransport",
    "Sender",
    "SharedArrays",
    "Watcher",
]


# The child processes of one session: started, watched and ended by one thread.
#
# The kernel ends a rank when the *thread* that started it ends, so the thread that
# starts the ranks is the one that lives as long as the session: the keeper. It
# forwards what they print, answers their MPI library, notices their end, and reads
# their replies while no thread of the program waits for one.


_logger = logger_of("disco.embedded")

_Descriptors: TypeAlias = tuple[Descriptor, ...]
_LOOKS = 50
"""How often a thread polls for replies before it sleeps: about 0.2 ms. A wake-up takes
several times as long as a rank that is ready to answer."""


class Watcher(Protocol):
    """Is notified of the children's events; by the keeper, or by a thread that waits."""

    def take(self, child: RankChild, raw: bytes) -> _Descriptors | None:
        """Handles a frame of a rank's socket, perhaps again.

        Returns:
            None; or, where that must not be repeated, the descriptors that came with it, one
            at most, for :meth:`take_once`.
        """
        ...

    def take_once(self, child: RankChild, raw: bytes, fds: _Descriptors) -> None:
        """Handles such a frame, in the keeper."""
        ...

    def ready(self) -> None:
        """Handles that every rank is ready for commands."""
        ...

    def output(self, worker: int, is_error: bool, lines: list[str]) -> None:
        """Handles what a rank has printed."""
        ...

    def ended(self, error: SessionError) -> None:
        """Handles the error that ended the session, once."""
        ...


class Children:
    """All ranks of a session.

    Args:
        count: How many.
        command: What Python is started with for a rank, given its number, but for descriptors.
        environ: Their environment.
        session: The session's id.
        name: The session's name, for messages.
        node: The node's name, for messages.
        watcher: Is notified.
        begin: Makes the first frame for a rank, given its number.

    Attributes:
        reader: Lets threads that wait read replies.
        node: Decides what happens to the ranks; used by the keeper.
        order: A lock that is taken before those of ranks. A thread that sends to one rank holds
            it too, so a signal handler in it does not wait for a thread that sends to all.
        followed: Whether a trace fetches what the flight recorders hold, and so wants the rest
            of it when the ranks have ended.
    """

    def __init__(
        self,
        count: int,
        *,
        command: Callable[[int], Sequence[str]],
        environ: Mapping[str, str],
        session: int,
        name: str,
        node: str,
        watcher: Watcher,
        begin: Callable[[int], bytes],
    ) -> None:
        self._count = count
        self._command = command
        self._environ = environ
        self._session = session
        self._kvsname = kvsname(session)
        self._name = name
        self._node = node
        self._watcher = watcher
        self._begin = begin
        self.ranks: list[RankChild] = []
        self.order = make_lock()
        self.followed = False
        self._started = Event()
        self._start_error: OSError | None = None
        self.reader = SharedReader(self._handle, looks=_LOOKS)
        # With frames that have not been handled, and those of which only the keeper may be.
        self._unhandled: dict[int, RankChild] = {}
        self._kept: deque[tuple[RankChild, bytes, _Descriptors]] = deque()
        self._last_kept = b""
        self.reader.unattended = lambda: bool(self._full)
        self._full: set[int] = set()
        self._actions: dict[int, Callable[[], None]] = {self.reader.wake_fd: self._woken}
        self._by_socket: dict[int, RankChild] = {}
        self._goodbye: bytes | None = None
        self._failed = False
        self._closed = False
        self.node = NodeSession(
            range(count), [range(count)], self._kvsname, open_limit_s=INIT_TIMEOUT_S.value()
        )
        self._opened = Progress(count, 0)
        self._keeper = threading.Thread(target=self._keep, name=f"{name}-keeper", daemon=True)

    # Starting -----------------------------------------------------------------------------

    def start(self) -> None:
        """Starts the ranks; returns when all processes exist.

        Raises:
            OSError: One could not be started.
            ThreadRefused: The system starts no thread that could watch them.
        """
        try:
            start_thread(self._keeper, serves=True)
        except ThreadRefused:
            self._clean_up()
            raise
        self._started.wait()
        if self._start_error is not None:
            raise self._start_error

    def _keep(self) -> None:
        """Runs the keeper's thread."""
        try:
            self._apply(self.node.start())
            self._started.set()
            while self.node.state is not NodeState.GONE:
                self._turn()
        except Exception as error:
            _logger.exception("the keeper of session %s failed", self._name)
            self._end_with(SessionLost(f"the keeper of session {self._name!r} failed: {error!r}"))
        finally:
            self._started.set()
            for child in self.ranks:
                if child.status is None:
                    child.reap()
            self._clean_up()

    def _start_rank(self, worker: int) -> Iterable[Effect]:
        try:
            child = RankChild(worker, self._command(worker), self._environ, self.order)
        except OSError as error:
            self._start_error, self._failed = error, True
            return self.node.not_started(worker)
        self._add(child)
        return self.node.started(worker, monotonic())

    def _add(self, child: RankChild) -> None:
        child.local_workers = self._count
        self.ranks.append(child)
        self._by_socket[child.sock.fileno()] = child
        fd = child.sock.fileno()
        self.reader.replies.register(fd, READABLE)
        child.arm = lambda armed: self._arm(fd, armed)
        self._watch(child.pidfd, partial(self._ended, child))
        for is_error in (False, True):
            self._watch(child.outputs[is_error], partial(self._printed, child, is_error))

    def _arm(self, fd: int, armed: bool) -> None:
        with contextlib.suppress(OSError):  # it has ended meanwhile
            self.reader.replies.modify(fd, READABLE | (select.EPOLLOUT if armed else 0))
        if not armed:
            self._full.discard(fd)
            return
        self._full.add(fd)
        self.reader.attend()  # where a thread leads, it hands back when it stops

    def _watch(self, fd: int, action: Callable[[], None]) -> None:
        self._actions[fd] = action
        self.reader.house.register(fd, READABLE)

    def _unwatch(self, fd: int) -> None:
        if self._actions.pop(fd, None) is not None:
            self.reader.house.unregister(fd)

    # The keeper's loop ----------------------------------------------------------------------

    def _turn(self) -> None:
        now = monotonic()
        if self.node.wake_at <= now:
            self._apply(self.node.time_passed(now))
        for fd in self.reader.keep(self.node.wake_at - now):
            if fd in self._actions:
                self._actions[fd]()
        self._handle_kept()

    def _handle_kept(self) -> None:
        """Handles the frames that only this thread may handle."""
        while self._kept:
            child, raw, fds = self._kept.popleft()
            if raw is not self._last_kept:  # else a thread was interrupted when it left it
                self._last_kept = raw
                self._watcher.take_once(child, raw, fds)
                self.reader.notify_reader()

    def _woken(self) -> None:
        if self._failed or self._goodbye is not None:
            self._apply(self.node.end(monotonic(), grace=not self._failed))

    def _printed(self, child: RankChild, is_error: bool) -> None:
        lines, more = child.read_output(is_error)
        if not more:
            self._unwatch(child.outputs[is_error])
        if lines:
            self._watcher.output(child.worker, is_error, lines)

    def _pmi_said(self, child: RankChild) -> None:
        data = child.read_pmi()
        if data is not None:
            self._apply(self.node.pmi_said(child.worker, data))

    def _close_pmi(self, child: RankChild) -> None:
        self._unwatch(child.pmi.fileno())
        child.pmi.close()

    # What the session's object decides -------------------------------------------------------

    def _apply(self, effects: Iterable[Effect]) -> None:
        todo = deque(effects)
        while todo:
            todo.extend(self._do(todo.popleft()))

    def _do(self, effect: Effect) -> Iterable[Effect]:  # noqa: C901, PLR0912  (a table)
        """Carries an effect out; returns what follows of that at once."""
        match effect:
            case StartRank(worker):
                return self._start_rank(worker)
            case AssignRank(worker):
                self.ranks[worker].send(self._begin(worker))
            case ServePmi():
                for child in self.ranks:
                    self._watch(child.pmi.fileno(), partial(self._pmi_said, child))
            case SendPmi(worker, data):
                self.ranks[worker].send_pmi(data)
            case ClosePmi(worker):
                self._close_pmi(self.ranks[worker])
            case MeetNodes(_, puts):
                return self.node.pmi_met(puts)  # there is no other node
            case TellRanksReady():
                self._watcher.ready()
            case TellOpening(worker, times):
                self._tell_opening(worker, times)
            case FindHung(attempt, workers):
                stopped = [worker for worker in workers if self.ranks[worker].is_stopped]
                return self.node.hung(attempt, stopped)
            case EndRank(worker, why):
                self.ranks[worker].end_because(why)
            case TellExit(worker, at_start):
                return self._tell_exit(worker, at_start)
            case SayGoodbye():
                for child in self.ranks:
                    child.send(self._goodbye or b"")
            case KillRanks(workers):
                for worker in workers:
                    self.ranks[worker].kill()
            case CancelStart() | EndOrphan() | NotePmi() | AllGone():
                pass  # ranks start at once, this program owns them, and their ends say more
        return ()

    def _tell_opening(self, worker: int, times: int) -> None:
        """Lets the other ranks open their communicators too; once all do, a time limit runs."""
        if times > self._opened.fastest:
            kind, session = EnvelopeKind.OPEN_CCL, self._session
            framed = frame(envelope(kind, session=session, worker=worker, first_seq=times))
            for child in self.ranks:
                if child.worker != worker:
                    child.send(framed)
        if self._opened.note(worker, times):
            self.node.opening.all_begin(self._opened.slowest, monotonic())

    def says(self, child: RankChild, kind: int) -> None:
        """Handles a rank's word about itself, in the keeper."""
        try:
            if kind == EnvelopeKind.ASSIGNED:
                self._apply(self.node.assigned(child.worker))
            elif kind == EnvelopeKind.OPEN_CCL:
                self._apply(self.node.opens(child.worker))
            elif kind == EnvelopeKind.CCL_OPENED:
                self.node.opening.done(child.worker)
        except WrongEvent as error:
            child.refuse(str(error))

    # Deaths -----------------------------------------------------------------------------------

    def _ended(self, child: RankChild) -> None:
        self._unwatch(child.pidfd)
        status = child.reap()
        self._say_last_words(child)
        follows, lost_at = may_follow_another(status, child.memory), child.memory.lost_at()
        self._apply(self.node.exited(child.worker, monotonic(), follows=follows, lost_at=lost_at))

    def _tell_exit(self, worker: int, at_start: bool) -> Iterable[Effect]:
        if self._goodbye is not None and not self._failed:
            return ()  # the ranks are about to be asked to leave
        if not self._failed:
            child = self.ranks[worker]
            how = child.why_ended() or describe_exit(child.status or 0)
            text = describe_worker_end(worker, how, self._name, self._node, at_start=at_start)
            self._end_with(
                worker_lost(
                    text,
                    worker=worker,
                    node=self._node,
                    exit_status=child.status or 0,
                    output=child.last_lines,
                )
            )
        return self.node.end(monotonic(), grace=False)

    def fail(self, error: SessionError) -> None:
        """Ends the session from another thread; the ranks are killed."""
        self._end_with(error)
        self.reader.wake()

    def _end_with(self, error: SessionError) -> None:
        self._failed = True
        self._watcher.ended(error)
        self.reader.end()

    def _say_last_words(self, child: RankChild) -> None:
        """Reads what the rank wrote before its end; its own children may write for longer."""
        for is_error in (False, True):
            if child.outputs[is_error] in self._actions:
                lines = child.last_words(is_error)
                if lines:
                    self._watcher.output(child.worker, is_error, lines)
                self._unwatch(child.outputs[is_error])

    # Replies ----------------------------------------------------------------------------------

    def attend_to(self, unattended: Callable[[], bool]) -> None:
        """Lets the keeper read while something is awaited that no thread waits for."""
        self.reader.unattended = lambda: bool(self._full) or unattended()

    def _handle(self, events: list[tuple[int, int]]) -> None:
        if self._unhandled:
            for child in list(self._unhandled.values()):
                self._take(child)
        for fd, mask in events:
            child = self._by_socket.get(fd)
            if child is None:
                continue
            if mask & select.EPOLLOUT:
                child.flush()
            if mask & ~select.EPOLLOUT:
                self._unhandled[fd] = child
                if not child.take_in():
                    with contextlib.suppress(OSError):
                        self.reader.replies.unregister(fd)
                    child.kill()  # where it has not ended yet, it has closed its socket
                self._take(child)

    def _take(self, child: RankChild) -> None:
        """Handles the frames of a rank; where that is interrupted, the first one again."""
        reader = child.reader
        while reader.frames:
            raw = reader.frames[0]
            try:
                fds = self._watcher.take(child, raw)
                if fds is not None:
                    self._kept.append((child, raw, fds))
                    self.reader.wake()
            except (DecodeError, IndexError) as error:
                child.refuse(str(error))
                reader.frames.clear()
                break
            reader.frames.popleft()
        self._unhandled.pop(child.sock.fileno(), None)

    # The end ------------------------------------------------------------------------------------

    def end(self, goodbye: bytes, timeout: float) -> None:
        """Lets the ranks leave, or kills them after a moment; returns when all have ended.

        Args:
            goodbye: The frame that makes them leave.
            timeout: Seconds to wait at most.
        """
        self._goodbye = goodbye
        self.reader.wake()
        if self._keeper.ident is not None and self._keeper is not threading.current_thread():
            self._keeper.join(timeout)

    def _clean_up(self) -> None:
        self.reader.close(self._close_children)
        sweep_shared_memory(self._kvsname)

    def _close_children(self) -> None:
        self._closed = True
        for child in self.ranks:
            child.close()
            child.memory.close(keep=self._failed or self.followed)

    def disown(self) -> None:
        """Releases everything in a forked child, where the keeper does not run."""
        if not self._closed:
            for child in self.ranks:
                child.renew_lock()
            self._close_children()
            self.reader.disown()


# Host arrays between the client and its child processes, through shared memory.


_OVER = "the session is over"
_MAX_UNDER_WAY = 64
_MAX_BYTES_UNDER_WAY = 256 << 20
"""How many bytes may be in transfer before an upload waits for the workers to copy some."""

_MAX_WAIT_S = 1.0
"""An upload waits no longer than this for the one before: what that waits for might be
another thread's upload."""

_MAX_WHY = 500


class SharedArrays:
    """The arrays of one session that are transferred beside its log.

    Args:
        session: The session's id.
        children: Its ranks.
        wait: Waits for a lock, at most so many seconds.
    """

    def __init__(
        self,
        session: int,
        children: Children,
        wait: Callable[[threading.Lock, float], bool],
    ) -> None:
        self._session = session
        self._children = children
        self._wait = wait
        self._lock = make_lock()
        self._memory = SharedPool()
        self._mapped = MappedMemory()
        self._offers = Offers()
        self._under_way: dict[int, dict[int, int]] = {}
        self._waiters: list[threading.Lock] = []
        self._over = False

    # To a worker ----------------------------------------------------------------------------

    def upload(self, ticket: int, child: RankChild, data: memoryview) -> None:
        """Sends an array's bytes to a rank, piece by piece; returns when they may be changed.

        Raises:
            OSError: There is no memory for it, or no descriptor.
        """
        self._await_room(len(data))
        with self._lock:
            fd = self._memory.take(len(data))
        try:
            array = OutgoingArray(fd, len(data), partial(self._hand_in, ticket, child, len(data)))
            at = 0
            for piece in in_pieces(data):
                array.grow(at)
                self._mapped.write(fd.fileno(), piece, at)
                at += len(piece)
            with self._lock:
                self._under_way.setdefault(child.worker, {})[ticket] = len(data)
            array.grow(len(data))
        finally:
            fd.close()

    def give_up(self, ticket: int, child: RankChild, why: str) -> None:
        """Notifies a rank, which may wait for it, that an array will not come."""
        error = f"the upload was broken off: {why}" if why else "the upload was broken off"
        self._settle(child.worker, ticket)
        self._tell(child, EnvelopeKind.ARRAY_MORE, ticket=ticket, error=error[:_MAX_WHY])

    def decline(self, ticket: int, child: RankChild) -> None:
        """Releases an array that a rank offered, unless it was fetched."""
        with contextlib.suppress(KeyError):
            self._let_go(child, self._offers.take(child.worker, ticket))

    def _let_go(self, child: RankChild, array: IncomingArray) -> None:
        """Returns the memory of an array to its rank."""
        if array.fd is not None:
            self._tell(child, EnvelopeKind.ARRAY_BACK, array.fd)

    def _hand_in(
        self, ticket: int, child: RankChild, nbytes: int, there: int, fd: Descriptor | None
    ) -> None:
        kind = EnvelopeKind.ARRAY_MORE if fd is None else EnvelopeKind.ARRAY_IN
        self._tell(child, kind, fd, ticket=ticket, nbytes=nbytes, there=there)

    def _tell(
        self, child: RankChild, kind: EnvelopeKind, fd: Descriptor | None = None, **told: Any
    ) -> None:
        def framed(error: str) -> bytes:
            payload = controller_pb2.Transfer(session=self._session, worker=child.worker, **told)
            payload.error = payload.error or error
            return frame(envelope(kind, payload.SerializeToString(), session=self._session))

        child.send(framed(""), fd, framed)

    def _await_room(self, nbytes: int) -> None:
        waiter = threading.Lock()
        with self._lock:
            sizes = [size for taken in self._under_way.values() for size in taken.values()]
            full = len(sizes) >= _MAX_UNDER_WAY or sum(sizes) + nbytes > _MAX_BYTES_UNDER_WAY
            if not sizes or not full or self._over:
                return
            waiter.acquire()
            self._waiters.append(waiter)
        if self._wait(waiter, _MAX_WAIT_S):
            self._await_room(nbytes)

    def take_back(self, child: RankChild, received: EncodedEnvelope, fds: _Descriptors) -> None:
        """Recycles the memory that a rank has copied from, where it has come."""
        told = controller_pb2.Transfer.FromString(received.payload)
        with self._lock:
            for fd in fds:
                self._memory.give(fd)
        self._settle(child.worker, told.ticket)

    def _settle(self, worker: int, ticket: int) -> None:
        """Stops counting an array that a rank has received, or that was given up."""
        with self._lock:
            self._under_way.get(worker, {}).pop(ticket, None)
        self._wake_waiters()

    def _wake_waiters(self) -> None:
        with self._lock:
            waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            waiter.release()

    # From a worker --------------------------------------------------------------------------

    def receive(
        self, child: RankChild, raw: bytes, received: EncodedEnvelope
    ) -> _Descriptors | None:
        """Handles a rank's message about an array; may be repeated.

        Returns:
            None; or the descriptors for :meth:`take_back`.
        """
        told = controller_pb2.Transfer.FromString(received.payload)
        if received.kind == EnvelopeKind.ARRAY_BACK:
            fd = None if told.error else child.reader.descriptor_of(raw)
            return () if fd is None else (fd,)
        if received.kind == EnvelopeKind.ARRAY_OUT:
            take = partial(child.reader.descriptor_of, raw)
            array = IncomingArray.received(take, told.nbytes, told.there, told.error)
            self._offers.add(child.worker, told.ticket, array)
        else:
            self._offers.grow(child.worker, told.ticket, told.there, told.error)
        return None

    def download(self, ticket: int, child: RankChild, into: memoryview) -> None:
        """Fills a buffer with the array that a rank offered, as it grows.

        Raises:
            SessionError: There is none of that ticket and size.
            OSError: The rest of it will not come.
        """
        expected = f"expected an array of {len(into)} bytes from worker {child.worker}"
        try:
            array = self._offers.take(child.worker, ticket)
        except KeyError:
            msg = f"{expected}, there is none"
            raise SessionError(msg) from None
        try:
            if array.nbytes != len(into):
                msg = f"{expected}, got {array.nbytes}"
                raise SessionError(msg)
            at = 0
            for piece in in_pieces(into):
                self._await(array, at + len(piece))
                self._mapped.read(array.fileno(), piece, at)
                at += len(piece)
        finally:
            self._let_go(child, array)

    def _await(self, array: IncomingArray, end: int) -> None:
        """Waits until an array has arrived up to one of its bytes."""
        while not array.reaches(end):
            waiter = threading.Lock()
            waiter.acquire()
            array.on_change = waiter.release
            if self._over:
                raise OSError(_OVER)
            if not array.reaches(end):
                self._wait(waiter, _MAX_WAIT_S)

    # The end ----------------------------------------------------------------------------------

    def end(self) -> None:
        """Ends the waits for room and for the rest of an array."""
        self._over = True
        self._wake_waiters()
        self._offers.break_off(_OVER)

    def disown(self) -> None:
        """Closes a forked child's copies of shared memory; takes no lock."""
        self._memory.close()
        self._mapped.disown()

    def close(self) -> None:
        """Frees all memory."""
        self._offers.close()
        with self._lock:
            self._memory.close()
        self._mapped.close()


# Delivers a session's commands, from whichever thread is free.


class Sender:
    """Takes batches from a session's log and delivers them in order.

    A thread that waits for an answer calls :meth:`flush` itself; a thread of the sender
    does it for calls that no thread waits for. Where an exception interrupts a delivery, the
    next one repeats it.

    Args:
        events: The session's.
        deliver: Takes a batch, and the worker that is waited for, which should get it
            first; must not block. Workers drop one that they have had.
        lock: A reentrant lock that is held meanwhile; by default one of its own.

    Attributes:
        delivered: The newest command that was delivered.
        entered: Says whether the calling thread is in the middle of a delivery.

    Raises:
        ThreadRefused: The system starts no thread for it.
    """

    def __init__(
        self,
        events: Events,
        deliver: Callable[[OutgoingBatch, int], None],
        lock: threading.RLock | None = None,
    ) -> None:
        self._take = events.take_batch
        self._left = events.left
        self._nudge = events.nudge
        self._await = events.await_commands
        self._deliver = deliver
        self._lock = make_lock() if lock is None else lock
        self.entered: Callable[[], bool] = owned(self._lock)
        self.delivered = 0
        self._thread = threading.Thread(target=self._run, name="disco-sender", daemon=True)
        start_thread(self._thread, serves=True)

    def flush(self, first: int = 0, *, kills: bool = False) -> None:
        """Delivers everything that was issued.

        Args:
            first: The worker that should get it first.
            kills: Whether to say which registers are free where no command does.
        """
        if self.entered():  # by a handler or a finalizer in the middle of a delivery
            self._nudge()
            return
        with self._lock:
            self._flush(first, kills)

    def _flush(self, first: int, kills: bool) -> None:
        while (batch := self._take(kills)) is not None:
            self._deliver(batch, first)
            self.delivered = batch.last_seq
            self._left(batch.last_seq)

    def _run(self) -> None:
        while self._await():
            self.flush(kills=True)

    def join(self, timeout: float) -> None:
        """Waits until everything was delivered; the log has been closed before."""
        if self._thread is not threading.current_thread():
            self._thread.join(timeout)


ENTRYPOINT = "disco_server.rank.process"
_RUNNER = "disco_server.embedded.entrypoint"
"""Runs the entrypoints of others."""

NODE = "local"
_DEVICE = "cpu"
_numbers = itertools.count(1)


class ProcessSession(Session):
    """A session whose workers are child processes; see :class:`Session`.

    The processes end with this one, however it ends. Host arrays cross shared
    memory; collectives go through MPI. Each worker's numerical libraries start as many threads
    as its share of the cores, unless ``OMP_NUM_THREADS`` and its like say otherwise.

    Args:
        num_workers: How many workers.
        num_groups: Into how many equal, consecutive groups they are divided.
        entrypoint: The module that each process runs as its program, with the arguments
            ``WORKER_ID NUM_WORKERS NUM_GROUPS READ_FD WRITE_FD``. A module of one's own may
            register functions, and then becomes the worker by calling
            ``disco_server.rank.process.main()`` or, as TVM's ``tvm.exec.disco_worker``
            does, ``runtime.disco.WorkerProcess`` of TVM's registry.
        ccl: The collective library; ``"mpi"`` is the one that processes on CPUs use.
        timeout: Seconds in which all workers must be ready.
        logs: Whether what workers print is written to standard error, each line
            with its rank.
        hang_report: After how many seconds a call that waits prints what the ranks do
            to standard error, once, and again if they do something else; 0 or None for
            never. The default is what ``DISCO_HANG_REPORT_S`` says, else 30.

    Raises:
        ConfigError: An argument is wrong, or this system cannot watch processes.
        SessionError: The system has too few threads or file descriptors for it.
        WorkerLost: A worker process could not be started.
        SessionLost: The workers were not ready in time.

    Examples:
        >>> with disco_client.ProcessSession(2) as processes:
        ...     print(processes.allreduce(processes.broadcast(np.ones(2))).numpy())
        [2. 2.]
    """

    def __init__(
        self,
        num_workers: int,
        num_groups: int = 1,
        entrypoint: str = ENTRYPOINT,
        *,
        ccl: str | None = None,
        timeout: float = 60.0,
        logs: bool = True,
        hang_report: float | None = AUTO,
    ) -> None:
        check_session(num_workers, num_groups, ccl, timeout)
        read_hang_report(hang_report)
        check_system("a ProcessSession")
        _check_entrypoint(entrypoint)
        _check_ccl(ccl)
        transport = ProcessTransport(num_workers, num_groups, entrypoint, ccl or "", timeout)
        super().__init__(
            transport,
            num_groups=num_groups,
            log_sink=print_logs if logs else None,
            hang_report=hang_report,
        )


def _check_ccl(ccl: str | None) -> None:
    if ccl == "local":
        msg = (
            "the collective library 'local' joins threads of one process, a ProcessSession has "
            "processes: leave ccl out or use 'mpi', or take a ThreadedSession"
        )
        raise ConfigError(msg)


def _check_entrypoint(entrypoint: object) -> None:
    try:
        found = isinstance(entrypoint, str) and importlib.util.find_spec(entrypoint) is not None
    except (ImportError, ValueError):
        found = False
    if not found:
        msg = f"expected entrypoint to name a module that can be run, got {entrypoint!r}"
        raise ConfigError(msg)


def _environ(ranks: int) -> dict[str, str]:
    """The workers' environment: this process's, and where it finds its modules."""
    path = os.pathsep.join(part or os.getcwd() for part in sys.path)  # noqa: PTH109  (as text)
    environ = {**os.environ, "PYTHONPATH": path, "PYTHONUNBUFFERED": "1"}
    environ = limit_threads(environ, max(1, cpu_cores() // ranks))
    # A number that the program's environment has is the same for all of them.
    return environ if environ.get(HASH_SEED, "").isdecimal() else fix_hashes(environ)


class ProcessTransport(Bound):
    """Carries a session to child processes over sockets.

    Raises:
        WorkerLost: A worker process could not be started.
        SessionLost: The workers were not ready in time.
    """

    def __init__(
        self, num_workers: int, num_groups: int, entrypoint: str, ccl: str, timeout: float
    ) -> None:
        self._session = secrets.randbits(64)
        self._name = f"processes-{next(_numbers)}"
        self._num_workers, self._num_groups, self._ccl = num_workers, num_groups, ccl
        self._entrypoint = entrypoint
        self._events: Events | None = None
        self._sender: Sender | None = None
        self._error: SessionError | None = None
        self._state_lock = make_lock()
        self._early: list[tuple[int, bool, list[str]]] = []
        self._ready = threading.Lock()
        self._ready.acquire()
        self._children = Children(
            num_workers,
            command=self._command,
            environ=_environ(num_workers),
            session=self._session,
            name=self._name,
            node=NODE,
            watcher=self,
            begin=self._assignments().framed,
        )
        self._arrays = SharedArrays(self._session, self._children, self._wait_for)
        try:
            self._start(timeout)
        except BaseException:
            self.close(timeout)
            raise

    def _start(self, timeout: float) -> None:
        deadline = monotonic() + timeout
        try:
            self._children.start()
        except OSError as error:
            what = f"; {limits()}" if error.errno == errno.EAGAIN else describe_refusal(error)
            msg = f"no worker process could be started: {error}{what}"
            raise SessionLost(msg) from error
        if not self._wait_for(self._ready, deadline - monotonic()):
            msg = f"workers {self._children.node.unready} were not ready within {timeout:g} s"
            raise SessionLost(msg)
        self.check_alive()
        places = (RankPlace(c.worker, NODE, c.pid, _DEVICE) for c in self._children.ranks)
        self._welcome = Welcome(self._session, self._name, tuple(places))

    def _assignments(self) -> Assignments:
        count = self._num_workers
        share = NodeShare(NODE, tuple(range(count)), tuple(range(count)), (_DEVICE,) * count)
        start = node_pb2.StartRanks(
            session_name=self._name,
            num_workers=count,
            num_groups=self._num_groups,
            ccl=self._ccl,
            nodes=[encode_share(share, "")],
        )
        everything = ("*",)  # as in the program, whose own they are
        rules = node_pb2.AssignRank(
            allow_modules=everything,
            allow_read=everything,
            allow_save=everything,
            allow_load=everything,
        )
        return Assignments(self._session, start, rules)

    def _command(self, worker: int) -> list[str]:
        # Disco's own needs no preparation, which takes time where TVM is installed.
        own = self._entrypoint == ENTRYPOINT
        program = [ENTRYPOINT] if own else [_RUNNER, self._entrypoint]
        return ["-m", *program, *map(str, (worker, self._num_workers, self._num_groups))]

    @property
    def welcome(self) -> Welcome:
        """Which session this is, and where its workers run."""
        return self._welcome

    sends_lone = True
    """No sender's thread is woken for a command that comes alone."""

    @property
    def pump(self) -> ProcessTransport:
        """Lets waiting threads send and receive by themselves."""
        return self

    @property
    def progress(self) -> ProcessTransport:
        """The pump, which can ask workers how far they are."""
        return self

    @property
    def draining(self) -> tuple[str, ...]:
        """None: its only node is this process."""
        return ()

    def start(self, events: Events) -> None:
        """Begins to send what is issued and to deliver what is received."""
        self._children.attend_to(events.unattended)
        with self._state_lock:
            self._events = events
            early, self._early = self._early, []
            error = self._error
        for worker, is_error, lines in early:
            events.log(worker, NODE, is_error, lines)
        if error is not None:
            events.lost(error)
        self._sender = Sender(events, self._deliver, self._children.order)

    # Commands and replies -----------------------------------------------------------------

    def _deliver(self, batch: OutgoingBatch, first: int) -> None:
        framed = frame(batch.envelope())
        concerned = batch.concerns
        ranks = self._children.ranks
        for child in (*ranks[first:], *ranks[:first]):
            if concerned is None or child.worker in concerned:
                child.send(framed)
            else:
                # It only has to count these commands, which can wait.
                child.hold(framed)

    @property
    def entered(self) -> bool:
        """Whether the calling thread is in the middle of sending or reading."""
        if self._children.reader.entered:
            return True
        return self._sender is not None and self._sender.entered()

    def ask(self, worker: int, waiter: threading.Lock) -> None:
        """Sends what was issued; the worker frees a lock when it has executed all of it."""
        self._flush(worker, waiter)

    def _flush(
        self, ask: int | None = None, waiter: threading.Lock | None = None
    ) -> Callable[[], bool] | None:
        """Sends what was issued, and a question; returns a way to see its answer early."""
        delivered = 0
        if self._sender is not None:
            self._sender.flush(ask or 0)
            delivered = self._sender.delivered
        if ask is None or waiter is None:
            return None
        child = self._children.ranks[ask]
        child.ask(waiter, delivered)
        if self._error is not None:
            child.wake_waiters()
        return partial(self._sees, child, delivered)

    def _sees(self, child: RankChild, seq: int) -> bool:
        """Whether a rank shows that it has executed a command; its reply would say no more."""
        if not child.shows(seq):
            return False
        if self._events is not None:
            self._events.acknowledge(child.worker, seq)
        return True

    def flush(self) -> None:
        """Sends what was issued."""
        self._flush()

    def send(self) -> None:
        """Sends what was issued; the keeper reads the answer if no thread does."""
        self.flush()
        self._children.reader.attend()

    def wait(self, waiter: threading.Lock, seconds: float, ask: int | None = None) -> bool:
        """Sends what was issued, and reads replies until a lock is free."""
        return self._children.reader.wait(waiter, seconds, lambda: self._flush(ask, waiter))

    def _wait_for(self, waiter: threading.Lock, seconds: float) -> bool:
        return self.wait(waiter, seconds)

    def take(self, child: RankChild, raw: bytes) -> _Descriptors | None:
        """Handles a frame of a rank; see :class:`Watcher`."""
        events, seq = self._events, progress_in(raw)
        if seq is not None:
            if events is not None:
                events.acknowledge(child.worker, seq)
            child.executed(seq)
            return None
        received = EncodedEnvelope.FromString(raw)
        if received.kind == EnvelopeKind.REPLY and events is not None:
            events.reply(child.worker, EncodedReply.FromString(received.payload))
            return None
        return self._arrays.receive(child, raw, received) if received.kind in FROM_RANKS else ()

    def take_once(self, child: RankChild, raw: bytes, fds: _Descriptors) -> None:
        """Handles a frame of which that must not be repeated."""
        received = EncodedEnvelope.FromString(raw)
        if received.kind == EnvelopeKind.ARRAY_BACK:
            self._arrays.take_back(child, received, fds)
        else:
            self._children.says(child, received.kind)

    def ready(self) -> None:
        """Handles that every rank is ready for commands."""
        with contextlib.suppress(RuntimeError):  # nobody waits for it any more
            self._ready.release()

    def output(self, worker: int, is_error: bool, lines: list[str]) -> None:
        """Handles what a rank has printed."""
        with self._state_lock:
            events = self._events
            if events is None:
                self._early.append((worker, is_error, lines))
        if events is not None:
            events.log(worker, NODE, is_error, lines)

    def ended(self, error: SessionError) -> None:
        """Handles the error that ended the session."""
        with self._state_lock:
            self._error = self._error or error
            events = self._events
        if events is not None:
            events.lost(error)
        else:
            self.ready()
        self._arrays.end()
        for child in self._children.ranks:
            child.wake_waiters()

    def check_alive(self) -> None:
        """Raises the session's error, once it has one."""
        if self._error is not None:
            raise self._error

    def inspect(
        self, *, stacks: bool, flights: bool, since: Sequence[Since] | None = None
    ) -> Inspection:
        """Reports what the ranks do, or did before they ended."""
        ranks = self._children.ranks
        over = self._error is not None
        subjects = [Subject(c.worker, NODE, c.pid, c.memory, ended=over) for c in ranks]
        if since is None:
            reports = inspect_ranks(subjects, stacks=stacks, flights=flights)
        else:
            self._children.followed = True
            reports = cut_ranks(subjects, since)
        found = tuple(map(decode_report, reports))
        return Inspection(self._session, self._name, self._num_workers, found)

    # Arrays -------------------------------------------------------------------------------

    def upload(self, ticket: int, worker: int, data: memoryview) -> None:
        """Sends an array's bytes to a worker; returns when they may be changed."""
        self.check_alive()
        self._arrays.upload(ticket, self._children.ranks[worker], data)

    def give_up(self, uploads: Sequence[tuple[int, int]], why: str = "") -> None:
        """Announces that arrays, by ticket and worker, or the rest of them will not come."""
        for ticket, worker in uploads:
            self._arrays.give_up(ticket, self._children.ranks[worker], why)

    def decline(self, downloads: Sequence[tuple[int, int]]) -> None:
        """Announces that arrays, by ticket and worker, will not be downloaded any more."""
        for ticket, worker in downloads:
            self._arrays.decline(ticket, self._children.ranks[worker])

    def download(self, ticket: int, worker: int, into: memoryview) -> None:
        """Fills a buffer with the array that a worker offered."""
        try:
            self._arrays.download(ticket, self._children.ranks[worker], into)
        except OSError as error:
            if not is_of_system(error):
                raise
            self.check_alive()
            msg = f"the download of an array failed: {error}"
            raise SessionError(msg) from None

    # The end ------------------------------------------------------------------------------

    def close(self, timeout: float) -> None:
        """Waits until everything was delivered, then ends the workers; idempotent."""
        if self._sender is not None:
            self._sender.join(timeout)
        self._children.end(
            frame(envelope(EnvelopeKind.END_SESSION, session=self._session)), timeout
        )
        self.ended(SessionClosed(f"session {self._name!r} was shut down"))
        self._arrays.close()

    def disown(self) -> None:
        """Closes a forked child's copies of sockets, pipes and shared memory."""
        self._children.disown()
        self._arrays.disown()
