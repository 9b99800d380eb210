"""What a node knows of one session: its ranks, and the arrays in transfer."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from disco_client.clock import monotonic
from disco_client.descriptors import Descriptor
from disco_client.pb import controller_pb2, node_pb2
from disco_client.telemetry import spans
from disco_client.wire.codec import EnvelopeKind, envelope
from disco_client.wire.framing import frame
from disco_server.collectives.startup import CommunicatorStartup
from disco_server.ipc.shares import decode_share
from disco_server.observe.logs import BoundLogger, bind
from disco_server.settings import INIT_TIMEOUT_S
from disco_server.worker.output import SessionOutput
from disco_server.worker.pending_arrays import PendingArrays
from disco_server.worker.pmi import PmiNode
from disco_server.worker.rank_handle import RankHandle
from disco_server.worker.rank_questions import RankQuestions

if TYPE_CHECKING:
    import asyncio

    from disco_client.telemetry.base import Span
    from disco_server.core.nodes import NodeShare
    from disco_server.worker.fork_server import Keeper
    from disco_server.worker.output import SessionOutput
    from disco_server.worker.pmi import PmiNode

__all__ = ["KeptReplies", "NodeSession", "Question", "RankSpans"]


# Replies of ranks that the client may not have yet, because a connection may break.
#
# Each rank numbers its replies. The client acknowledges them now and then up to a number, and
# they are dropped here; after a lost connection it does so too, and gets those that follow.
# So every reply arrives, and the client knows which it has seen.


FULL_BYTES = 64 << 20
"""With more than this no further replies are read from the ranks, which then block."""


class KeptReplies:
    """The replies of one session's ranks on one node, in the order in which they came.

    Attributes:
        nbytes: How large they are together.
    """

    def __init__(self) -> None:
        self._kept: deque[tuple[int, int, bytes]] = deque()
        self._sent: dict[int, int] = {}
        self.nbytes = 0

    def add(self, worker: int, number: int, raw: bytes) -> None:
        """Keeps a reply.

        Args:
            worker: The rank.
            number: The reply's number on this rank.
            raw: The encoded envelope.
        """
        self._kept.append((worker, number, raw))
        self._sent[worker] = number
        self.nbytes += len(raw)

    def forget(self, received: Sequence[int]) -> None:
        """Drops what the client has.

        Args:
            received: The number of the newest reply that it has of each of the session's
                workers; empty for a client that wants none of these.
        """
        before, self._kept, self.nbytes = self._kept, deque(), 0
        if not received:
            return
        for worker, number, raw in before:
            if worker >= len(received) or number > received[worker]:
                self._kept.append((worker, number, raw))
                self.nbytes += len(raw)

    @property
    def full(self) -> bool:
        """Whether no more should be added for now."""
        return self.nbytes > FULL_BYTES

    def waiting(self, after: Mapping[int, int] | None = None) -> Iterable[bytes]:
        """The envelopes that the client may not have.

        Args:
            after: Of each worker, the number of the newest reply that is not wanted; by
                default all are.
        """
        known = after or {}
        return [raw for worker, number, raw in self._kept if number > known.get(worker, 0)]

    def sent(self, workers: Iterable[int]) -> list[int]:
        """How many replies each of some ranks has sent."""
        return [self._sent.get(worker, 0) for worker in workers]


# A node's spans of the ranks of a session: starting, opening the communicator, running.


class RankSpans:
    """The spans of one session's ranks on one node.

    Args:
        session: The session's id.
        start: The controller's request to start it.
        share: The ranks.
    """

    def __init__(self, session: int, start: node_pb2.StartRanks, share: NodeShare) -> None:
        self._trace: Mapping[str, str] = spans.carrier_of(start.trace.items())
        self._facts = {
            "disco.session.id": f"{session:016x}",
            "disco.session.name": start.session_name,
            "disco.node": share.node,
        }
        self._devices = dict(zip(share.workers, share.devices, strict=False))
        self._starting = {
            worker: self._begin("disco.rank.start", worker) for worker in share.workers
        }
        self._running: dict[int, Span] = {}
        self._opening: dict[int, Span] = {}

    def _begin(self, name: str, worker: int, **facts: int) -> Span:
        device = self._devices.get(worker, "")
        known = {**self._facts, "disco.rank": worker, "disco.device": device, **facts}
        return spans.begin(name, known, parent=self._trace)

    @property
    def ids(self) -> Mapping[str, str]:
        """The trace fields of log lines about the session: the parent of its ranks' spans."""
        if not any(span.ids for span in self._starting.values()):
            return {}  # no spans are made here
        parts = self._trace.get("traceparent", "").split("-")
        return dict(zip(("trace_id", "span_id"), parts[1:3], strict=False))

    def ids_of(self, worker: int) -> Mapping[str, str]:
        """The trace fields of log lines about a rank."""
        span = self._running.get(worker) or self._starting.get(worker)
        return span.ids if span is not None else {}

    def got_process(self, worker: int, pid: int) -> None:
        """A rank has a process."""
        self._starting[worker].note({"process.pid": pid})

    def started(self, worker: int, pid: int) -> None:
        """A rank is ready for commands."""
        self._starting[worker].end()
        self._running[worker] = self._begin("disco.rank", worker, **{"process.pid": pid})

    def opens(self, worker: int) -> None:
        """A rank begins to open its communicator."""
        if worker not in self._opening:
            self._opening[worker] = self._begin("disco.ccl.open", worker)

    def opened(self, worker: int) -> None:
        """A rank has opened it, or could not."""
        if (span := self._opening.pop(worker, None)) is not None:
            span.end()

    def died(self, worker: int, how: str, seq: int | None, output: Iterable[str]) -> None:
        """A rank has ended by itself, in the midst of a command perhaps."""
        facts: dict[str, int | list[str]] = {"disco.output": list(output)}
        if seq is not None:
            facts["disco.seq"] = seq
        for begun in (self._opening, self._running, self._starting):
            if (span := begun.get(worker)) is not None:
                span.note(facts)
                span.fail(f"worker {worker} {how}")
                span.end()

    def end(self) -> None:
        """The session is over, and its ranks with it."""
        for begun in (self._opening, self._running, self._starting):
            for span in begun.values():
                span.end()


@dataclass(frozen=True, slots=True)
class Question:
    """What was asked of a session's rendezvous, at its controller.

    Attributes:
        raw: The envelope that asks, which is sent again after a lost connection.
        number: Tells a rank's questions apart.
        answer: The answer: of a key as the envelope that came, of a fence as a message.
    """

    raw: bytes
    number: int
    answer: asyncio.Future[Any]


@dataclass(slots=True)
class NodeSession:
    """One session's part on this node.

    Attributes:
        session: Its id.
        start: The controller's request to start it.
        log: Names the session in each line.
        max_array_bytes: How large an array may be that its client uploads.
        arrays: The arrays in transfer between its client and its ranks here.
        keeper: The parent of its processes here.
        ranks: Its processes here.
        assigned: Of each rank, done when it is ready.
        ready: Whether all of them are.
        received: The newest command received; batches are taken in order and once.
        gap_told: Whether the client was told that a batch is missing.
        replies: What the client may not have yet.
        exits: The reports of ranks that ended, encoded.
        orphan: Ends the session when no controller reconnects for it.
        pmi: Serves its ranks' MPI libraries.
        asked: What ranks have asked of its rendezvous and have no answer to, by the rank.
        questions: What its ranks are asked themselves.
        fences: What this node has, by the fence at which its ranks wait.
        opening: How far its ranks are with opening their communicator.
        output: What its ranks print.
        share: This node's ranks.
        spans: Of its ranks.
        ending: Whether it is over.
        audited: Its latest entries in the audit log.
        tasks: The tasks that work for it, and end with it.
        began: When it began, by the monotonic clock.

    Raises:
        ConnectionError: The request has no ranks for this node.
    """

    session: int
    start: node_pb2.StartRanks
    log: BoundLogger
    max_array_bytes: int
    keeper: Keeper | None = None
    ranks: dict[int, RankHandle] = field(default_factory=dict[int, RankHandle])
    assigned: dict[int, asyncio.Future[None]] = field(
        default_factory=dict[int, "asyncio.Future[None]"]
    )
    ready: bool = False
    received: int = 0
    gap_told: bool = False
    replies: KeptReplies = field(default_factory=KeptReplies)
    exits: list[bytes] = field(default_factory=list[bytes])
    orphan: asyncio.TimerHandle | None = None
    pmi: PmiNode | None = None
    asked: dict[int, Question] = field(default_factory=dict[int, Question])
    questions: RankQuestions = field(default_factory=RankQuestions)
    fences: dict[str, Question] = field(default_factory=dict[str, Question])
    opening: CommunicatorStartup = field(init=False)
    output: SessionOutput = field(init=False)
    share: NodeShare = field(init=False)
    spans: RankSpans = field(init=False)
    arrays: PendingArrays = field(init=False)
    ending: bool = False
    audited: OrderedDict[tuple[str, str, str], None] = field(
        default_factory=OrderedDict[tuple[str, str, str], None]
    )
    tasks: set[asyncio.Task[Any]] = field(default_factory=set["asyncio.Task[Any]"])
    began: float = field(default_factory=monotonic)

    def __post_init__(self) -> None:
        if self.start.node_index >= len(self.start.nodes):
            msg = f"expected ranks for node {self.start.node_index} of {len(self.start.nodes)}"
            raise ConnectionError(msg)
        self.share = decode_share(self.start.nodes[self.start.node_index])
        self.spans = RankSpans(self.session, self.start, self.share)
        self.log = bind(self.log, **self.spans.ids)
        self.arrays = PendingArrays(
            self.ranks.keys(), self._send_array, self.start.lease_s, self.max_array_bytes
        )
        self.opening = CommunicatorStartup(
            self.start.num_workers,
            INIT_TIMEOUT_S.value(),
            waiting=lambda: self.pmi.waiting if self.pmi is not None else (),
            pid=lambda worker: self.ranks[worker].pid,
        )

    def log_of(self, worker: int, seq: int | None = None) -> BoundLogger:
        """Names the rank in each line as well, and the command if it is known."""
        return bind(self.log, rank=worker, seq=seq, **self.spans.ids_of(worker))

    def seq_of(self, worker: int) -> int | None:
        """The command that a rank executes, or was in when it ended."""
        handle = self.ranks.get(worker)
        return handle.current_seq() if handle is not None else None

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
