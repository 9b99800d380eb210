"""A session whose workers are child processes of this one."""

from __future__ import annotations

import importlib.util
import itertools
import os
import secrets
import select
import sys
import threading
import time
from collections.abc import Callable, Sequence

from google.protobuf.message import DecodeError

from disco_client.arguments import check_session
from disco_client.errors import ConfigError, SessionClosed, SessionError, SessionLost
from disco_client.output import print_logs
from disco_client.pb import node_pb2
from disco_client.session import Session
from disco_client.transport.base import Bound, Events, OutgoingBatch, RankPlace, Welcome
from disco_client.waiting import AUTO, read_hang_report
from disco_client.wire.codec import EncodedEnvelope, Kind, envelope
from disco_client.wire.flight_cuts import Since
from disco_client.wire.inspection import Inspection
from disco_server.channels.frames import frame, progress_in
from disco_server.channels.growing import FROM_RANKS
from disco_server.embedded.children import Children
from disco_server.embedded.forks import disown_in_children, not_here
from disco_server.embedded.interrupts import HeldInterrupts
from disco_server.embedded.rank_child import RankChild
from disco_server.embedded.sender import Sender
from disco_server.embedded.shared_arrays import SharedArrays
from disco_server.observe.inspect import Subject, cut_ranks, inspect_ranks

__all__ = ["ENTRYPOINT", "ProcessSession", "ProcessTransport"]

ENTRYPOINT = "disco_server.worker.rank_process"
NODE = "local"
_DEVICE = "cpu"
_numbers = itertools.count(1)


class ProcessSession(Session):
    """A session whose workers are child processes; see :class:`Session`.

    The processes end with this one, however it ends. Host arrays cross shared
    memory; collectives go through MPI.

    Args:
        num_workers: How many workers.
        num_groups: Into how many equal, consecutive groups they are divided.
        entrypoint: The module that each process runs, as ``python -m`` takes it. A
            module of one's own may register functions, and then calls
            ``disco_server.worker.rank_process.main()``.
        ccl: The collective library; ``"mpi"`` is the one that processes on CPUs use.
        timeout: Seconds in which all workers must be ready.
        logs: Whether what workers print is written to standard error, each line
            with its rank.
        hang_report: After how many seconds a call that waits prints what the ranks do
            to standard error, once; 0 or None for never. The default is what
            ``DISCO_HANG_REPORT_S`` says, else 30.

    Raises:
        ConfigError: An argument is wrong, or this system cannot watch processes.
        WorkerLost: A worker process could not be started.
        SessionLost: The workers were not ready in time.
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
        _check_entrypoint(entrypoint)
        _check_ccl(ccl)
        transport = ProcessTransport(num_workers, num_groups, entrypoint, ccl or "", timeout)
        super().__init__(
            transport,
            num_groups=num_groups,
            ccl=ccl,
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
    if not hasattr(os, "pidfd_open") or not hasattr(select, "epoll"):
        msg = f"a ProcessSession needs Linux, this is {sys.platform}; use 'disco local' here"
        raise ConfigError(msg)
    try:
        found = isinstance(entrypoint, str) and importlib.util.find_spec(entrypoint) is not None
    except (ImportError, ValueError):
        found = False
    if not found:
        msg = f"expected entrypoint to name a module that can be run, got {entrypoint!r}"
        raise ConfigError(msg)


def _environ() -> dict[str, str]:
    """What the workers inherit: all of it, and where this program finds its modules."""
    path = os.pathsep.join(part or os.getcwd() for part in sys.path)  # noqa: PTH109  (as text)
    return {**os.environ, "PYTHONPATH": path, "PYTHONUNBUFFERED": "1"}


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
        self._events: Events | None = None
        self._sender: Sender | None = None
        self._error: SessionError | None = None
        self._state_lock = threading.Lock()
        self._early: list[tuple[int, bool, list[str]]] = []
        self._unready = num_workers
        self._ready = threading.Lock()
        self._ready.acquire()
        self._children = Children(
            num_workers,
            entrypoint=entrypoint,
            environ=_environ(),
            session=self._session,
            name=self._name,
            node=NODE,
            watcher=self,
            begin=self._assign,
        )
        self._arrays = SharedArrays(self._session, self._children, self._wait_gate)
        try:
            self._start(timeout)
        except BaseException:
            self.close(timeout)
            raise
        disown_in_children(self)

    def _start(self, timeout: float) -> None:
        deadline = time.monotonic() + timeout
        try:
            self._children.start()
        except OSError as error:
            msg = f"no worker process could be started: {error}"
            raise SessionLost(msg) from error
        if not self._wait_gate(self._ready, deadline - time.monotonic()):
            late = [child.worker for child in self._children.ranks if not child.assigned]
            msg = f"workers {late} were not ready within {timeout:g} s"
            raise SessionLost(msg)
        self.check_alive()
        places = (RankPlace(c.worker, NODE, c.pid, _DEVICE) for c in self._children.ranks)
        self._welcome = Welcome(self._session, self._name, tuple(places))

    def _assign(self, worker: int) -> bytes:
        assign = node_pb2.AssignRank(
            worker=worker,
            num_workers=self._num_workers,
            num_groups=self._num_groups,
            ccl=self._ccl,
            node=NODE,
            device=_DEVICE,
            session_name=self._name,
            allow_modules=("*",),
            allow_read=("*",),
            allow_save=("*",),
            allow_load=("*",),
            local_workers=self._num_workers,
            local_rank=worker,
        )
        return frame(envelope(Kind.ASSIGN, assign.SerializeToString(), session=self._session))

    @property
    def welcome(self) -> Welcome:
        """Which session this is, and where its workers run."""
        return self._welcome

    @property
    def pump(self) -> ProcessTransport:
        """Lets waiting threads send and receive by themselves."""
        return self

    def start(self, events: Events) -> None:
        """Begins to send what is issued and to deliver what comes."""
        with self._state_lock:
            self._events = events
            early, self._early = self._early, []
            error = self._error
        for worker, is_error, lines in early:
            events.log(worker, NODE, is_error, lines)
        if error is not None:
            events.lost(error)
        self._sender = Sender(events, self._deliver)

    # Commands and replies -----------------------------------------------------------------

    def _deliver(self, batch: OutgoingBatch, first: int) -> None:
        framed = frame(batch.envelope())
        concerned = batch.concerns
        ranks = self._children.ranks
        for child in (*ranks[first:], *ranks[:first]):
            if concerned is None or child.worker == concerned:
                child.send(framed)
            else:
                # It only has to count these commands, which can wait.
                child.hold(framed)

    def ask(self, worker: int, gate: threading.Lock) -> None:
        """Sends what was issued; the worker frees a lock when it has executed all of it."""
        with HeldInterrupts():
            self._flush(worker, gate)

    def _flush(
        self, ask: int | None = None, gate: threading.Lock | None = None
    ) -> Callable[[], bool] | None:
        """Sends what was issued, and a question; returns a way to see its answer early."""
        delivered = 0
        if self._sender is not None:
            self._sender.flush(ask or 0)
            delivered = self._sender.delivered
        if ask is None or gate is None:
            return None
        child = self._children.ranks[ask]
        child.ask(gate)
        if self._error is not None:
            child.free_gates()
        return lambda: child.shows(delivered)

    def wait(self, gate: threading.Lock, seconds: float, ask: int | None = None) -> bool:
        """Sends what was issued, and reads replies until a lock is free."""
        with HeldInterrupts() as held:
            try:
                # The keeper would wake for the reply if this thread began to lead later.
                if not self._children.lead():
                    self._flush(ask, gate)
                    return self._children.follow(gate, seconds, held)
                try:
                    seen = self._flush(ask, gate)
                    return self._children.read_until(gate, seconds, held, seen)
                finally:
                    self._children.stop_leading()
            except BaseException as error:
                if not (held.open or held.delivered):
                    self._tear(error)
                raise

    def _wait_gate(self, gate: threading.Lock, seconds: float) -> bool:
        return self.wait(gate, seconds)

    def _tear(self, error: BaseException) -> None:
        """Ends the session: an exception came while its stream was half written or read."""
        msg = f"session {self._name!r} was interrupted in the middle of its work: {error!r}"
        self._children.fail(SessionLost(msg))

    def frames(self, child: RankChild, frames: list[bytes]) -> None:
        """Takes what came from a rank's socket."""
        events = self._events
        for raw in frames:
            seq = progress_in(raw)
            if seq is not None:
                if events is not None:
                    events.acknowledge(child.worker, seq)
                child.answered()
                continue
            child.heard += 1
            try:
                self._receive(child, raw, EncodedEnvelope.FromString(raw))
            except (DecodeError, IndexError) as error:
                child.end_because(f"was ended because it sent what is no message ({error})")
                return

    def _receive(self, child: RankChild, raw: bytes, received: EncodedEnvelope) -> None:
        kind, events = received.kind, self._events
        if kind == Kind.REPLY and events is not None:
            events.reply(child.worker, received.payload)
        elif kind in FROM_RANKS:
            self._arrays.receive(child, received)
        elif kind == Kind.CCL_OPENED:
            self._children.opening.ends(child.worker)
        elif kind == Kind.OPEN_CCL:
            self._children.opens(child.worker)
            for other in self._children.ranks:
                if other is not child:
                    other.send(frame(raw))
        elif kind == Kind.ASSIGNED and not child.assigned:
            child.assigned = True
            self._unready -= 1
            if not self._unready:
                self._ready.release()

    def output(self, worker: int, is_error: bool, lines: list[str]) -> None:
        """Takes what a rank has printed."""
        with self._state_lock:
            events = self._events
            if events is None:
                self._early.append((worker, is_error, lines))
        if events is not None:
            events.log(worker, NODE, is_error, lines)

    def ended(self, error: SessionError) -> None:
        """Takes the error that ended the session."""
        with self._state_lock:
            self._error = self._error or error
            events = self._events
        if events is not None:
            events.lost(error)
        elif self._unready:
            self._unready = 0
            self._ready.release()
        self._arrays.end()
        for child in self._children.ranks:
            child.free_gates()

    def check_alive(self) -> None:
        """Raises the session's error, once it has one."""
        if self._error is not None:
            raise self._error

    def inspect(
        self, *, stacks: bool, flights: bool, since: Sequence[Since] | None = None
    ) -> Inspection:
        """Finds out what the ranks do, or did before they ended."""
        ranks = self._children.ranks
        over = self._error is not None
        subjects = [Subject(c.worker, NODE, c.pid, c.memory, ended=over) for c in ranks]
        if since is None:
            reports = inspect_ranks(subjects, stacks=stacks, flights=flights)
        else:
            reports = cut_ranks(subjects, since)
        return Inspection(self._session, self._name, self._num_workers, tuple(reports))

    # Arrays -------------------------------------------------------------------------------

    def upload(self, ticket: int, worker: int, data: memoryview) -> None:
        """Gives an array's bytes to a worker; returns when they may be changed."""
        self.check_alive()
        self._arrays.upload(ticket, self._children.ranks[worker], data)

    def give_up(self, uploads: Sequence[tuple[int, int]]) -> None:
        """Says of arrays, by ticket and worker, that no upload of them will begin."""
        for ticket, worker in uploads:
            self._arrays.give_up(ticket, self._children.ranks[worker])

    def download(self, ticket: int, worker: int, into: memoryview) -> None:
        """Fills a buffer with the array that a worker offered."""
        try:
            self._arrays.download(ticket, self._children.ranks[worker], into)
        except OSError as error:
            self.check_alive()
            msg = f"the download of an array failed: {error}"
            raise SessionError(msg) from None

    # The end ------------------------------------------------------------------------------

    def close(self, timeout: float) -> None:
        """Waits until what was sent has left, then ends the workers; idempotent."""
        if self._sender is not None:
            self._sender.join(timeout)
        self._children.end(frame(envelope(Kind.END_SESSION, session=self._session)), timeout)
        self.ended(SessionClosed(f"session {self._name!r} was shut down"))
        self._arrays.close()

    def disown(self) -> None:
        """Lets go of the workers, which belong to the process that forked this one."""
        self._state_lock = threading.Lock()
        self._sender = None
        self._error = not_here(self._name)
        self._children.disown()
        if self._events is not None:
            self._events.disown(self._error)
