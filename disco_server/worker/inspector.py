"""Reports what the ranks of this node do, and keeps for a while what they did."""

from __future__ import annotations

import asyncio
import itertools
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from disco_client.clock import monotonic, monotonic_ns
from disco_client.pb import controller_pb2, node_pb2
from disco_client.tracing.ring_cuts import Since
from disco_client.wire.codec import EnvelopeKind, envelope
from disco_server.observe.rank_reports import Subject, cut_ranks, inspect_ranks
from disco_server.worker.tasks import call_in_thread

if TYPE_CHECKING:
    from disco_server.worker.session import WorkerSession

__all__ = ["NodeInspector"]

KEPT_S = 600.0
KEPT_SESSIONS = 16
KEPT_BYTES = 32 << 20


@dataclass(frozen=True, slots=True)
class _EndedSession:
    """What is kept of a session that is over."""

    until: float
    session: int
    name: str
    num_workers: int
    reports: list[controller_pb2.RankReport]

    @property
    def nbytes(self) -> int:
        return sum(len(report.flight) for report in self.reports)


class NodeInspector:
    """Used from the event loop only; looks at ranks in another thread.

    What ended sessions did is kept for ten minutes, of the last 16 sessions at most and
    in 32 MiB at most; beyond either, the oldest is dropped.

    Args:
        node: This node's name.
        sessions: Those that run here, by their ids.
        post: Sends an encoded envelope to the controller.
    """

    def __init__(
        self, node: str, sessions: Mapping[int, WorkerSession], post: Callable[[bytes], object]
    ) -> None:
        self._node = node
        self._sessions = sessions
        self._post = post
        self._leaving: dict[int, WorkerSession] = {}
        self._looked_at: list[int] = []
        self._ended: deque[_EndedSession] = deque()

    async def answer(self, payload: bytes) -> None:
        """Answers a question of the controller."""
        received_ns = monotonic_ns()
        asked = node_pb2.InspectNode.FromString(payload)
        found = node_pb2.NodeInspected(request=asked.request, received_ns=received_ns)
        here = (*self._sessions.values(), *self._leaving.values())
        running = next((s for s in here if _is_called(s, asked.name)), None)
        if asked.all:
            found.sessions.extend(await self._look_at_all())
        elif running is not None:
            found.known = True
            found.session, found.session_name = running.session, running.start.session_name
            found.num_workers = running.start.num_workers
            if asked.follow:
                # In this thread, because that takes less time than another thread would.
                since = [Since(m.worker, m.pid, m.seq, m.collectives) for m in asked.since]
                found.ranks.extend(cut_ranks(self._subjects(running), since))
            else:
                reports = await self._inspect(
                    [running],
                    stacks=asked.stacks,
                    flights=asked.flights,
                    workers=frozenset(asked.workers),
                )
                if asked.HasField("holdings"):
                    await self._add_holdings(running, asked.holdings, reports)
                found.ranks.extend(reports)
        elif (ended := self._find_ended(asked.name)) is not None:
            found.known = True
            found.session, found.session_name = ended.session, ended.name
            found.num_workers = ended.num_workers
            found.ranks.extend(ended.reports)
        found.sent_ns = monotonic_ns()
        self._post(envelope(EnvelopeKind.INSPECTED, found.SerializeToString()))

    async def _look_at_all(self) -> list[node_pb2.SessionGlance]:
        """What the ranks of every session do, by one look in one thread."""
        here = list(self._sessions.values())
        received = [session.owner.received for session in here]
        counts = [len(session.driver.ranks) for session in here]
        found = await self._inspect(here, stacks=False, flights=False)
        for report in found:
            report.ClearField("entered")  # the overview polls every second, and does not show that
        reports = iter(found)
        return [
            node_pb2.SessionGlance(
                session=session.session,
                received=newest,
                ranks=itertools.islice(reports, count),
            )
            for session, newest, count in zip(here, received, counts, strict=True)
        ]

    async def _inspect(
        self,
        sessions: Sequence[WorkerSession],
        *,
        stacks: bool,
        flights: bool,
        workers: Collection[int] = (),
    ) -> list[controller_pb2.RankReport]:
        """Looks at the ranks of sessions, at all or at some, in another thread."""
        numbers = [session.session for session in sessions]
        subjects = [
            subject
            for session in sessions
            for subject in self._subjects(session)
            if not workers or subject.worker in workers
        ]
        self._looked_at += numbers
        try:
            return await call_in_thread(
                partial(inspect_ranks, subjects, stacks=stacks, flights=flights)
            )
        finally:
            for number in numbers:
                self._looked_at.remove(number)

    async def _add_holdings(
        self,
        session: WorkerSession,
        asked: controller_pb2.HoldingsRequest,
        reports: Sequence[controller_pb2.RankReport],
    ) -> None:
        """Asks ranks what they hold, and adds their answers to the reports about them."""

        async def add(report: controller_pb2.RankReport) -> None:
            handle = session.driver.ranks[report.worker]
            held = await session.questions.ask(session.session, report.worker, handle, asked)
            if held is not None:
                report.holdings.CopyFrom(held)

        await asyncio.gather(*map(add, reports))

    def _subjects(self, session: WorkerSession) -> list[Subject]:
        return [
            Subject(worker, self._node, h.pid, h.memory, ended=h.exited.done())
            for worker, h in session.driver.ranks.items()
        ]

    def _find_ended(self, name: str) -> _EndedSession | None:
        self._forget()
        return next(
            (e for e in reversed(self._ended) if name in (e.name, f"{e.session:016x}")), None
        )

    def _forget(self) -> None:
        now = monotonic()
        while self._ended and (
            self._ended[0].until < now
            or len(self._ended) > KEPT_SESSIONS
            or sum(each.nbytes for each in self._ended) > KEPT_BYTES
        ):
            self._ended.popleft()

    async def keep(self, session: WorkerSession) -> None:
        """Keeps what the ranks of a session did, which have all ended."""
        self._leaving[session.session] = session
        try:
            reports = await self._inspect([session], stacks=True, flights=True)
        finally:
            # Copies are large and live as long as what refers to the ranks, so there are none
            # unless somebody else looks at this moment.
            for handle in session.driver.ranks.values():
                handle.memory.close(keep=session.session in self._looked_at)
            del self._leaving[session.session]
        start, until = session.start, monotonic() + KEPT_S
        self._ended.append(
            _EndedSession(until, session.session, start.session_name, start.num_workers, reports)
        )
        self._forget()


def _is_called(session: WorkerSession, name: str) -> bool:
    return name in (session.start.session_name, f"{session.session:016x}")
