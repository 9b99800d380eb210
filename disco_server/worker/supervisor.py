"""The rank processes of every session on this node, from start to end."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from google.protobuf.message import DecodeError

from disco_client.clock import monotonic
from disco_client.errors import describe_exit
from disco_client.output import logger_of
from disco_client.pb import controller_pb2, node_pb2
from disco_client.wire.arrays import TICKETS_SHIFT
from disco_client.wire.codec import EncodedEnvelope, EnvelopeKind, envelope
from disco_client.wire.framing import frame
from disco_server.collectives.loss import CAUSE_FIRST_S, lost_first, may_follow_another
from disco_server.collectives.mpich_memory import kvsname, sweep_shared_memory
from disco_server.ipc.arrays import FROM_RANKS
from disco_server.ipc.framing import FrameReader
from disco_server.ipc.shares import workers_of
from disco_server.observe import logs
from disco_server.observe.logs import bind
from disco_server.worker.array_store import ArrayStore
from disco_server.worker.counters import NodeCounters
from disco_server.worker.environment import WorkFolders
from disco_server.worker.fork_server import CannotStart, ForkServer
from disco_server.worker.inspector import NodeInspector
from disco_server.worker.node_session import NodeSession, Question
from disco_server.worker.output import SessionOutput
from disco_server.worker.pmi import PmiNode

if TYPE_CHECKING:
    from disco_server.observe.processes import RankMemory
    from disco_server.worker.array_streams import ArrayCarrier
    from disco_server.worker.environment import WorkFolders
    from disco_server.worker.rank_handle import RankHandle

__all__ = ["Supervisor", "audit_rank"]


# What ranks load and refuse, in the audit log of their daemon.


_REMEMBERED = 256


def audit_rank(session: NodeSession, worker: int, node: str, payload: bytes) -> None:
    """Logs what a rank reports that it did, or refused to do.

    All ranks of a session do the same, so a report that one of them has made here is not
    logged again for the others.

    Args:
        session: Its session.
        worker: The rank.
        node: This node's name.
        payload: The report; not trusted, as the process runs user code.
    """
    try:
        said = node_pb2.Audited.FromString(payload)
    except DecodeError:
        return
    key = said.what, said.name, said.refused
    if key in session.audited:
        return
    session.audited[key] = None
    if len(session.audited) > _REMEMBERED:
        session.audited.popitem(last=False)
    write = logs.refusals.record if said.refused else logs.record
    write(
        said.what,
        who=session.start.owner,
        what=said.name,
        session=session.start.session_name,
        outcome=said.refused or "allowed",
        node=node,
        rank=worker,
    )


_logger = logger_of("disco.worker")
_START_TIMEOUT_S = 60.0
_NO_PROCESS = 127
"""The exit status of what could not even be started, as shells have it."""

_END_GRACE_S = 0.5
_END_S = 10.0
"""How long ranks that were killed may take to end."""


_KEY_REQUESTS: Mapping[int, type[Any]] = {
    EnvelopeKind.PUT_KEY: node_pb2.PutRequest,
    EnvelopeKind.GET_KEY: node_pb2.GetRequest,
}
_LONGEST_S = 600.0
_ANSWER_S = 5.0
"""How much longer than a rank's limit the controller's own word on it is waited for."""


class Supervisor:
    """Starts, feeds, watches and ends rank processes; used from the event loop only.

    Args:
        node: This node's name.
        rules: What sessions may do here: the fields that are the same for all ranks.
        max_array_bytes: How large an array may be that a client uploads.
        folders: Makes the folders of ranks.
        fork_server: Starts ranks.
        post: Sends an encoded envelope of a ``session`` to the controller; with
            ``droppable`` only if that is not too slow. Returns whether it did.
        carrier: Moves host arrays.

    Attributes:
        arrays: The arrays of the sessions here.
        counters: What is counted for this node's metrics.
        begun: Set when a session has begun here, and from then on.
        over: Set when one has ended here, and from then on.
    """

    def __init__(
        self,
        *,
        node: str,
        rules: node_pb2.AssignRank,
        max_array_bytes: int,
        folders: WorkFolders,
        fork_server: ForkServer,
        post: Callable[..., bool],
        carrier: ArrayCarrier,
    ) -> None:
        self._node = node
        self._rules = rules
        self._folders = folders
        self._fork_server = fork_server
        self._post = post
        self._sessions: dict[int, NodeSession] = {}
        self.arrays = ArrayStore(self._sessions, carrier, post)
        self._max_array_bytes = max_array_bytes
        self.counters = NodeCounters()
        self.begun, self.over = asyncio.Event(), asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()
        self._inspector = NodeInspector(node, self._sessions, post)

    @property
    def sessions(self) -> Mapping[int, NodeSession]:
        """The sessions here, by their ids."""
        return self._sessions

    def memories(self) -> Iterator[RankMemory]:
        """The memory into which each current rank records what it does."""
        for session in self._sessions.values():
            for handle in session.ranks.values():
                yield handle.memory

    def _spawn(self, work: Awaitable[None], session: NodeSession | None = None) -> None:
        async def run() -> None:
            try:
                await work
            except asyncio.CancelledError:
                raise
            except Exception:
                _logger.exception("a task of the supervisor failed")

        task = asyncio.ensure_future(run())
        tasks = session.tasks if session is not None else self._tasks
        tasks.add(task)
        task.add_done_callback(tasks.discard)

    # Messages of the controller ----------------------------------------------------

    def receive(self, raw: bytes, received: EncodedEnvelope) -> None:
        """Handles one envelope from the controller."""
        kind = received.kind
        session = self._sessions.get(received.session)
        if kind == EnvelopeKind.START_RANKS:
            self._start(received)
        elif kind == EnvelopeKind.INSPECT:
            self._spawn(self._inspector.answer(received.payload))
        elif session is None:
            if kind == EnvelopeKind.END_SESSION:
                self._post(envelope(EnvelopeKind.SESSION_GONE, session=received.session))
        elif kind == EnvelopeKind.BATCH:
            if self._is_next(session, received):
                _hand_on(session, raw)
        elif kind == EnvelopeKind.OPEN_CCL:
            self._opening(session, raw, received)
        elif kind in (EnvelopeKind.KEY, EnvelopeKind.FENCED):
            self._answered(session, raw, received)
        elif kind in (EnvelopeKind.RESUME, EnvelopeKind.RECEIVED):
            self._received(session, kind, received.payload)
        elif kind in (EnvelopeKind.FETCH, EnvelopeKind.PUSH):
            carry = self.arrays.fetch if kind == EnvelopeKind.FETCH else self.arrays.push
            transfer = controller_pb2.Transfer.FromString(received.payload)
            self._spawn(carry(session, transfer), session)
        elif kind == EnvelopeKind.END_SESSION and not session.ending:
            self._spawn(self._end(session))

    def _is_next(self, session: NodeSession, batch: EncodedEnvelope) -> bool:
        """Whether a batch is the one that follows; ranks execute each once and in order."""
        if batch.last_seq <= session.received:
            return False  # sent again by a client that did not know of its arrival
        if batch.first_seq != session.received + 1:
            if not session.gap_told:
                session.gap_told = True
                self._tell_have(session)
            return False
        session.received = batch.last_seq
        self.counters.batches += 1
        self.counters.commands += batch.last_seq - batch.first_seq + 1
        session.gap_told = False
        return True

    def _received(self, session: NodeSession, kind: int, payload: bytes) -> None:
        """Drops the replies that the client has, and sends the others again if it asks."""
        received = controller_pb2.Received.FromString(payload)
        if received.question:
            self._send_dropped(session, received)
            return
        replies, known = session.replies, received.replies
        replies.forget(known)
        if received.given_up or received.unwanted:
            settling = session.arrays.settle(received.given_up, received.unwanted)
            self._spawn(settling, session)
        if kind == EnvelopeKind.RESUME and not known:  # another program than before
            self._spawn(session.arrays.abandon(session.received << TICKETS_SHIFT), session)
        if not replies.full:
            for handle in session.ranks.values():
                handle.go_on_reading()
        if kind == EnvelopeKind.RESUME:
            self._resend(session)

    # Connections to the controller ----------------------------------------------------

    def running(self) -> list[node_pb2.RunningSession]:
        """The sessions here, as a restarted controller must know them."""
        return [
            node_pb2.RunningSession(
                session=session.session,
                start=session.start,
                ranks=self._rank_infos(session),
                age_s=monotonic() - session.began,
            )
            for session in self._sessions.values()
            if session.ready and not session.ending
        ]

    def connected(self) -> None:
        """The node is registered again; sends what the controller and clients may have missed."""
        for session in self._sessions.values():
            if session.orphan is not None:
                session.orphan.cancel()
                session.orphan = None
            if session.ready and not session.ending:
                for exit_ in session.exits:
                    self._tell(session, EnvelopeKind.RANK_EXITED, exit_)
                self._resend(session)
            for question in (*session.asked.values(), *session.fences.values()):
                self._post(question.raw, session=session.session)

    def disconnected(self) -> None:
        """No controller drives the ranks for now; each session waits for one for its lease."""
        loop = asyncio.get_running_loop()
        for session in list(self._sessions.values()):
            if session.ending:
                continue
            if session.ready and session.start.lease_s > 0:
                session.orphan = loop.call_later(
                    session.start.lease_s, self._end_orphan, session.session
                )
            else:
                self._end_orphan(session.session)

    def _end_orphan(self, session_id: int) -> None:
        session = self._sessions.get(session_id)
        if session is not None and not session.ending:
            session.log.warning("no controller came back for the session; its ranks end")
            self._spawn(self._end(session))

    def _resend(self, session: NodeSession) -> None:
        self._tell_have(session)
        for raw in session.replies.waiting():
            self._post(raw, session=session.session)
        for worker, times in session.opening.begun_here.items():
            self._tell_opening(session, worker, times)

    def _send_dropped(self, session: NodeSession, asked: controller_pb2.Received) -> None:
        """Sends what the controller has dropped, because the client did not read it."""
        known = dict(zip(asked.workers, asked.replies, strict=False))
        self._tell_have(session, asked.question)
        for raw in session.replies.waiting(known):
            self._post(raw, session=session.session)
        self._tell_have(session, asked.question, all_sent=True)

    def _tell_have(
        self, session: NodeSession, question: int = 0, *, all_sent: bool = False
    ) -> None:
        workers = list(session.ranks)
        have = controller_pb2.Have(
            node=self._node,
            last_seq=session.received,
            replies=session.replies.sent(workers),
            workers=workers,
            question=question,
            all_sent=all_sent,
        )
        self._tell(session, EnvelopeKind.HAVE, have.SerializeToString())

    # Starting -------------------------------------------------------------------------

    def _start(self, received: EncodedEnvelope) -> None:
        start = node_pb2.StartRanks.FromString(received.payload)
        log = bind(_logger, session=start.session_name, node=self._node)
        session = NodeSession(received.session, start, log, self._max_array_bytes)
        session.output = SessionOutput(
            session.session,
            self._node,
            session.log_of,
            # Ranks may print faster than the controller takes it, or while there is none.
            lambda raw: self._post(raw, session=session.session, droppable=True),
        )
        self._sessions[received.session] = session
        self.begun.set()
        self._spawn(self._start_ranks(session), session)

    async def _start_ranks(self, session: NodeSession) -> None:
        loop = asyncio.get_running_loop()
        share = session.share
        for worker in share.workers:
            session.assigned[worker] = loop.create_future()
        worker = share.workers[0]
        try:
            keeper = session.keeper = await self._fork_server.keeper(session.session)
            for worker, device in zip(share.workers, share.devices, strict=True):
                folder = self._folders.make(session.session, worker)
                # A rank with a GPU starts in an interpreter that nothing was loaded into.
                handle = await keeper.start_rank(fresh=device != "cpu")
                if session.ending:
                    handle.kill()
                    handle.close()
                    handle.memory.close()
                    return
                self._adopt(session, worker, device, handle, folder)
        except CannotStart as error:
            self._tell_exit(session, worker, error.status, error.output, at_start=True)
            return
        except OSError as error:
            if session.ending:
                return
            why = f"no process could be started: {error}"
            self._tell_exit(session, worker, _NO_PROCESS, [why], at_start=True)
            return
        self._serve_pmi(session)
        try:
            await asyncio.wait_for(asyncio.gather(*session.assigned.values()), _START_TIMEOUT_S)
        except TimeoutError:
            late = [w for w, done in session.assigned.items() if not done.done()]
            session.log.warning("workers %s did not start in time", late)
            for worker in late:
                session.ranks[worker].kill()
            return
        except ConnectionError:
            return  # a rank ended; its exit is reported
        session.ready = True
        ready = node_pb2.RanksReady(ranks=self._rank_infos(session))
        self._tell(session, EnvelopeKind.RANKS_READY, ready.SerializeToString())
        session.log.info("ranks %s run on %s", list(session.ranks), self._node)

    def _rank_infos(self, session: NodeSession) -> list[controller_pb2.RankInfo]:
        return [
            controller_pb2.RankInfo(worker=worker, node=self._node, pid=handle.pid, device=device)
            for (worker, handle), device in zip(
                session.ranks.items(), session.share.devices, strict=True
            )
        ]

    def _adopt(
        self, session: NodeSession, worker: int, device: str, handle: RankHandle, folder: str
    ) -> None:
        session.ranks[worker] = handle
        session.spans.got_process(worker, handle.pid)
        handle.on_envelope = lambda raw, received, fds: self._from_rank(
            session, worker, raw, received, fds
        )
        handle.on_output = lambda is_error, block: session.output.add(worker, is_error, block)
        start = session.start
        here = next(sorted(ranks) for ranks in _by_host(start) if worker in ranks)
        handle.local_workers = len(here)
        assign = node_pb2.AssignRank(
            worker=worker,
            num_workers=start.num_workers,
            num_groups=start.num_groups,
            ccl=start.ccl,
            node=self._node,
            device=device,
            session_name=start.session_name,
            owner=start.principal or start.owner,
            work_dir=folder,
            local_workers=len(here),
            local_rank=here.index(worker),
            host_id=start.nodes[start.node_index].host_id,
            with_gpus=any(name != "cpu" for node in start.nodes for name in node.devices),
        )
        assign.MergeFrom(self._rules)
        handle.send(
            frame(
                envelope(EnvelopeKind.ASSIGN, assign.SerializeToString(), session=session.session)
            )
        )
        self._spawn(self._watch(session, worker, handle), session)

    def _serve_pmi(self, session: NodeSession) -> None:
        start = session.start

        async def fence(name: str, items: Mapping[str, bytes]) -> Mapping[str, bytes]:
            return await self._fence(session, name, items)

        session.pmi = PmiNode(
            ranks={worker: handle.pmi for worker, handle in session.ranks.items()},
            nodes=_by_host(start),
            kvsname=kvsname(session.session),
            fence=fence,
            on_abort=lambda rank, why: session.log_of(rank).debug("MPI of rank %d: %s", rank, why),
        )
        self._spawn(session.pmi.serve(), session)

    # Messages of ranks -----------------------------------------------------------------

    def _from_rank(
        self,
        session: NodeSession,
        worker: int,
        raw: bytes,
        received: EncodedEnvelope,
        reader: FrameReader,
    ) -> None:
        kind = received.kind
        if kind in FROM_RANKS:
            session.arrays.receive(worker, received, reader)
        elif kind == EnvelopeKind.CCL_OPENED:
            session.opening.ends(worker)
            session.spans.opened(worker)
        elif kind == EnvelopeKind.ASSIGNED:
            session.assigned[worker].set_result(None)
            session.spans.started(worker, session.ranks[worker].pid)
        elif received.session != session.session:
            return
        elif kind == EnvelopeKind.AUDIT:
            audit_rank(session, worker, self._node, received.payload)
        elif kind == EnvelopeKind.HOLDINGS:
            session.questions.answered(worker, received)
        elif kind == EnvelopeKind.REPLY:
            session.replies.add(worker, received.first_seq, raw)
            self._post(raw, session=session.session)
            if session.replies.full:
                session.ranks[worker].stop_reading()
        elif kind in _KEY_REQUESTS:
            self._ask_key(session, worker, raw, received)
        elif kind == EnvelopeKind.OPEN_CCL:
            session.spans.opens(worker)
            self._tell_opening(session, worker, session.opening.begins_here(worker))

    # The rendezvous at the controller ----------------------------------------------------

    def _ask_key(
        self, session: NodeSession, worker: int, raw: bytes, received: EncodedEnvelope
    ) -> None:
        """Passes a rank's question about a key on; the rank does nothing else meanwhile."""
        if worker in session.asked or received.worker_plus_one != worker + 1:
            msg = "a rank asks for one key at a time"
            raise ValueError(msg)
        seconds = _KEY_REQUESTS[received.kind].FromString(received.payload).timeout_s
        seconds = min(max(0.0, seconds), _LONGEST_S)
        answer: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        session.asked[worker] = Question(raw, received.first_seq, answer)
        self._post(raw, session=session.session)
        self._spawn(self._answer_key(session, worker, answer, seconds), session)

    async def _answer_key(
        self, session: NodeSession, worker: int, answer: Awaitable[bytes], seconds: float
    ) -> None:
        try:
            async with asyncio.timeout(seconds + _ANSWER_S):
                raw = await answer
        except TimeoutError:
            none = node_pb2.KeyAnswer(error=f"the controller did not answer within {seconds:g} s")
            raw = envelope(EnvelopeKind.KEY, none.SerializeToString(), session=session.session)
        del session.asked[worker]
        session.ranks[worker].send(frame(raw))

    def _answered(self, session: NodeSession, raw: bytes, received: EncodedEnvelope) -> None:
        """Takes the controller's answer; one to a question of before is none."""
        if received.kind == EnvelopeKind.FENCED:
            result = node_pb2.FenceResult.FromString(received.payload)
            question = session.fences.get(result.name)
            if question is not None and not question.answer.done():
                question.answer.set_result(result)
            return
        question = session.asked.get(received.worker_plus_one - 1)
        if question is None or question.number != received.first_seq or question.answer.done():
            return
        self.counters.keys += not node_pb2.KeyAnswer.FromString(received.payload).error
        question.answer.set_result(raw)

    async def _fence(
        self, session: NodeSession, name: str, items: Mapping[str, bytes]
    ) -> Mapping[str, bytes]:
        """Exchanges keys with the session's other nodes, over one connection or several.

        Raises:
            ConnectionError: Nobody will leave the fence.
        """
        start = session.start
        request = node_pb2.FenceRequest(
            name=name, participant=start.node_index, participants=len(start.nodes), items=items
        )
        raw = envelope(EnvelopeKind.FENCE, request.SerializeToString(), session=session.session)
        answer: asyncio.Future[node_pb2.FenceResult] = asyncio.get_running_loop().create_future()
        session.fences[name] = Question(raw, 0, answer)
        self._post(raw, session=session.session)
        try:
            result = await answer
        finally:
            del session.fences[name]
        if result.error:
            raise ConnectionError(result.error)
        return result.items

    def _tell(self, session: NodeSession, kind: EnvelopeKind, payload: bytes = b"") -> None:
        raw = envelope(kind, payload, session=session.session)
        self._post(raw, session=session.session)

    def _tell_opening(self, session: NodeSession, worker: int, times: int) -> None:
        """Reports that a rank opens its communicator, and for how many times it has."""
        kind, number = EnvelopeKind.OPEN_CCL, session.session
        self._post(envelope(kind, session=number, worker=worker, first_seq=times), session=number)

    def _opening(self, session: NodeSession, raw: bytes, received: EncodedEnvelope) -> None:
        """A rank opens its communicator, and those of this node do too; or all of them do."""
        if received.worker_plus_one:
            _hand_on(session, raw)
        else:
            self._watch_opening(session, received.first_seq)

    def _watch_opening(self, session: NodeSession, times: int) -> None:
        """Lets a time limit run, because every rank opens its communicator."""
        opening = session.opening
        attempt = opening.all_begin(times)

        async def watch(attempt: int) -> None:
            await asyncio.sleep(opening.limit_s)
            blamed, why = opening.blame(attempt, session.ranks)
            for late in blamed:
                session.log_of(late, session.seq_of(late)).warning("worker %d %s", late, why)
                session.ranks[late].end_because(why)

        if attempt is not None:
            self._spawn(watch(attempt), session)

    # Ending -------------------------------------------------------------------------------

    async def _watch(self, session: NodeSession, worker: int, handle: RankHandle) -> None:
        status = await handle.exited
        if may_follow_another(status, handle.memory):
            await asyncio.sleep(CAUSE_FIRST_S)  # cancelled if another end is reported
            ended = [h.memory for h in session.ranks.values() if h.exited.done()]
            if lost_first([handle.memory, *ended]) is not handle.memory:
                await asyncio.sleep(CAUSE_FIRST_S)  # the other rank's own report comes first
        session.arrays.rank_ended(worker)
        session.output.say()
        if session.ending:
            return
        at_start = not session.assigned[worker].done()
        if at_start:
            session.assigned[worker].set_exception(ConnectionError("the rank ended"))
            session.assigned[worker].exception()
        self._tell_exit(
            session,
            worker,
            status,
            handle.last_lines,
            at_start=at_start,
            cause=handle.why_ended(),
        )

    def _tell_exit(
        self,
        session: NodeSession,
        worker: int,
        status: int,
        output: Iterable[str],
        *,
        at_start: bool,
        cause: str = "",
    ) -> None:
        exited = node_pb2.RankExited(
            worker=worker, exit_status=status, output=output, at_start=at_start, cause=cause
        )
        self.counters.exits[_kind_of_exit(status, cause, at_start=at_start)] += 1
        how = cause or f"ended with status {status}"
        seq = session.seq_of(worker)
        session.log_of(worker, seq).warning("rank %d on %s %s", worker, self._node, how)
        session.spans.died(worker, cause or describe_exit(status), seq, output)
        session.exits.append(exited.SerializeToString())
        self._tell(session, EnvelopeKind.RANK_EXITED, session.exits[-1])

    async def _end(self, session: NodeSession) -> None:
        """Ends every process of a session, then reports that nothing is left of it."""
        session.ending = True
        if session.orphan is not None:
            session.orphan.cancel()
        # Ranks wait for each other inside MPI; if one is gone there is no grace period.
        whole = all(not handle.exited.done() for handle in session.ranks.values())
        goodbye = envelope(EnvelopeKind.END_SESSION, session=session.session)
        grace = _END_GRACE_S if whole else 0.0
        ends = asyncio.gather(*(h.end(goodbye, grace) for h in session.ranks.values()))
        await asyncio.wait((ends,), timeout=_END_S)
        if not ends.done() and session.keeper is not None:
            session.keeper.kill()  # the keeper has not reported their ends
        await ends
        self.counters.collectives.look(self.memories())  # the last of this session
        if session.pmi is not None:
            await session.pmi.close()
        for task in list(session.tasks):
            task.cancel()
        await asyncio.gather(*session.tasks, return_exceptions=True)
        if session.keeper is not None and not await session.keeper.end():
            session.log.warning("what its ranks have started may not have ended")
        session.output.close()
        session.arrays.close()
        try:
            sweep_shared_memory(kvsname(session.session))
        except OSError as error:  # the session's slots matter more
            session.log.warning("what its MPI left in /dev/shm stays there: %s", error)
        await self._remove_folders(session.session)
        self._sessions.pop(session.session, None)
        self._tell(session, EnvelopeKind.SESSION_GONE)
        session.spans.end()
        session.log.info("session ended on %s", self._node)
        await self._inspector.keep(session)
        self.over.set()

    async def _remove_folders(self, session: int) -> None:
        """Removes what the ranks left, which may be much, in another thread."""
        try:
            await asyncio.to_thread(self._folders.remove, session)
        except RuntimeError:  # the system cannot start a thread
            self._folders.remove(session)

    async def end_all(self) -> None:
        """Ends every session: the controller is gone, or this daemon leaves."""
        going = [s for s in self._sessions.values() if not s.ending]
        await asyncio.gather(*(self._end(session) for session in going))
        if self._tasks:
            await asyncio.gather(*self._tasks, return_exceptions=True)


def _hand_on(session: NodeSession, raw: bytes) -> None:
    framed = frame(raw)
    for handle in session.ranks.values():
        handle.send(framed)


def _kind_of_exit(status: int, cause: str, *, at_start: bool) -> str:
    if at_start:
        return "start"
    if cause and status == -signal.SIGKILL:
        return "memory"
    return "signal" if status < 0 else "exit"


def _by_host(start: node_pb2.StartRanks) -> list[list[int]]:
    """The ranks of each machine: several daemons may share one and its memory."""
    hosts: dict[str, list[int]] = {}
    for node in start.nodes:
        hosts.setdefault(node.host_id, []).extend(workers_of(node))
    return list(hosts.values())
