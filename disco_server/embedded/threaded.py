"""A session whose workers are threads of this process."""

from __future__ import annotations

import itertools
import os
import secrets
import threading
import time
from collections.abc import Sequence

from disco_client.arguments import check_session
from disco_client.errors import ConfigError, SessionClosed, SessionError, WorkerLost, worker_lost
from disco_client.output import print_logs
from disco_client.session import Session
from disco_client.transport.base import Bound, Events, OutgoingBatch, RankPlace, Welcome
from disco_client.waiting import AUTO, read_hang_report
from disco_client.wire.codec import Kind
from disco_client.wire.flight_cuts import Since
from disco_client.wire.inspection import Inspection
from disco_client.wire.values import Device
from disco_server.collectives.base import Communicator
from disco_server.collectives.local import LocalWorld
from disco_server.collectives.select import default_library, open_communicator
from disco_server.embedded import output
from disco_server.embedded.forks import disown_in_children, not_here
from disco_server.embedded.interrupts import HeldInterrupts
from disco_server.embedded.rank_thread import RankThread
from disco_server.embedded.sender import Sender
from disco_server.modules.base import LoadRules
from disco_server.runtime.context import Worker
from disco_server.runtime.worker_device import WorkerDevice

__all__ = ["ThreadTransport", "ThreadedSession"]

NODE = "local"
_END_GRACE_S = 0.5
_numbers = itertools.count(1)


class ThreadedSession(Session):
    """A session whose workers are threads of this process; see :class:`Session`.

    Arrays are shared, not sent: a host array costs one copy, and
    ``debug_get_from_remote`` returns the very object that the worker holds, be it
    a function or anything else. Collectives move data in memory (``local``).

    Args:
        num_workers: How many workers.
        num_groups: Into how many equal, consecutive groups they are divided.
        ccl: The collective library; ``"local"`` is the one that threads can use.
        logs: Whether what workers print is written to standard error, each line
            with its rank.
        hang_report: After how many seconds a call that waits prints what the ranks do
            to standard error, once; 0 or None for never. The default is what
            ``DISCO_HANG_REPORT_S`` says, else 30.

    Raises:
        ConfigError: An argument is wrong.
    """

    def __init__(
        self,
        num_workers: int,
        num_groups: int = 1,
        *,
        ccl: str | None = None,
        logs: bool = True,
        hang_report: float | None = AUTO,
    ) -> None:
        check_session(num_workers, num_groups, ccl, 1.0)
        read_hang_report(hang_report)
        if ccl not in (None, "local"):
            msg = (
                f"the collective library {ccl!r} cannot be chosen here: leave ccl out or use "
                "'local'; for GPUs call session.init_ccl('nccl', 0, 1, ...) with one for each "
                "worker, and for 'mpi' take a ProcessSession, which has a process for each"
            )
            raise ConfigError(msg)
        transport = ThreadTransport(num_workers, num_groups, ccl or "")
        super().__init__(
            transport,
            num_groups=num_groups,
            ccl=ccl,
            log_sink=print_logs if logs else None,
            hang_report=hang_report,
        )


class ThreadTransport(Bound):
    """Carries a session to threads of this process."""

    def __init__(self, num_workers: int, num_groups: int, ccl: str) -> None:
        name = f"threads-{next(_numbers)}"
        places = tuple(RankPlace(w, NODE, os.getpid(), "cpu") for w in range(num_workers))
        self._welcome = Welcome(secrets.randbits(64), name, places)
        self._num_groups = num_groups
        self._ccl = ccl
        self._world = LocalWorld(num_workers, num_groups)
        self._ranks: list[RankThread] = []
        self._events: Events | None = None
        self._sender: Sender | None = None
        self._end_lock = threading.Lock()
        self._over = False
        self._error: SessionError | None = None

    @property
    def welcome(self) -> Welcome:
        """Which session this is, and where its workers run."""
        return self._welcome

    @property
    def pump(self) -> ThreadTransport:
        """Lets waiting threads send by themselves."""
        return self

    def start(self, events: Events) -> None:
        """Begins to execute what is issued."""
        self._events = events
        count = len(self._welcome.ranks)
        workers = [self._worker(w, count) for w in range(count)]
        self._ranks = [RankThread(worker, events, self._rank_died) for worker in workers]
        output.redirect()
        for rank in self._ranks:
            rank.start()
        self._sender = Sender(events, self._deliver)
        disown_in_children(self)

    def _worker(self, worker_id: int, count: int) -> Worker:
        return Worker(
            worker_id,
            count,
            self._num_groups,
            open_communicator=self._open_communicator,
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
            loading=LoadRules(("*",)),
        )

    def _open_communicator(self, worker: Worker, ccl: str) -> Communicator:
        # A rank that failed before its first collective would not come by itself.
        for worker_id, rank in enumerate(self._ranks):
            if worker_id != worker.worker_id:
                rank.give(Kind.OPEN_CCL)
        return open_communicator(
            ccl,
            worker_id=worker.worker_id,
            num_workers=worker.num_workers,
            num_groups=worker.num_groups,
            world=self._world,
        )

    def _deliver(self, batch: OutgoingBatch, first: int) -> None:
        for rank in (*self._ranks[first:], *self._ranks[:first]):
            rank.give(batch)

    # Waiting ----------------------------------------------------------------------------

    def flush(self) -> None:
        """Hands everything that was issued to the workers."""
        if self._sender is not None:
            with HeldInterrupts():
                self._sender.flush()

    def ask(self, worker: int, gate: threading.Lock) -> None:
        """Sends what was issued; the worker frees a lock when it has executed all of it."""
        with HeldInterrupts():
            if self._sender is not None:
                self._sender.flush(worker)
            self._ranks[worker].give(gate)
        if self._over:
            self._ranks[worker].free_gates()

    def wait(self, gate: threading.Lock, seconds: float, ask: int | None = None) -> bool:
        """Sends what was issued, and waits up to ``seconds`` for a lock to be free."""
        if ask is None:
            self.flush()
        else:
            self.ask(ask, gate)
        return gate.acquire(timeout=seconds)

    def check_alive(self) -> None:
        """Raises the session's error, once it has one."""
        if self._error is not None:
            raise self._error

    def inspect(
        self, *, stacks: bool, flights: bool, since: Sequence[Since] | None = None
    ) -> Inspection:
        """Finds out what the workers do, or did before they ended."""
        if since is None:
            reports = [rank.report(stacks=stacks, flights=flights) for rank in self._ranks]
        else:
            reports = [rank.cut(since) for rank in self._ranks]
        welcome = self._welcome
        return Inspection(welcome.session, welcome.name, len(welcome.ranks), tuple(reports))

    # Arrays -----------------------------------------------------------------------------

    def upload(self, ticket: int, worker: int, data: memoryview) -> None:
        """Gives an array's bytes to a worker; returns when they may be changed."""
        loan = self._ranks[worker].loans.lend(ticket, data)
        try:
            self.flush()
            loan.await_return()
        except BaseException:
            loan.break_off()
            raise

    def give_up(self, uploads: Sequence[tuple[int, int]]) -> None:
        """Says of arrays, by ticket and worker, that no upload of them will begin."""
        for ticket, worker in uploads:
            self._ranks[worker].loans.lend(ticket, memoryview(b"")).break_off()

    def download(self, ticket: int, worker: int, into: memoryview) -> None:
        """Refuses: answers are objects here, so no array is ever offered."""
        msg = f"worker {worker} offers no array {ticket} of {len(into)} bytes"
        raise SessionError(msg)

    # The end ------------------------------------------------------------------------------

    def _rank_died(self, error: WorkerLost) -> None:
        self._finish(error)

    def _library_lost(self, worker: int, why: str) -> None:
        """Ends the session: other threads may be in a call that never returns."""
        text = f"{why}; session {self._welcome.name!r} is over"
        self._finish(worker_lost(text, worker=worker, node=NODE, exit_status=1, output=[]))

    def close(self, timeout: float) -> None:
        """Lets the workers execute what is left, for a moment, then ends them; idempotent."""
        del timeout  # threads that do not leave at once cannot be waited for
        if self._sender is not None and not self._over:
            self._sender.join(_END_GRACE_S)
        deadline = time.monotonic() + _END_GRACE_S
        for rank in self._ranks:
            rank.give(None)
        for rank in self._ranks:
            rank.join(deadline - time.monotonic())
        self._finish(SessionClosed(f"session {self._welcome.name!r} was shut down"))
        deadline = time.monotonic() + _END_GRACE_S
        for rank in self._ranks:
            rank.join(deadline - time.monotonic())

    def _finish(self, error: SessionError) -> None:
        with self._end_lock:
            if self._over:
                return
            self._over = True
        self._error = error
        if self._events is not None:
            self._events.lost(error)
            output.restore()
        self._world.close()
        for rank in self._ranks:
            rank.end()

    def disown(self) -> None:
        """Lets go of the workers, which are threads of the process that forked this one."""
        self._over = True
        self._ranks = []
        self._sender = None
        if self._events is not None:
            self._error = not_here(self._welcome.name)
            self._events.disown(self._error)
