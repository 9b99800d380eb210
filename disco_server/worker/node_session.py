"""What a node knows of one session: its ranks, and the arrays on their way."""

from __future__ import annotations

import asyncio
import os
from collections import OrderedDict
from dataclasses import dataclass, field
from typing import Any

from disco_client.pb import controller_pb2, node_pb2
from disco_client.transport.shared import SharedPool
from disco_client.wire.codec import Kind, envelope
from disco_server.channels.frames import frame
from disco_server.channels.growing import Offers
from disco_server.observe.logs import BoundLogger, bind
from disco_server.worker.kept_replies import KeptReplies
from disco_server.worker.lent_arrays import LentArrays
from disco_server.worker.opening import Opening, init_seconds
from disco_server.worker.pmi import PmiNode
from disco_server.worker.rank_handle import RankHandle
from disco_server.worker.spans import RankSpans
from disco_server.worker.uploads import Uploads

__all__ = ["NodeSession"]


@dataclass(slots=True)
class NodeSession:
    """One session's part on this node.

    Attributes:
        session: Its id.
        start: What the controller said when it began.
        log: Names the session in each line.
        offers: The arrays that its ranks offer.
        memory: For arrays, to use again.
        uploads: The arrays on their way to its ranks.
        lent: Those of what they offer that a client has asked for.
        ranks: Its processes here.
        assigned: Of each rank, done when it is ready.
        ready: Whether all of them are.
        received: The newest command that came; batches come in order and once.
        gap_told: Whether the client was told that a batch is missing.
        replies: What the client may not have yet.
        exits: The reports of ranks that ended, encoded.
        asked_ccl: An envelope by which a rank opened the communicator.
        orphan: Ends the session when no controller comes back for it.
        pmi: Where its ranks meet for MPI.
        opening: How far its ranks are with opening their communicator.
        spans: Of its ranks.
        ending: Whether it is over.
        audited: What the audit log has of it lately.
        tasks: What is done on its behalf, and ends with it.
    """

    session: int
    start: node_pb2.StartRanks
    log: BoundLogger
    offers: Offers = field(default_factory=Offers)
    memory: SharedPool = field(default_factory=SharedPool)
    ranks: dict[int, RankHandle] = field(default_factory=dict[int, RankHandle])
    assigned: dict[int, asyncio.Future[None]] = field(
        default_factory=dict[int, "asyncio.Future[None]"]
    )
    ready: bool = False
    received: int = 0
    gap_told: bool = False
    replies: KeptReplies = field(default_factory=KeptReplies)
    exits: list[bytes] = field(default_factory=list[bytes])
    asked_ccl: bytes = b""
    orphan: asyncio.TimerHandle | None = None
    pmi: PmiNode | None = None
    opening: Opening = field(init=False)
    spans: RankSpans = field(init=False)
    uploads: Uploads = field(init=False)
    lent: LentArrays = field(init=False)
    ending: bool = False
    audited: OrderedDict[tuple[str, str, str], None] = field(
        default_factory=OrderedDict[tuple[str, str, str], None]
    )
    tasks: set[asyncio.Task[Any]] = field(default_factory=set["asyncio.Task[Any]"])

    def __post_init__(self) -> None:
        self.spans = RankSpans(self.session, self.start)
        self.log = bind(self.log, **self.spans.ids)
        self.uploads = Uploads(self.memory, self.tell_of_array, self.start.lease_s)
        self.lent = LentArrays(self.offers, self.give_back, self.start.lease_s)
        self.opening = Opening(
            self.start.num_workers,
            init_seconds(),
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

    def tell_of_array(
        self,
        transfer: controller_pb2.Transfer,
        there: int = 0,
        fd: int | None = None,
        error: str = "",
    ) -> None:
        """Tells a rank about an array for it; see :class:`TellRank`."""
        told = controller_pb2.Transfer(
            session=self.session,
            ticket=transfer.ticket,
            worker=transfer.worker,
            nbytes=transfer.nbytes,
            there=there,
            error=error,
            and_before=transfer.and_before,
        )  # the session's secret is not the rank's business
        kind = Kind.ARRAY_MORE if fd is None else Kind.ARRAY_IN
        self._send(transfer.worker, kind, told.SerializeToString(), fd)

    def give_back(self, worker: int, fd: int) -> None:
        """Returns memory to a rank, which may use it again."""
        self._send(worker, Kind.ARRAY_BACK, b"", fd)

    def _send(self, worker: int, kind: Kind, payload: bytes, fd: int | None) -> None:
        handle = self.ranks.get(worker)
        if handle is not None:
            handle.send(frame(envelope(kind, payload, session=self.session)), fd)
        elif fd is not None:
            os.close(fd)

    @property
    def share(self) -> node_pb2.NodeRanks:
        """This node's ranks."""
        return self.start.nodes[self.start.node_index]
