"""A session whose workers are child processes of this one."""

from __future__ import annotations

import contextlib
import errno
import importlib.util
import itertools
import os
import secrets
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

from disco_client.arguments import check_session
from disco_client.clock import monotonic
from disco_client.descriptors import describe_refusal
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
from disco_client.output import print_logs
from disco_client.outside_interrupts import OnInterrupt, check_on_interrupt
from disco_client.pb import node_pb2
from disco_client.reentry import is_of_system
from disco_client.session import Session
from disco_client.threads import limits
from disco_client.transport.base import Bound, ClientEnd, RankPlace, Welcome
from disco_client.transport.progress import Progress
from disco_client.waiting import AUTO, read_hang_report
from disco_client.wire.batch import OutgoingBatch
from disco_client.wire.codec import EncodedEnvelope, EncodedReply, EnvelopeKind, envelope
from disco_client.wire.framing import frame
from disco_client.wire.reports import Inspection, decode_report
from disco_client.wire.session_secrets import read_secrets
from disco_server.core.node import RankEnd
from disco_server.core.nodes import NodeShare
from disco_server.embedded.child_frames import Descriptors
from disco_server.embedded.children import Children
from disco_server.embedded.rank_child import RankChild
from disco_server.embedded.sender import Sender
from disco_server.embedded.shared_arrays import SharedArrays
from disco_server.ipc.arrays import FROM_RANKS
from disco_server.ipc.assignments import Assignments
from disco_server.ipc.framing import progress_in
from disco_server.ipc.process import fix_hashes, limit_threads
from disco_server.ipc.shares import encode_share
from disco_server.observe.rank_reports import Subject, cut_ranks, inspect_ranks
from disco_server.settings import HASH_SEED, check_system, cpu_cores

if TYPE_CHECKING:
    from disco_client.tracing.ring_cuts import Since

__all__ = ["ENTRYPOINT", "ProcessSession", "ProcessTransport"]


ENTRYPOINT = "disco_server.rank.process"
_RUNNER = "disco_server.embedded.entrypoint"
"""Runs the entrypoints of others."""

NODE = "local"
"""The name of the only node of such a session."""

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
        on_interrupt: What Ctrl-C in a call that waits ends: ``"wait"`` the wait, and the second
            time within a second also what the session executes; ``"session"`` both at once, as
            one wants of a notebook's cell. See :meth:`Session.interrupt`.
        secrets: Credentials for the workers' environment, as for :func:`connect`; else they have
            those of this process.

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

    def __init__(  # noqa: PLR0913  (all but three by name)
        self,
        num_workers: int,
        num_groups: int = 1,
        entrypoint: str = ENTRYPOINT,
        *,
        ccl: str | None = None,
        timeout: float = 60.0,
        logs: bool = True,
        hang_report: float | None = AUTO,
        on_interrupt: OnInterrupt = "wait",
        secrets: Mapping[str, str] | None = None,
    ) -> None:
        check_session(num_workers, num_groups, ccl, timeout)
        read_hang_report(hang_report)
        check_on_interrupt(on_interrupt)
        check_system("a ProcessSession")
        _check_entrypoint(entrypoint)
        _check_ccl(ccl)
        transport = ProcessTransport(
            *(num_workers, num_groups, entrypoint, ccl or "", timeout, read_secrets(secrets))
        )
        super().__init__(
            transport,
            log_sink=print_logs if logs else None,
            hang_report=hang_report,
            on_interrupt=on_interrupt,
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


def _assignments(
    session: int, start: node_pb2.StartRanks, brought: Mapping[str, str]
) -> Assignments:
    """What the ranks are told of their session; they run on one node, and may use everything."""
    count = start.num_workers
    share = NodeShare(NODE, tuple(range(count)), tuple(range(count)), (_DEVICE,) * count)
    start.nodes.append(encode_share(share, ""))
    everything = ("*",)  # as in the program, whose own they are
    rules = node_pb2.AssignRank(
        allow_modules=everything,
        allow_read=everything,
        allow_save=everything,
        allow_load=everything,
    )
    return Assignments(session, start, rules, brought)


def _command(entrypoint: str, num_workers: int, num_groups: int, worker: int) -> list[str]:
    """What Python is started with for a worker."""
    # Disco's own needs no preparation, which takes time where TVM is installed.
    program = [ENTRYPOINT] if entrypoint == ENTRYPOINT else [_RUNNER, entrypoint]
    return ["-m", *program, *map(str, (worker, num_workers, num_groups))]


class ProcessTransport(Bound):
    """Carries a session to child processes over sockets.

    Raises:
        WorkerLost: A worker process could not be started.
        SessionLost: The workers were not ready in time.
    """

    def __init__(
        self,
        num_workers: int,
        num_groups: int,
        entrypoint: str,
        ccl: str,
        timeout: float,
        brought: Mapping[str, str],
    ) -> None:
        self._session = secrets.randbits(64)
        self._name = f"processes-{next(_numbers)}"
        self._client: ClientEnd | None = None
        self._sender: Sender | None = None
        self._error: SessionError | None = None
        self._state_lock = make_lock()
        self._early: list[tuple[int, bool, list[str]]] = []
        self._ready = threading.Lock()
        self._ready.acquire()
        self._opened = Progress(num_workers, 0)
        start = node_pb2.StartRanks(
            session_name=self._name, num_workers=num_workers, num_groups=num_groups, ccl=ccl
        )
        self._children = Children(
            num_workers,
            command=partial(_command, entrypoint, num_workers, num_groups),
            environ=_environ(num_workers),
            session=self._session,
            name=self._name,
            watcher=self,
            assignment=_assignments(self._session, start, brought).framed,
        )
        self._arrays = SharedArrays(self._children.send_array, self._wait_for)
        try:
            self._start(num_groups, timeout)
        except BaseException:
            self.close(timeout)
            raise

    def _start(self, num_groups: int, timeout: float) -> None:
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
        places = (RankPlace(c.worker, NODE, c.pid, _DEVICE) for c in self._children.ranks.values())
        self._welcome = Welcome(self._session, self._name, tuple(places), num_groups=num_groups)

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

    def start(self, client: ClientEnd) -> None:
        """Begins to send what is issued and to deliver what is received."""
        self._children.frames.attend_to(lambda: client.unattended)
        with self._state_lock:
            self._client = client
            early, self._early = self._early, []
            error = self._error
        for worker, is_error, lines in early:
            client.printed(worker, NODE, is_error, lines)
        if error is not None:
            client.lost(error)
        self._sender = Sender(client, self._deliver, self._children.order)

    # Commands and replies -----------------------------------------------------------------

    def _deliver(self, batch: OutgoingBatch, asked: int | None) -> None:
        framed = frame(batch.encode().envelope(self._session))
        concerned, first = batch.concerns, asked or 0
        ranks = list(self._children.ranks.values())
        for child in (*ranks[first:], *ranks[:first]):
            if child.worker == asked:
                child.send_asking(framed)
            elif concerned is None or child.worker in concerned:
                child.sender.send(framed)
            else:
                # It only has to count these commands, which can wait.
                child.sender.hold(framed)

    @property
    def entered(self) -> bool:
        """Whether the calling thread is in the middle of sending or reading."""
        if self._children.frames.reader.entered:
            return True
        return self._sender is not None and self._sender.entered()

    def ask(self, worker: int, waiter: threading.Lock) -> None:
        """Sends what was issued; the worker frees a lock when it has executed all of it."""
        self._flush(worker, waiter)

    def _flush(
        self, ask: int | None = None, waiter: threading.Lock | None = None
    ) -> Callable[[], bool] | None:
        """Sends what was issued, and a question; returns a way to see its answer early."""
        asked = seq = 0
        if self._sender is not None:
            asked = self._sender.flush(ask)
            seq = asked or self._sender.delivered
        if ask is None or waiter is None:
            return None
        child = self._children.ranks[ask]
        child.ask(waiter, seq, asked=bool(asked))
        if self._error is not None:
            child.wake_waiters()
        return partial(self._sees, child, seq)

    def _sees(self, child: RankChild, seq: int) -> bool:
        """Whether a rank shows that it has executed a command; its reply would say no more."""
        if not child.shows(seq):
            return False
        if self._client is not None:
            self._client.acknowledge(child.worker, seq)
        return True

    def flush(self) -> None:
        """Sends what was issued."""
        self._flush()

    def send(self) -> None:
        """Sends what was issued; the keeper reads the answer if no thread does."""
        self.flush()
        self._children.frames.reader.attend()

    def wait(self, waiter: threading.Lock, seconds: float, ask: int | None = None) -> bool:
        """Sends what was issued, and reads replies until a lock is free."""
        return self._children.frames.reader.wait(waiter, seconds, lambda: self._flush(ask, waiter))

    def _wait_for(self, waiter: threading.Lock, seconds: float) -> bool:
        return self.wait(waiter, seconds)

    def take(self, child: RankChild, raw: bytes) -> Descriptors | None:
        """Handles a frame of a rank; see :class:`FrameTaker`."""
        client, seq = self._client, progress_in(raw)
        if seq is not None:
            if client is not None:
                client.acknowledge(child.worker, seq)
            child.executed(seq)
            return None
        received = EncodedEnvelope.FromString(raw)
        if received.kind == EnvelopeKind.REPLY and client is not None:
            client.reply(child.worker, EncodedReply.FromString(received.payload))
            return None
        return self._arrays.receive(child, raw, received) if received.kind in FROM_RANKS else ()

    def take_once(self, child: RankChild, raw: bytes, fds: Descriptors) -> None:
        """Handles a frame of which that must not be repeated."""
        received = EncodedEnvelope.FromString(raw)
        if received.kind == EnvelopeKind.ARRAY_BACK:
            self._arrays.take_back(child.worker, received, fds)
        else:
            self._children.says(child.worker, received.kind)

    def ready(self) -> None:
        """Handles that every rank is ready for commands."""
        with contextlib.suppress(RuntimeError):  # nobody waits for it any more
            self._ready.release()

    def opens(self, worker: int, times: int) -> None:
        """Lets the other ranks open their communicators too; once all do, a time limit runs."""
        opened, children = self._opened, self._children
        if times > opened.fastest:
            kind, session = EnvelopeKind.OPEN_CCL, self._session
            framed = frame(envelope(kind, session=session, worker=worker, first_seq=times))
            for child in children.ranks.values():
                if child.worker != worker:
                    child.sender.send(framed)
        if opened.note(worker, times):
            children.node.all_open(opened.slowest, monotonic())

    def rank_ended(self, worker: int, end: RankEnd, *, at_start: bool) -> None:
        """Handles that a rank has ended, and with it the session."""
        how = end.cause or describe_exit(end.status)
        text = describe_worker_end(worker, how, self._name, NODE, at_start=at_start)
        self._children.fail(
            worker_lost(text, worker=worker, node=NODE, exit_status=end.status, output=end.output)
        )

    def output(self, worker: int, is_error: bool, lines: list[str]) -> None:
        """Handles what a rank has printed."""
        with self._state_lock:
            client = self._client
            if client is None:
                self._early.append((worker, is_error, lines))
        if client is not None:
            client.printed(worker, NODE, is_error, lines)

    def ended(self, error: SessionError) -> None:
        """Handles the error that ended the session."""
        with self._state_lock:
            self._error = self._error or error
            client = self._client
        if client is not None:
            client.lost(error)
        else:
            self.ready()
        self._arrays.end()
        for child in list(self._children.ranks.values()):
            child.wake_waiters()

    def interrupt(self, until: int, workers: Sequence[int], *, force: bool = False) -> bool:
        """Interrupts commands, or ends the processes of these workers."""
        for child in self._children.ranks.values():
            if not force:
                child.interrupt(until, until if child.worker in workers else 0)
            elif child.worker in workers:
                child.end_interrupted()
        return True

    def cancel(self, commands: Sequence[tuple[int, int]]) -> None:
        """Cancels commands."""
        for child in self._children.ranks.values():
            child.cancel(commands)

    def check_alive(self) -> None:
        """Raises the session's error, once it has one."""
        if self._error is not None:
            raise self._error

    def inspect(
        self, *, stacks: bool, flights: bool, since: Sequence[Since] | None = None
    ) -> Inspection:
        """Reports what the ranks do, or did before they ended."""
        ranks = self._children.ranks.values()
        over = self._error is not None
        subjects = [Subject(c.worker, NODE, c.pid, c.memory, ended=over) for c in ranks]
        if since is None:
            reports = inspect_ranks(subjects, stacks=stacks, flights=flights)
        else:
            self._children.followed = True
            reports = cut_ranks(subjects, since)
        found = tuple(map(decode_report, reports))
        return Inspection(self._session, self._name, len(ranks), found)

    # Arrays -------------------------------------------------------------------------------

    def upload(self, ticket: int, worker: int, data: memoryview) -> None:
        """Sends an array's bytes to a worker; returns when they may be changed."""
        self.check_alive()
        self._arrays.upload(ticket, worker, data)

    def give_up(self, uploads: Sequence[tuple[int, int]], why: str = "") -> None:
        """Announces that arrays, by ticket and worker, or the rest of them will not come."""
        for ticket, worker in uploads:
            self._arrays.give_up(ticket, worker, why)

    def decline(self, downloads: Sequence[tuple[int, int]]) -> None:
        """Announces that arrays, by ticket and worker, will not be downloaded any more."""
        for ticket, worker in downloads:
            self._arrays.decline(ticket, worker)

    def download(self, ticket: int, worker: int, into: memoryview) -> None:
        """Fills a buffer with the array that a worker offered."""
        try:
            self._arrays.download(ticket, worker, into)
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
        self._children.end(timeout)
        self.ended(SessionClosed(f"session {self._name!r} was shut down"))
        self._arrays.close()
