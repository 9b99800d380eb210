"""The sessions that have ranks on this node."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from disco_client.pb import controller_pb2, node_pb2
from disco_client.wire.codec import EncodedEnvelope, EnvelopeKind, envelope
from disco_server.worker.array_store import ArrayStore
from disco_server.worker.inspector import NodeInspector
from disco_server.worker.services import NodeServices
from disco_server.worker.session import WorkerSession
from disco_server.worker.tasks import spawn

if TYPE_CHECKING:
    from disco_server.observe.rank_memory import RankMemory
    from disco_server.worker.array_streams import ArrayRelay
    from disco_server.worker.counters import NodeCounters

__all__ = ["Supervisor"]


class Supervisor:
    """Knows the sessions here, and gives each what concerns it; used from the event loop only.

    Args:
        services: What every session here uses.
        relay: Moves host arrays.

    Attributes:
        arrays: The arrays of the sessions here.
        counters: What is counted for this node's metrics.
        begun: Set when a session has begun here, and from then on.
        over: Set when one has ended here, and from then on.
        idle: Set while there is none.
    """

    def __init__(self, services: NodeServices, relay: ArrayRelay) -> None:
        self._services = services
        self._post = services.post
        self._sessions: dict[int, WorkerSession] = {}
        self.arrays = ArrayStore(self._sessions, relay, services.post)
        self.counters: NodeCounters = services.counters
        self.begun, self.over, self.idle = asyncio.Event(), asyncio.Event(), asyncio.Event()
        self.idle.set()
        self._tasks: set[asyncio.Task[Any]] = set()
        self._inspector = NodeInspector(services.node, self._sessions, services.post)

    @property
    def sessions(self) -> Mapping[int, WorkerSession]:
        """The sessions here, by their ids."""
        return self._sessions

    def memories(self) -> Iterator[RankMemory]:
        """The memory into which each current rank records what it does."""
        for session in self._sessions.values():
            for handle in session.driver.ranks.values():
                yield handle.memory

    def receive(self, raw: bytes, received: EncodedEnvelope) -> None:
        """Handles one envelope from the controller."""
        kind = received.kind
        session = self._sessions.get(received.session)
        if kind == EnvelopeKind.START_RANKS:
            self._start(received)
        elif kind == EnvelopeKind.INSPECT:
            spawn(self._inspector.answer(received.payload), self._tasks)
        elif session is None:
            if kind == EnvelopeKind.END_SESSION:
                self._post(envelope(EnvelopeKind.SESSION_GONE, session=received.session))
        elif kind in (EnvelopeKind.FETCH, EnvelopeKind.PUSH):
            carry = self.arrays.fetch if kind == EnvelopeKind.FETCH else self.arrays.push
            transfer = controller_pb2.Transfer.FromString(received.payload)
            spawn(carry(session, transfer), session.tasks)
        else:
            session.receive(raw, received)

    def _start(self, received: EncodedEnvelope) -> None:
        start = node_pb2.StartRanks.FromString(received.payload)
        session = WorkerSession(received.session, start, self._services)
        self._sessions[received.session] = session
        self.begun.set()
        self.idle.clear()
        spawn(self._run(session), self._tasks)

    async def _run(self, session: WorkerSession) -> None:
        await session.run()
        self.counters.collectives.look(self.memories())  # the last of this session
        del self._sessions[session.session]
        session.tell_gone()
        await self._inspector.keep(session)
        self.over.set()
        if not self._sessions:
            self.idle.set()

    def running(self) -> list[node_pb2.RunningSession]:
        """The sessions here, as a restarted controller must know them."""
        sessions = self._sessions.values()
        return [session.describe() for session in sessions if session.driver.node.ready]

    def connected(self) -> None:
        """The node is registered again."""
        for session in self._sessions.values():
            session.connected()

    def disconnected(self) -> None:
        """No controller drives the ranks for now."""
        for session in list(self._sessions.values()):
            session.disconnected()

    async def end_all(self) -> None:
        """Ends every session: the controller is gone, or this daemon leaves."""
        for session in self._sessions.values():
            session.end()
        while self._tasks:
            await asyncio.gather(*self._tasks, return_exceptions=True)
