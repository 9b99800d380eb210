"""One session on this node: what its ranks here and its owner say to each other."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Mapping
from typing import Any

from disco_client.clock import monotonic
from disco_client.errors import describe_exit
from disco_client.output import logger_of
from disco_client.pb import controller_pb2, node_pb2
from disco_client.wire.arrays import TICKETS_SHIFT
from disco_client.wire.codec import EncodedEnvelope, EnvelopeKind
from disco_client.wire.framing import frame
from disco_server.core.node import RankEnd
from disco_server.ipc.arrays import FROM_RANKS
from disco_server.ipc.assignments import Assignments
from disco_server.ipc.framing import FrameReader
from disco_server.observe.logs import BoundLogger, bind
from disco_server.worker.output import SessionOutput
from disco_server.worker.owner_link import OwnerLink
from disco_server.worker.pending_arrays import PendingArrays
from disco_server.worker.rank_audit import RankAudit
from disco_server.worker.rank_handle import RankHandle
from disco_server.worker.rank_keys import KEY_REQUESTS, RankKeys
from disco_server.worker.rank_questions import RankQuestions
from disco_server.worker.rank_spans import RankSpans
from disco_server.worker.services import NodeServices
from disco_server.worker.session_driver import SessionDriver
from disco_server.worker.tasks import spawn

__all__ = ["WorkerSession"]

_logger = logger_of("disco.worker")

_OF_ITSELF = (EnvelopeKind.ASSIGNED, EnvelopeKind.CCL_OPENED)
"""What a rank says of itself, whatever the session: refused where it cannot be."""


class WorkerSession:
    """One session on this node; used from the event loop only.

    Args:
        session: Its id.
        start: The controller's request to start it.
        services: What it uses.

    Attributes:
        session: Its id.
        start: The controller's request to start it.
        log: Names the session in each line.
        owner: Its connection to the controller and the client.
        driver: Its processes.
        arrays: The arrays in transfer between its client and its ranks here.
        questions: What its ranks are asked themselves.
        tasks: The tasks that work for it, and end with it.
        began: When it began, by the monotonic clock.

    Raises:
        ConnectionError: The request has no ranks for this node.
    """

    def __init__(self, session: int, start: node_pb2.StartRanks, services: NodeServices) -> None:
        self.session, self.start = session, start
        self._services = services
        # For the ranks alone: what is said of the session elsewhere is made of the request.
        secrets = dict(start.secrets)
        start.ClearField("secrets")
        assignments = Assignments(session, start, services.rules, secrets)
        self._spans = RankSpans(session, start, assignments.share)
        log = bind(_logger, session=start.session_name, node=services.node)
        self.log = bind(log, **self._spans.ids)
        self.tasks: set[asyncio.Task[Any]] = set()
        self.driver = SessionDriver(session, assignments, self, services, lease_s=start.lease_s)
        ranks = self.driver.ranks
        self.owner = OwnerLink(session, services.node, ranks.keys(), services.post)
        self.arrays = PendingArrays(
            ranks.keys(), self.driver.send_array, start.lease_s, services.max_array_bytes
        )
        self.questions = RankQuestions()
        self._audit = RankAudit(start, services.node)
        self._keys = RankKeys(
            session,
            start.node_index,
            len(start.nodes),
            self.owner.post,
            lambda worker, framed: ranks[worker].sender.send(framed),
            services.counters,
        )
        # Ranks may print faster than the controller takes it, or while there is none.
        self._output = SessionOutput(
            session, services.node, self.log_of, lambda raw: self.owner.post(raw, droppable=True)
        )
        self.began = monotonic()

    async def run(self) -> None:
        """Starts the ranks; returns when nothing is left of the session here."""
        await self.driver.run()
        self._output.close()
        self._keys.close()
        self.arrays.close()
        await self.driver.clean_up()

    def end(self) -> None:
        """Ends the ranks; :meth:`run` returns then."""
        self.driver.apply(self.driver.node.end(self.driver.now()))

    # Messages of the controller -------------------------------------------------------------

    def receive(self, raw: bytes, received: EncodedEnvelope) -> None:
        """Handles an envelope of the controller for this session."""
        kind, node = received.kind, self.driver.node
        if kind == EnvelopeKind.BATCH:
            if self.owner.is_next(received):
                counters = self._services.counters
                counters.batches += 1
                counters.commands += received.last_seq - received.first_seq + 1
                self.driver.send_all(frame(raw))
        elif kind == EnvelopeKind.OPEN_CCL:
            if received.worker_plus_one:  # a rank opens its communicator, and those here do too
                self.driver.send_all(frame(raw))
            else:
                self.driver.apply(node.all_open(received.first_seq, self.driver.now()))
        elif kind == EnvelopeKind.KEY:
            self._keys.answered(raw, received)
        elif kind == EnvelopeKind.FENCED:
            result = self._keys.fenced(received)
            if result is not None and result.error:
                self.driver.apply(node.pmi_not_met(result.name, result.error))
            elif result is not None:
                self.driver.apply(node.pmi_met(result.items))
        elif kind in (EnvelopeKind.RESUME, EnvelopeKind.RECEIVED):
            self._client_has(kind, controller_pb2.Received.FromString(received.payload))
        elif kind == EnvelopeKind.END_SESSION:
            self.end()

    def _client_has(self, kind: int, received: controller_pb2.Received) -> None:
        """Drops the replies that the client has, and sends the others again if it asks."""
        if received.question:
            self.owner.resend_dropped(received)
            return
        known, replies = received.replies, self.owner.replies
        replies.forget(known)
        if received.given_up or received.unwanted:
            settling = self.arrays.settle(received.given_up, received.unwanted)
            spawn(settling, self.tasks)
        if received.interrupted:
            self._interrupt(received)
        if received.cancelled:
            self._cancel([(run.first, run.last) for run in received.cancelled])
        if kind == EnvelopeKind.RESUME and not known:  # another program than before
            spawn(self.arrays.abandon(self.owner.received << TICKETS_SHIFT), self.tasks)
        if not replies.full:
            for handle in self.driver.ranks.values():
                handle.go_on_reading()
        if kind == EnvelopeKind.RESUME:
            self.owner.resend(self.driver.node.opening.begun)

    def _interrupt(self, received: controller_pb2.Received) -> None:
        """Interrupts the ranks here, or ends those that the client names."""
        until, workers = received.interrupted, received.interrupted_workers
        for worker, rank in self.driver.ranks.items():
            if not received.interrupted_by_force:
                rank.interrupt(until, until if worker in workers else 0)
            elif worker in workers:
                rank.end_interrupted()

    def _cancel(self, commands: list[tuple[int, int]]) -> None:
        for rank in self.driver.ranks.values():
            rank.cancel(commands)

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
        share = self.driver.share
        devices = dict(zip(share.workers, share.devices, strict=True))
        return [
            controller_pb2.RankInfo(
                worker=worker, node=share.node, pid=rank.pid, device=devices[worker]
            )
            for worker, rank in self.driver.ranks.items()
        ]

    def connected(self) -> None:
        """Sends what the controller and the client may have missed."""
        node = self.driver.node
        self.driver.apply(node.owner_back())
        if node.ready:
            self.owner.resend(node.opening.begun, exits=True)
        self._keys.resend()

    def disconnected(self) -> None:
        """No controller drives the ranks for now; the session waits for one for its lease."""
        self.driver.apply(self.driver.node.owner_lost(self.driver.now()))

    # What the driver tells ----------------------------------------------------------------------

    def adopt(self, worker: int, rank: RankHandle) -> None:
        """A rank has a process."""
        self._spans.got_process(worker, rank.pid)
        rank.on_envelope = lambda raw, received, fds: self._from_rank(worker, raw, received, fds)
        rank.on_output = lambda is_error, block: self._output.add(worker, is_error, block)

    def meet_nodes(self, name: str, puts: Mapping[str, bytes]) -> None:
        """Exchanges what the MPI libraries of the ranks have put with the other nodes."""
        self._keys.fence(name, puts)

    def ready(self) -> None:
        """Tells the controller that every rank is ready for commands."""
        ready = node_pb2.RanksReady(ranks=self._rank_infos())
        self.owner.tell(EnvelopeKind.RANKS_READY, ready.SerializeToString())
        self.log.info("ranks %s run on %s", list(self.driver.ranks), self._services.node)

    def opens(self, worker: int, times: int) -> None:
        """Tells the controller that a rank opens its communicator."""
        self.owner.tell_opening(worker, times)

    def rank_ended(self, worker: int, end: RankEnd, *, at_start: bool) -> None:
        """Tells the controller that a rank has ended."""
        self.arrays.rank_ended(worker)
        self._output.say()
        status, cause = end.status, end.cause
        exited = node_pb2.RankExited(
            worker=worker, exit_status=status, output=end.output, at_start=at_start, cause=cause
        )
        kind = _kind_of_exit(status, cause, at_start=at_start)
        self._services.counters.exits[kind] += 1
        how = cause or f"ended with status {status}"
        rank = self.driver.ranks.get(worker)
        seq = rank.current_seq() if rank is not None else None
        self.log_of(worker, seq).warning("rank %d on %s %s", worker, self._services.node, how)
        self._spans.died(worker, cause or describe_exit(status), seq, end.output)
        self.owner.tell_exit(exited.SerializeToString())

    # Messages of ranks ------------------------------------------------------------------------

    def _from_rank(
        self, worker: int, raw: bytes, received: EncodedEnvelope, reader: FrameReader
    ) -> None:
        kind = received.kind
        if kind in FROM_RANKS:
            self.arrays.receive(worker, received, reader)
        elif received.session != self.session and kind not in _OF_ITSELF:
            return
        elif kind == EnvelopeKind.AUDIT:
            self._audit.add(worker, received.payload)
        elif kind == EnvelopeKind.HOLDINGS:
            self.questions.answered(worker, received)
        elif kind == EnvelopeKind.REPLY:
            self.owner.reply(worker, received.first_seq, raw)
            if self.owner.replies.full:
                self.driver.ranks[worker].stop_reading()
        elif kind in KEY_REQUESTS:
            self._keys.ask(worker, raw, received)
        else:
            self.driver.says(worker, kind)
            self._spans.says(worker, kind, self.driver.ranks[worker].pid)

    def log_of(self, worker: int, seq: int | None = None) -> BoundLogger:
        """Names the rank in each line as well, and the command if it is known."""
        return bind(self.log, rank=worker, seq=seq, **self._spans.ids_of(worker))

    def tell_gone(self) -> None:
        """Tells the controller that nothing is left of the session here."""
        self.owner.tell(EnvelopeKind.SESSION_GONE)
        self._spans.end()
        self.log.info("session ended on %s", self._services.node)


def _kind_of_exit(status: int, cause: str, *, at_start: bool) -> str:
    if at_start:
        return "start"
    if cause and status == -signal.SIGKILL:
        return "memory"
    return "signal" if status < 0 else "exit"
