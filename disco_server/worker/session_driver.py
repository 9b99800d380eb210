"""Runs one session's ranks on this node: carries out what its :class:`NodeSession` decides."""

from __future__ import annotations

import asyncio
import math
import signal
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from disco_client.clock import monotonic
from disco_client.descriptors import Descriptor
from disco_client.errors import describe_exit
from disco_client.output import logger_of
from disco_client.pb import controller_pb2, node_pb2
from disco_client.wire.arrays import TICKETS_SHIFT
from disco_client.wire.codec import EncodedEnvelope, EnvelopeKind, envelope
from disco_client.wire.framing import frame
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
    SayGoodbye,
    ServePmi,
    StartRank,
    TellExit,
    TellOpening,
    TellRanksReady,
)
from disco_server.core.pmi import ClosePmi, MeetNodes, NotePmi, SendPmi
from disco_server.ipc.arrays import FROM_RANKS
from disco_server.ipc.assignments import Assignments
from disco_server.ipc.framing import FrameReader
from disco_server.observe.logs import BoundLogger, bind
from disco_server.settings import INIT_TIMEOUT_S
from disco_server.worker.fork_server import CannotStart
from disco_server.worker.kept_replies import KeptReplies
from disco_server.worker.output import SessionOutput
from disco_server.worker.pending_arrays import PendingArrays
from disco_server.worker.rank_audit import RankAudit
from disco_server.worker.rank_keys import KEY_REQUESTS, RankKeys
from disco_server.worker.rank_questions import RankQuestions
from disco_server.worker.rank_spans import RankSpans

if TYPE_CHECKING:
    from disco_server.worker.counters import NodeCounters
    from disco_server.worker.environment import WorkFolders
    from disco_server.worker.fork_server import ForkServer, Keeper
    from disco_server.worker.rank_handle import RankHandle

__all__ = ["NodeServices", "SessionDriver", "spawn"]

_logger = logger_of("disco.worker")
_START_LIMIT_S = 60.0
_NO_PROCESS = 127
"""The exit status of what could not even be started, as shells have it."""


def spawn(work: Awaitable[None], tasks: set[asyncio.Task[Any]]) -> asyncio.Task[None]:
    """Does something in a task, which is one of a set until it is over; logs its failure."""

    async def run() -> None:
        try:
            await work
        except asyncio.CancelledError:
            raise
        except Exception:
            _logger.exception("a task of the node failed")

    task = asyncio.ensure_future(run())
    tasks.add(task)
    task.add_done_callback(tasks.discard)
    return task


@dataclass(frozen=True, slots=True)
class NodeServices:
    """What every session on a node uses.

    Attributes:
        node: This node's name.
        rules: What sessions may do here: the fields that are the same for all ranks.
        max_array_bytes: How large an array may be that a client uploads.
        folders: Makes the folders of ranks.
        fork_server: Starts ranks.
        post: Sends an encoded envelope of a ``session`` to the controller; with
            ``droppable`` only if that is not too slow. Returns whether it did.
        counters: What is counted for this node's metrics.
    """

    node: str
    rules: node_pb2.AssignRank
    max_array_bytes: int
    folders: WorkFolders
    fork_server: ForkServer
    post: Callable[..., bool]
    counters: NodeCounters


@dataclass(frozen=True, slots=True)
class _RankEnd:
    """How a rank ended: its exit status, the end of its output, and why, if that is known."""

    status: int
    output: tuple[str, ...]
    cause: str = ""


class SessionDriver:
    """One session on this node; used from the event loop only.

    Args:
        session: Its id.
        start: The controller's request to start it.
        services: What it uses.

    Attributes:
        session: Its id.
        start: The controller's request to start it.
        share: This node's ranks.
        log: Names the session in each line.
        node: Decides what happens.
        ranks: Its processes here.
        arrays: The arrays in transfer between its client and its ranks here.
        questions: What its ranks are asked themselves.
        received: The newest command received; batches are taken in order and once.
        tasks: The tasks that work for it, and end with it.
        began: When it began, by the monotonic clock.

    Raises:
        ConnectionError: The request has no ranks for this node.
    """

    def __init__(self, session: int, start: node_pb2.StartRanks, services: NodeServices) -> None:
        self.session, self.start = session, start
        self._services = services
        self._assignments = Assignments(session, start, services.rules)
        self.share = self._assignments.share
        self.node = NodeSession(
            self.share.workers,
            self._assignments.machines,
            kvsname(session),
            start_limit_s=_START_LIMIT_S,
            open_limit_s=INIT_TIMEOUT_S.value(),
            lease_s=start.lease_s,
        )
        self._spans = RankSpans(session, start, self.share)
        log = bind(_logger, session=start.session_name, node=services.node)
        self.log = bind(log, **self._spans.ids)
        self.ranks: dict[int, RankHandle] = {}
        self.arrays = PendingArrays(
            self.ranks.keys(), self._send_array, start.lease_s, services.max_array_bytes
        )
        self.questions = RankQuestions()
        self._replies = KeptReplies()
        self._audit = RankAudit(start, services.node)
        self._keys = RankKeys(
            session, start.node_index, len(start.nodes), self._post, self._send, services.counters
        )
        # Ranks may print faster than the controller takes it, or while there is none.
        self._output = SessionOutput(
            session, services.node, self.log_of, lambda raw: self._post(raw, droppable=True)
        )
        self._keeper: Keeper | None = None
        self._work_dirs: dict[int, str] = {}
        self._ends: dict[int, _RankEnd] = {}
        self._exits: list[bytes] = []
        self.received = 0
        self._gap_told = False
        self.tasks: set[asyncio.Task[Any]] = set()
        self.began = monotonic()
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._starting: asyncio.Task[None]
        self._gone = asyncio.Event()

    async def run(self) -> None:
        """Starts the ranks; returns when nothing is left of the session here."""
        self._apply(self.node.start())
        await self._gone.wait()
        await self._release()

    def end(self) -> None:
        """Ends the ranks; :meth:`run` returns then."""
        self._apply(self.node.end(self._loop.time()))

    # What the session's object decides ------------------------------------------------------

    def _apply(self, effects: Iterable[Effect]) -> None:
        for effect in effects:
            self._do(effect)
        self._set_timer()

    def _set_timer(self) -> None:
        due = self.node.wake_at
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_at(due, self._wake) if due < math.inf else None

    def _wake(self) -> None:
        self._apply(self.node.time_passed(self._loop.time()))

    def _do(self, effect: Effect) -> None:  # noqa: C901, PLR0912  (a table)
        match effect:
            case StartRank(worker):
                self._starting = spawn(self._start_rank(worker), self.tasks)
            case CancelStart():
                self._starting.cancel()
            case AssignRank(worker):
                self._send(worker, self._assignments.framed(worker, self._work_dirs[worker]))
            case ServePmi():
                for worker, handle in self.ranks.items():
                    handle.serve_pmi(partial(self._pmi_said, worker))
            case SendPmi(worker, data):
                self.ranks[worker].send_pmi(data)
            case ClosePmi(worker):
                self.ranks[worker].close_pmi()
            case MeetNodes(name, puts):
                spawn(self._meet_nodes(name, puts), self.tasks)
            case NotePmi(worker, why):
                self.log_of(worker).debug("MPI of rank %d: %s", worker, why)
            case TellRanksReady():
                ready = node_pb2.RanksReady(ranks=self._rank_infos())
                self._tell(EnvelopeKind.RANKS_READY, ready.SerializeToString())
                self.log.info("ranks %s run on %s", list(self.ranks), self._services.node)
            case TellOpening(worker, times):
                self._tell_opening(worker, times)
            case FindHung(attempt, workers):
                stopped = [worker for worker in workers if self.ranks[worker].is_stopped]
                self._apply(self.node.hung(attempt, stopped))
            case EndRank(worker, why):
                self.log_of(worker, self.seq_of(worker)).warning("worker %d %s", worker, why)
                self.ranks[worker].end_because(why)
            case TellExit(worker, at_start):
                self._tell_exit(worker, self._ends[worker], at_start=at_start)
            case EndOrphan():
                self.log.warning("no controller came back for the session; its ranks end")
                self.end()
            case SayGoodbye():
                self._send_all(frame(envelope(EnvelopeKind.END_SESSION, session=self.session)))
            case KillRanks(workers, again):
                self._kill(workers, again=again)
            case AllGone():
                self._gone.set()

    # Starting -------------------------------------------------------------------------------

    async def _start_rank(self, worker: int) -> None:
        services = self._services
        try:
            if self._keeper is None:
                self._keeper = await services.fork_server.keeper(self.session)
            self._work_dirs[worker] = services.folders.make(self.session, worker)
            # A rank with a GPU starts in an interpreter that nothing was loaded into.
            is_fresh = self._assignments.device_of(worker) != "cpu"
            handle = await self._keeper.start_rank(fresh=is_fresh)
        except CannotStart as error:
            self._not_started(worker, _RankEnd(error.status, tuple(error.output)))
        except OSError as error:
            why = f"no process could be started: {error}"
            self._not_started(worker, _RankEnd(_NO_PROCESS, (why,)))
        else:
            self._adopt(worker, handle)
            self._apply(self.node.started(worker, self._loop.time()))

    def _not_started(self, worker: int, end: _RankEnd) -> None:
        self._ends[worker] = end
        self._apply(self.node.not_started(worker))

    def _adopt(self, worker: int, handle: RankHandle) -> None:
        self.ranks[worker] = handle
        self._spans.got_process(worker, handle.pid)
        handle.local_workers = len(self._assignments.local_workers)
        handle.on_envelope = lambda raw, received, fds: self._from_rank(worker, raw, received, fds)
        handle.on_output = lambda is_error, block: self._output.add(worker, is_error, block)
        spawn(self._watch(worker, handle), self.tasks)

    def _pmi_said(self, worker: int, data: bytes) -> None:
        self._apply(self.node.pmi_said(worker, data))

    async def _meet_nodes(self, name: str, puts: Mapping[str, bytes]) -> None:
        try:
            effects = self.node.pmi_met(await self._keys.fence(name, puts))
        except Exception as error:  # noqa: BLE001  (whatever it was, the ranks must not hang)
            effects = self.node.pmi_not_met(name, error)
        self._apply(effects)

    # Messages of the controller -------------------------------------------------------------

    def receive(self, raw: bytes, received: EncodedEnvelope) -> None:
        """Handles an envelope of the controller for this session."""
        kind = received.kind
        if kind == EnvelopeKind.BATCH:
            if self._is_next(received):
                self._send_all(frame(raw))
        elif kind == EnvelopeKind.OPEN_CCL:
            if received.worker_plus_one:  # a rank opens its communicator, and those here do too
                self._send_all(frame(raw))
            else:
                self.node.opening.all_begin(received.first_seq, self._loop.time())
                self._set_timer()
        elif kind in (EnvelopeKind.KEY, EnvelopeKind.FENCED):
            self._keys.answered(raw, received)
        elif kind in (EnvelopeKind.RESUME, EnvelopeKind.RECEIVED):
            self._client_has(kind, received.payload)
        elif kind == EnvelopeKind.END_SESSION:
            self.end()

    def _is_next(self, batch: EncodedEnvelope) -> bool:
        """Whether a batch is the one that follows; ranks execute each once and in order."""
        if batch.last_seq <= self.received:
            return False  # sent again by a client that did not know of its arrival
        if batch.first_seq != self.received + 1:
            if not self._gap_told:
                self._gap_told = True
                self._tell_have()
            return False
        self.received = batch.last_seq
        counters = self._services.counters
        counters.batches += 1
        counters.commands += batch.last_seq - batch.first_seq + 1
        self._gap_told = False
        return True

    def _client_has(self, kind: int, payload: bytes) -> None:
        """Drops the replies that the client has, and sends the others again if it asks."""
        received = controller_pb2.Received.FromString(payload)
        if received.question:
            self._send_dropped(received)
            return
        known = received.replies
        self._replies.forget(known)
        if received.given_up or received.unwanted:
            settling = self.arrays.settle(received.given_up, received.unwanted)
            spawn(settling, self.tasks)
        if kind == EnvelopeKind.RESUME and not known:  # another program than before
            spawn(self.arrays.abandon(self.received << TICKETS_SHIFT), self.tasks)
        if not self._replies.full:
            for handle in self.ranks.values():
                handle.go_on_reading()
        if kind == EnvelopeKind.RESUME:
            self._resend()

    # Connections to the controller ------------------------------------------------------------

    def describe(self) -> node_pb2.RunningSession:
        """The session, as a restarted controller must know it."""
        return node_pb2.RunningSession(
            session=self.session,
            start=self.start,
            ranks=self._rank_infos(),
            age_s=monotonic() - self.began,
        )

    def _rank_infos(self) -> list[controller_pb2.RankInfo]:
        node, device_of = self._services.node, self._assignments.device_of
        return [
            controller_pb2.RankInfo(
                worker=worker, node=node, pid=handle.pid, device=device_of(worker)
            )
            for worker, handle in self.ranks.items()
        ]

    def connected(self) -> None:
        """Sends what the controller and the client may have missed."""
        self.node.owner_back()
        self._set_timer()
        if self.node.ready:
            for exit_ in self._exits:
                self._tell(EnvelopeKind.RANK_EXITED, exit_)
            self._resend()
        self._keys.resend()

    def disconnected(self) -> None:
        """No controller drives the ranks for now; the session waits for one for its lease."""
        self._apply(self.node.owner_lost(self._loop.time()))

    def _resend(self) -> None:
        self._tell_have()
        for raw in self._replies.waiting():
            self._post(raw)
        for worker, times in self.node.opening.begun.items():
            self._tell_opening(worker, times)

    def _send_dropped(self, asked: controller_pb2.Received) -> None:
        """Sends what the controller has dropped, because the client did not read it."""
        known = dict(zip(asked.workers, asked.replies, strict=False))
        self._tell_have(asked.question)
        for raw in self._replies.waiting(known):
            self._post(raw)
        self._tell_have(asked.question, all_sent=True)

    def _tell_have(self, question: int = 0, *, all_sent: bool = False) -> None:
        workers = list(self.ranks)
        have = controller_pb2.Have(
            node=self._services.node,
            last_seq=self.received,
            replies=self._replies.sent(workers),
            workers=workers,
            question=question,
            all_sent=all_sent,
        )
        self._tell(EnvelopeKind.HAVE, have.SerializeToString())

    def _tell_opening(self, worker: int, times: int) -> None:
        kind, session = EnvelopeKind.OPEN_CCL, self.session
        self._post(envelope(kind, session=session, worker=worker, first_seq=times))

    def _tell(self, kind: EnvelopeKind, payload: bytes = b"") -> None:
        self._post(envelope(kind, payload, session=self.session))

    def _post(self, raw: bytes, *, droppable: bool = False) -> bool:
        return self._services.post(raw, session=self.session, droppable=droppable)

    # Messages of ranks, and to them -----------------------------------------------------------

    def _from_rank(
        self, worker: int, raw: bytes, received: EncodedEnvelope, reader: FrameReader
    ) -> None:
        kind = received.kind
        if kind in FROM_RANKS:
            self.arrays.receive(worker, received, reader)
        elif kind == EnvelopeKind.CCL_OPENED:
            self.node.opening.done(worker)
            self._spans.opened(worker)
        elif kind == EnvelopeKind.ASSIGNED:
            effects = self.node.assigned(worker)
            self._spans.started(worker, self.ranks[worker].pid)
            self._apply(effects)
        elif received.session != self.session:
            return
        elif kind == EnvelopeKind.AUDIT:
            self._audit.add(worker, received.payload)
        elif kind == EnvelopeKind.HOLDINGS:
            self.questions.answered(worker, received)
        elif kind == EnvelopeKind.REPLY:
            self._replies.add(worker, received.first_seq, raw)
            self._post(raw)
            if self._replies.full:
                self.ranks[worker].stop_reading()
        elif kind in KEY_REQUESTS:
            self._keys.ask(worker, raw, received)
        elif kind == EnvelopeKind.OPEN_CCL:
            self._spans.opens(worker)
            self._apply(self.node.opens(worker))

    def _send(self, worker: int, framed: bytes) -> None:
        self.ranks[worker].send(framed)

    def _send_all(self, framed: bytes) -> None:
        for handle in self.ranks.values():
            handle.send(framed)

    def _send_array(
        self, kind: EnvelopeKind, told: controller_pb2.Transfer, fd: Descriptor | None
    ) -> None:
        def framed(error: str) -> bytes:
            told.error = told.error or error
            return frame(envelope(kind, told.SerializeToString(), session=self.session))

        handle = self.ranks.get(told.worker)
        if handle is not None:
            handle.send(framed(""), fd, framed)
        elif fd is not None:
            fd.close()

    # Deaths -----------------------------------------------------------------------------------

    def log_of(self, worker: int, seq: int | None = None) -> BoundLogger:
        """Names the rank in each line as well, and the command if it is known."""
        return bind(self.log, rank=worker, seq=seq, **self._spans.ids_of(worker))

    def seq_of(self, worker: int) -> int | None:
        """The command that a rank executes, or was in when it ended."""
        handle = self.ranks.get(worker)
        return handle.current_seq() if handle is not None else None

    async def _watch(self, worker: int, handle: RankHandle) -> None:
        status = await handle.exited
        self._ends[worker] = _RankEnd(status, tuple(handle.last_lines), handle.why_ended())
        follows, lost_at = may_follow_another(status, handle.memory), handle.memory.lost_at()
        now = self._loop.time()
        self._apply(self.node.exited(worker, now, follows=follows, lost_at=lost_at))

    def _tell_exit(self, worker: int, end: _RankEnd, *, at_start: bool) -> None:
        self.arrays.rank_ended(worker)
        self._output.say()
        status, cause = end.status, end.cause
        exited = node_pb2.RankExited(
            worker=worker, exit_status=status, output=end.output, at_start=at_start, cause=cause
        )
        kind = _kind_of_exit(status, cause, at_start=at_start)
        self._services.counters.exits[kind] += 1
        how = cause or f"ended with status {status}"
        seq = self.seq_of(worker)
        self.log_of(worker, seq).warning("rank %d on %s %s", worker, self._services.node, how)
        self._spans.died(worker, cause or describe_exit(status), seq, end.output)
        self._exits.append(exited.SerializeToString())
        self._tell(EnvelopeKind.RANK_EXITED, self._exits[-1])

    # The end ------------------------------------------------------------------------------------

    def _kill(self, workers: Iterable[int], *, again: bool) -> None:
        for worker in workers:
            self.ranks[worker].kill()
        if again and self._keeper is not None:
            self._keeper.kill()  # it has not reported their ends

    async def _release(self) -> None:
        for handle in self.ranks.values():
            handle.kill()  # what it left behind in its group
            handle.close()
        for task in list(self.tasks):
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)
        if self._keeper is not None and not await self._keeper.end():
            self.log.warning("what its ranks have started may not have ended")
        self._output.close()
        self._keys.close()
        self.arrays.close()
        try:
            sweep_shared_memory(kvsname(self.session))
        except OSError as error:  # the session's slots matter more
            self.log.warning("what its MPI left in /dev/shm stays there: %s", error)
        await self._remove_folders()

    async def _remove_folders(self) -> None:
        """Removes what the ranks left, which may be much, in another thread."""
        remove = self._services.folders.remove
        try:
            await asyncio.to_thread(remove, self.session)
        except RuntimeError:  # the system cannot start a thread
            remove(self.session)

    def tell_gone(self) -> None:
        """Tells the controller that nothing is left of the session here."""
        self._tell(EnvelopeKind.SESSION_GONE)
        self._spans.end()
        self.log.info("session ended on %s", self._services.node)


def _kind_of_exit(status: int, cause: str, *, at_start: bool) -> str:
    if at_start:
        return "start"
    if cause and status == -signal.SIGKILL:
        return "memory"
    return "signal" if status < 0 else "exit"
