"""The child processes of one session: started, watched and ended by one thread.

The kernel ends a rank when the *thread* that started it ends, so the thread that
starts the ranks is the one that lives as long as the session: the keeper. It
forwards what they print, answers their MPI library, notices their end, and reads
their replies while no thread of the program waits for one.

A thread that waits reads the replies itself, which spares two hand-overs between
threads. There are two epoll objects for that: `replies` with the ranks' sockets,
and `house` with everything else and, while nobody waits, `replies` itself. Who
waits takes `replies` out of `house`, so the keeper does not wake for what is not
its business. A program that waits once waits again soon, so the keeper gets it
back only when nobody has waited for a moment, or at once where a socket was full
and the rest has to leave.
"""

from __future__ import annotations

import contextlib
import logging
import math
import os
import select
import threading
import time
from collections.abc import Callable, Mapping
from typing import Protocol

from disco_client.errors import SessionError, SessionLost, describe_exit, worker_lost
from disco_server.embedded.interrupts import HeldInterrupts
from disco_server.embedded.rank_child import RankChild
from disco_server.worker.mpich_memory import kvsname, sweep_shared_memory
from disco_server.worker.opening import Opening, init_seconds
from disco_server.worker.pmi_exchange import MAX_LINE, PmiExchange

__all__ = ["Children", "Watcher"]

_logger = logging.getLogger("disco.embedded")
_READ = select.EPOLLIN
_END_GRACE_S = 0.5
_IDLE_S = 0.02
"""How often the keeper looks whether somebody has waited since the last time; a failure
that nobody waits for is known up to twice as much later."""

_LOOKS = 50
"""How often a thread looks for replies before it sleeps: about 0.2 ms. Being woken takes
several times as long as a rank that is ready to answer."""


class Watcher(Protocol):
    """Who is told of the children; by the keeper, or by a thread that waits."""

    def frames(self, child: RankChild, frames: list[bytes]) -> None:
        """Takes what came from a rank's socket."""
        ...

    def output(self, worker: int, is_error: bool, lines: list[str]) -> None:
        """Takes what a rank has printed."""
        ...

    def ended(self, error: SessionError) -> None:
        """Takes the error that ended the session, once."""
        ...


class Children:
    """All ranks of a session.

    Args:
        count: How many.
        entrypoint: The module that each runs.
        environ: Their environment.
        session: The session's id.
        name: The session's name, for messages.
        node: The node's name, for messages.
        watcher: Who is told.
        begin: Makes the first frame that each rank is sent, of its number.
    """

    def __init__(
        self,
        count: int,
        *,
        entrypoint: str,
        environ: Mapping[str, str],
        session: int,
        name: str,
        node: str,
        watcher: Watcher,
        begin: Callable[[int], bytes],
    ) -> None:
        self._count = count
        self._entrypoint = entrypoint
        self._environ = environ
        self._kvsname = kvsname(session)
        self._name = name
        self._node = node
        self._watcher = watcher
        self._begin = begin
        self.ranks: list[RankChild] = []
        self._started = threading.Event()
        self._start_error: OSError | None = None
        self._reading = threading.Lock()
        self._lent = False
        self._led = False
        self._full: set[int] = set()
        self._replies = select.epoll()
        self._house = select.epoll()
        self._replies_fd = self._replies.fileno()
        self._wake = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._over = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._replies.register(self._over, _READ)
        self._actions: dict[int, Callable[[], None]] = {self._wake: self._woken}
        self._by_socket: dict[int, RankChild] = {}
        self._goodbye: bytes | None = None
        self._deadline: float | None = None
        self._alive: set[int] = set()
        self._failed = False
        self._closed = False
        self._pmi_rests: dict[int, bytes] = {}
        self._openings: dict[int, float] = {}
        self._pmi = PmiExchange(
            ranks=range(count),
            nodes=[range(count)],
            kvsname=self._kvsname,
            send=self._answer_pmi,
            on_abort=lambda _rank, _why: None,  # the rank's end says more
        )
        self.opening = Opening(
            count,
            init_seconds(),
            waiting=lambda: self._pmi.waiting,
            pid=lambda worker: self.ranks[worker].pid,
        )
        self._keeper = threading.Thread(target=self._keep, name=f"{name}-keeper", daemon=True)

    # Starting -----------------------------------------------------------------------------

    def start(self) -> None:
        """Starts the ranks; returns when all processes exist.

        Raises:
            OSError: One could not be started.
        """
        self._keeper.start()
        self._started.wait()
        if self._start_error is not None:
            raise self._start_error

    def _keep(self) -> None:
        """The keeper's life."""
        try:
            self._house.register(self._wake, _READ)
            self._house.register(self._replies_fd, _READ)
            for worker in range(self._count):
                self._add(RankChild(worker, self._entrypoint, self._environ))
        except OSError as error:
            self._start_error, self._failed = error, True
            self._end_now()
        self._started.set()
        try:
            while self._alive:
                self._turn()
        except Exception as error:
            _logger.exception("the keeper of session %s failed", self._name)
            self._end_with(SessionLost(f"the keeper of session {self._name!r} failed: {error!r}"))
        finally:
            self._end_now()
            for child in self.ranks:
                if child.worker in self._alive:
                    child.reap()
            self._clean_up()

    def _add(self, child: RankChild) -> None:
        self.ranks.append(child)
        self._alive.add(child.worker)
        self._by_socket[child.sock.fileno()] = child
        fd = child.sock.fileno()
        self._replies.register(fd, _READ)
        child.arm = lambda armed: self._arm(fd, armed)
        self._watch(child.pidfd, lambda: self._ended(child))
        self._watch(child.pmi.fileno(), lambda: self._asked(child))
        for is_error in (False, True):
            self._watch(child.outputs[is_error], lambda e=is_error: self._printed(child, e))
        self._pmi_rests[child.worker] = b""
        child.send(self._begin(child.worker))

    def _arm(self, fd: int, armed: bool) -> None:
        with contextlib.suppress(OSError):  # it has ended meanwhile
            self._replies.modify(fd, _READ | (select.EPOLLOUT if armed else 0))
        if not armed:
            self._full.discard(fd)
            return
        self._full.add(fd)
        # Where the lock is taken, somebody leads, and hands back when it stops.
        if self._lent and self._reading.acquire(blocking=False):
            self._hand_back()
            self._reading.release()

    def _watch(self, fd: int, action: Callable[[], None]) -> None:
        self._actions[fd] = action
        self._house.register(fd, _READ)

    def _unwatch(self, fd: int) -> None:
        if self._actions.pop(fd, None) is not None:
            self._house.unregister(fd)

    # The keeper's turns ---------------------------------------------------------------------

    def opens(self, worker: int) -> None:
        """Notes that a rank opens its communicator; once all do, they have so much time."""
        attempt = self.opening.begins(worker)
        if attempt is not None:
            self._openings[attempt] = time.monotonic() + self.opening.limit_s
            os.eventfd_write(self._wake, 1)  # the keeper looks after the time

    def _check_openings(self) -> float:
        """Ends ranks that hang in opening their communicator; when to look again, in seconds."""
        now = time.monotonic()
        for attempt in [number for number, end in list(self._openings.items()) if end <= now]:
            del self._openings[attempt]
            blamed, why = self.opening.blame(attempt, self._alive)
            for worker in blamed:
                self.ranks[worker].end_because(why)
        return min(self._openings.values(), default=math.inf) - now

    def _turn(self) -> None:
        timeout = _IDLE_S if self._lent else -1.0
        if self._openings and (left := self._check_openings()) < math.inf:
            timeout = min(timeout, left) if timeout >= 0 else left
        if self._deadline is not None:
            timeout = self._deadline - time.monotonic()
            if timeout <= 0:
                self._deadline, timeout = None, -1.0
                self._end_now()
        events = self._house.poll(timeout)
        if self._lent:
            self._take_back()
        for fd, _ in events:
            if fd == self._replies_fd:
                self._read_for_nobody()
            elif fd in self._actions:
                self._actions[fd]()

    def _woken(self) -> None:
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self._wake)
        if self._failed:
            self._end_now()
        elif self._goodbye is not None and self._deadline is None:
            self._deadline = time.monotonic() + _END_GRACE_S
            for child in self.ranks:
                child.send(self._goodbye)

    def _read_for_nobody(self) -> None:
        # Who holds the lock reads now, and has taken the sockets out of our sight.
        if self._reading.acquire(blocking=False):
            try:
                self._handle(self._replies.poll(0))
            finally:
                self._reading.release()

    def _take_back(self) -> None:
        """Reads the replies from now on, if no thread has led since the last time."""
        if self._led:
            self._led = False
        elif self._reading.acquire(blocking=False):
            self._hand_back()
            self._reading.release()

    def _hand_back(self) -> None:
        """Lets the keeper read; whoever calls this holds the lock."""
        if self._lent and not self._closed:
            self._lent = False
            self._house.modify(self._replies_fd, _READ)

    def _printed(self, child: RankChild, is_error: bool) -> None:
        lines, more = child.read_output(is_error)
        if not more:
            self._unwatch(child.outputs[is_error])
        if lines:
            self._watcher.output(child.worker, is_error, lines)

    def _asked(self, child: RankChild) -> None:
        rank = child.worker
        try:
            data = child.pmi.recv(MAX_LINE)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        *lines, rest = (self._pmi_rests[rank] + data).split(b"\n")
        self._pmi_rests[rank] = rest
        for line in lines:
            if not self._pmi.is_done(rank):
                meeting = self._pmi.receive(rank, line + b"\n")
                if meeting is not None:
                    self._pmi.met(meeting.puts)
        if len(rest) > MAX_LINE:
            self._pmi.refuse(rank, "a line is too long")
        if not data:
            self._pmi.left(rank)
        if not data or self._pmi.is_done(rank):
            self._unwatch(child.pmi.fileno())

    def _answer_pmi(self, rank: int, data: bytes) -> None:
        # A rank waits for each answer, so there is always room for the next one.
        with contextlib.suppress(OSError):
            self.ranks[rank].pmi.send(data)

    # Deaths -----------------------------------------------------------------------------------

    def _ended(self, child: RankChild) -> None:
        self._unwatch(child.pidfd)
        status = child.reap()
        self._alive.discard(child.worker)
        self._say_last_words(child)
        if self._goodbye is None and not self._failed:
            how = child.why_ended() or describe_exit(status)
            if child.assigned:
                text = f"worker {child.worker} on node {self._node!r} {how}; "
                text += f"session {self._name!r} is over"
            else:
                text = f"worker {child.worker} could not be started on node {self._node!r}: "
                text += f"it {how}"
            self._end_with(
                worker_lost(
                    text,
                    worker=child.worker,
                    node=self._node,
                    exit_status=status,
                    output=child.last_lines,
                )
            )
        if self._failed:
            self._end_now()

    def fail(self, error: SessionError) -> None:
        """Ends the session from another thread; the ranks are killed."""
        self._end_with(error)
        with contextlib.suppress(OSError):
            os.eventfd_write(self._wake, 1)

    def _end_with(self, error: SessionError) -> None:
        self._failed = True
        self._watcher.ended(error)
        os.eventfd_write(self._over, 1)

    def _say_last_words(self, child: RankChild) -> None:
        """Reads what the rank wrote before its end; what it started may write for longer."""
        for is_error in (False, True):
            if child.outputs[is_error] not in self._actions:
                continue
            while True:
                lines, more = child.read_output(is_error)
                if lines:
                    self._watcher.output(child.worker, is_error, lines)
                if not lines or not more:
                    break
            lines = child.last_words(is_error)
            if lines:
                self._watcher.output(child.worker, is_error, lines)
            self._unwatch(child.outputs[is_error])

    def _end_now(self) -> None:
        for child in self.ranks:
            if child.worker in self._alive:
                child.kill()

    # Replies ----------------------------------------------------------------------------------

    def _handle(self, events: list[tuple[int, int]]) -> None:
        for fd, mask in events:
            child = self._by_socket.get(fd)
            if child is None:
                continue
            if mask & select.EPOLLOUT:
                child.flush()
            if mask & ~select.EPOLLOUT:
                frames = child.receive()
                if frames is None:
                    self._replies.unregister(fd)
                    child.kill()  # where it has not ended yet, it has closed its socket
                elif frames:
                    self._watcher.frames(child, frames)

    def lead(self) -> bool:
        """Makes the calling thread the one that reads replies; whether it is.

        It must :meth:`stop_leading`.
        """
        if not self._reading.acquire(blocking=False):
            return False  # another thread reads for all
        if self._closed:
            self._reading.release()
            return False
        self._led = True
        if not self._lent:
            self._lent = True
            self._house.modify(self._replies_fd, 0)
            os.eventfd_write(self._wake, 1)  # from now on it looks after the time
        return True

    def stop_leading(self) -> None:
        """Lets another thread lead; in a while the keeper reads again."""
        if self._full:
            self._hand_back()
        self._reading.release()

    def read_until(
        self,
        gate: threading.Lock,
        seconds: float,
        held: HeldInterrupts,
        seen: Callable[[], bool] | None = None,
    ) -> bool:
        """Reads replies until a lock is free.

        Args:
            gate: The lock; some reply will free it.
            seconds: How long to wait at most.
            held: Opened while this thread only waits.
            seen: Whether the reply need not be waited for, because what it will say
                is known.

        Returns:
            Whether this thread holds the lock now, or need not.
        """
        for _ in range(_LOOKS):
            if gate.acquire(blocking=False) or (seen is not None and seen()):
                return True
            events = self._replies.poll(0)
            if events:
                self._handle(events)
            else:
                os.sched_yield()
        deadline = time.monotonic() + seconds
        while not gate.acquire(blocking=False):
            left = deadline - time.monotonic()
            if left <= 0:
                return False
            held.open = True
            events = self._replies.poll(left)
            held.open = False
            self._handle(events)
        return True

    def follow(self, gate: threading.Lock, seconds: float, held: HeldInterrupts) -> bool:
        """Waits for a lock that the thread that reads will free."""
        held.open = True
        got = gate.acquire(timeout=seconds)
        held.open = False
        return got

    # The end ------------------------------------------------------------------------------------

    def end(self, goodbye: bytes, timeout: float) -> None:
        """Lets the ranks leave, or kills them after a moment; returns when all are gone.

        Args:
            goodbye: The frame that tells them.
            timeout: Seconds to wait at most.
        """
        self._goodbye = goodbye
        if not self._closed:
            with contextlib.suppress(OSError):
                os.eventfd_write(self._wake, 1)
        if self._keeper.ident is not None and self._keeper is not threading.current_thread():
            self._keeper.join(timeout)

    def _clean_up(self) -> None:
        # Whoever leads finds its lock free by now, and stops.
        os.eventfd_write(self._over, 1)
        with self._reading:
            self._closed = True
            self._close_descriptors()
        sweep_shared_memory(self._kvsname)

    def _close_descriptors(self) -> None:
        for child in self.ranks:
            child.close(keep_memory=self._failed)
        self._replies.close()
        self._house.close()
        os.close(self._wake)
        os.close(self._over)

    def disown(self) -> None:
        """Lets go of everything in a forked child, where the keeper does not live."""
        self._reading = threading.Lock()
        if not self._closed:
            self._closed = True
            self._close_descriptors()
