"""Asks the nodes of a session what its ranks do, and puts their answers together."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from disco_client.clock import monotonic, monotonic_ns
from disco_client.pb import controller_pb2, node_pb2
from disco_client.text import natural
from disco_client.tracing.clocks import ClockSample, clock_offset
from disco_client.version import __version__
from disco_client.wire.codec import EnvelopeKind, envelope
from disco_client.wire.overview import describe_wait
from disco_server.controller.edge import NotYours, not_yours, unknown_session
from disco_server.core.access import EVERYBODY, Identity
from disco_server.core.fair_queue import QueuePlace, WaitReason
from disco_server.core.load import GpuLoad, Load
from disco_server.core.session_state import SessionState, SessionTable

if TYPE_CHECKING:
    from disco_server.core.cluster import Cluster
    from disco_server.core.nodes import Node

__all__ = [
    "INTERVAL_S",
    "Inspections",
    "Overviews",
    "add_rank_info",
    "decode_load",
    "fill_queued",
    "fill_waits_for",
    "node_info",
    "session_info",
]


_LONGEST_S = 60.0
_CLOCK_ROUNDS = 3
_CLOCK_S = 1.0
"""For how long a comparison of clocks is good enough for a client that follows a session."""


@dataclass(slots=True)
class _Question:
    """A question that a node has not answered yet."""

    node: str
    answer: asyncio.Future[tuple[node_pb2.NodeInspected, int]]


class Inspections:
    """Questions under way; used from the event loop only.

    Args:
        cluster: Knows the nodes and the sessions.
        post: Sends an envelope to a node; does nothing if it is not connected.
        clock: The clock of the times at which nodes were heard.
    """

    def __init__(
        self,
        cluster: Cluster,
        post: Callable[[str, bytes], object],
        clock: Callable[[], float] = monotonic,
    ) -> None:
        self._clock = clock
        self._cluster = cluster
        self._post = post
        self._numbers = itertools.count(1)
        self._questions: dict[int, _Question] = {}
        self._clocks: dict[str, tuple[float, ClockSample]] = {}
        self._comparing: dict[str, asyncio.Task[None]] = {}

    def receive(self, node: str, payload: bytes) -> None:
        """Takes a node's answer."""
        now = monotonic_ns()
        found = node_pb2.NodeInspected.FromString(payload)
        question = self._questions.get(found.request)
        if question is not None and question.node == node and not question.answer.done():
            question.answer.set_result((found, now))

    async def inspect(
        self,
        request: controller_pb2.InspectRequest,
        who: Identity = EVERYBODY,
        workers: Collection[int] = (),
    ) -> controller_pb2.InspectResult:
        """Returns what the ranks of a session do, or did before it ended.

        Args:
            request: The request.
            who: The caller's identity.
            workers: Of which ranks alone; of all where it is empty.

        Raises:
            LookupError: There is no such session; the text says which there are.
            NotYours: It belongs to another owner.
        """
        received_ns = monotonic_ns()
        name = request.name
        session = self._find(name, who)
        request = self._by_id(request, session or self._of_ended(name, who))
        nodes = [s.node for s in session.shares] if session else list(self._cluster.members.nodes)
        if session and workers:
            nodes = [s.node for s in session.shares if not set(workers).isdisjoint(s.workers)]
        timeout = min(request.timeout_s, _LONGEST_S) if request.timeout_s > 0 else _LONGEST_S
        asked = await asyncio.gather(
            *(self._ask_node(node, request, timeout, workers) for node in nodes)
        )
        answers = [found for found in asked if found is not None and found.known]
        if session is None and not answers:
            raise LookupError(unknown_session(self._cluster, name, who))
        result = controller_pb2.InspectResult()
        for found in answers:
            result.session, result.name = found.session, found.session_name
            result.num_workers = found.num_workers
            result.ranks.extend(r for r in found.ranks if not workers or r.worker in workers)
        if session is not None:
            result.session, result.name = session.session, session.name
            result.num_workers = session.num_workers
            missing = [node for node, found in zip(nodes, asked, strict=True) if found is None]
            result.silent.extend(self._silences(session, missing))
        result.received_ns, result.sent_ns = received_ns, monotonic_ns()
        return result

    async def quiet_for(self, session: SessionTable) -> float | None:
        """For how many seconds no rank of a session has run a command.

        Returns:
            0 where one runs; infinity where none has run yet; None where a node did not answer
            in time, or does not know the session.
        """
        request = controller_pb2.InspectRequest(name=f"{session.session:016x}")
        nodes = [share.node for share in session.shares]
        asked = await asyncio.gather(*(self._ask_node(node, request, _NODES_S) for node in nodes))
        quiet = math.inf
        for found in asked:
            if found is None or not found.known:
                return None
            for rank in found.ranks:
                if rank.HasField("current"):
                    return 0.0
                if rank.HasField("finished"):
                    quiet = min(quiet, rank.finished.seconds)
        return quiet

    async def glance(
        self, node: str, seconds: float
    ) -> tuple[node_pb2.NodeInspected, float] | None:
        """Asks one node what all its ranks do at this moment.

        Args:
            node: The node.
            seconds: The time limit.

        Returns:
            Its answer, and for how many seconds question and answer were in transit; None if
            no answer came in time.
        """
        asked = monotonic_ns()
        try:
            async with asyncio.timeout(seconds):
                found, heard = await self._ask(node, node_pb2.InspectNode(all=True))
        except TimeoutError:
            return None
        return found, max(heard - asked - (found.sent_ns - found.received_ns), 0) / 1e9

    def _find(self, name: str, who: Identity) -> SessionTable | None:
        found = self._cluster.find(name, who)
        if found is not None and not who.owns(found.principal):
            # The caller may have had a session of that name, which has ended.
            ended = self._cluster.find(name, who, ended=True)
            if ended is None or not who.owns(ended.principal):
                raise NotYours(not_yours(name))
            return None
        return found

    def _of_ended(self, name: str, who: Identity) -> SessionTable | None:
        """A session that has ended; None where nodes may know more of it than this controller."""
        ended = self._cluster.find(name, who, ended=True)
        if ended is None and not who.owns_all:  # nodes do not know the owner of a name
            raise LookupError(unknown_session(self._cluster, name, who))
        if ended is not None and not who.owns(ended.principal):
            raise NotYours(not_yours(name))
        return ended

    @staticmethod
    def _by_id(
        request: controller_pb2.InspectRequest, session: SessionTable | None
    ) -> controller_pb2.InspectRequest:
        """The same request with the session's whole id, as nodes know neither owners nor others."""
        if session is None:
            return request
        asked = controller_pb2.InspectRequest()
        asked.CopyFrom(request)
        asked.name = f"{session.session:016x}"
        return asked

    def _silences(
        self, session: SessionTable, nodes: Sequence[str]
    ) -> Iterable[controller_pb2.NodeSilence]:
        now, known = self._clock(), self._cluster.members.nodes
        for share in session.shares:
            if share.node in nodes:
                heard = known[share.node].heard if share.node in known else now
                yield controller_pb2.NodeSilence(
                    node=share.node, workers=share.workers, seconds=max(now - heard, 0.0)
                )

    async def _ask_node(
        self,
        node: str,
        request: controller_pb2.InspectRequest,
        seconds: float,
        workers: Collection[int] = (),
    ) -> node_pb2.NodeInspected | None:
        """Asks one node; None if it does not answer in time."""
        try:
            async with asyncio.timeout(seconds):
                clock = await self._clock_of(node, request)
                question = node_pb2.InspectNode(
                    name=request.name,
                    stacks=request.stacks,
                    flights=request.flights,
                    follow=request.follow,
                    since=request.since,
                    workers=workers,
                    holdings=request.holdings if request.HasField("holdings") else None,
                )
                found, _ = await self._ask(node, question)
        except TimeoutError:
            return None
        if clock is not None:
            for rank in found.ranks:
                rank.clock_at_ns = clock.at_ns
                rank.clock_offset_ns, rank.clock_error_ns = clock.offset_ns, clock.error_ns
        return found

    async def _clock_of(
        self, node: str, request: controller_pb2.InspectRequest
    ) -> ClockSample | None:
        """The offset of a node's clock from this one, if the request needs it."""
        if not (request.flights or request.follow):
            return None
        known = self._clocks.get(node) if request.follow else None
        if known is None:
            return await self._compare_clocks(node)
        if monotonic() - known[0] > _CLOCK_S and node not in self._comparing:
            # In the background: waiting would let new records be overwritten meanwhile.
            self._comparing[node] = asyncio.create_task(self._compare_in_time(node))
        return known[1]

    async def _compare_in_time(self, node: str) -> None:
        try:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_CLOCK_S):
                    await self._compare_clocks(node)
        finally:
            del self._comparing[node]

    async def _compare_clocks(self, node: str) -> ClockSample:
        """Asks several times, and takes the offset from the quickest answer."""
        found: list[tuple[int, ClockSample]] = []
        for _ in range(_CLOCK_ROUNDS):
            asked = monotonic_ns()
            answer, heard = await self._ask(node, node_pb2.InspectNode())
            offset, error = clock_offset(asked, answer.received_ns, answer.sent_ns, heard)
            found.append((error, ClockSample(answer.received_ns, offset, error)))
        _, best = min(found)
        self._clocks[node] = monotonic(), best
        return best

    async def _ask(
        self, node: str, question: node_pb2.InspectNode
    ) -> tuple[node_pb2.NodeInspected, int]:
        number = question.request = next(self._numbers)
        answer: asyncio.Future[tuple[node_pb2.NodeInspected, int]]
        answer = asyncio.get_running_loop().create_future()
        self._questions[number] = _Question(node, answer)
        try:
            self._post(node, envelope(EnvelopeKind.INSPECT, question.SerializeToString()))
            return await answer
        finally:
            del self._questions[number]


# What lists say of nodes, sessions and ranks.


def node_info(node: Node, free_slots: int) -> controller_pb2.NodeInfo:
    """What lists say about a node."""
    return controller_pb2.NodeInfo(
        name=node.name,
        slots=len(node.devices),
        free_slots=free_slots,
        devices=node.devices,
        version=node.version,
        state=node.state,
        age_s=monotonic() - node.joined,
        carrier=node.carrier,
        drained=node.drained,
        held_slots=len(node.taken),
    )


def decode_load(raw: controller_pb2.HostSample) -> Load:
    """What a node says of its machine."""
    return Load(
        raw.cpu,
        raw.memory,
        raw.received_per_s,
        raw.sent_per_s,
        raw.cores,
        raw.memory_bytes,
        tuple(GpuLoad(gpu.busy, gpu.memory, gpu.memory_bytes) for gpu in raw.gpus),
    )


def _encode_load(load: Load) -> controller_pb2.HostSample:
    return controller_pb2.HostSample(
        cpu=load.cpu,
        memory=load.memory,
        cores=load.cores,
        memory_bytes=load.memory_bytes,
        received_per_s=load.received_per_s,
        sent_per_s=load.sent_per_s,
        gpus=(
            controller_pb2.GpuSample(
                busy=gpu.busy, memory=gpu.memory, memory_bytes=gpu.memory_bytes
            )
            for gpu in load.gpus
        ),
    )


def session_info(
    session: SessionTable,
    now: float,
    places: bool = True,
    queued: QueuePlace | None = None,
    yours: bool = True,
) -> controller_pb2.SessionInfo:
    """What lists say about a session.

    Args:
        session: The session.
        now: The time by the cluster's clock.
        places: Whether to add where its ranks run.
        queued: Its place in the queue, if it is there.
        yours: Whether the viewer may use it.
    """
    info = controller_pb2.SessionInfo()
    fill_session_info(info, session, now, queued, yours)
    if places:
        for place in sorted(session.ranks.values()):
            add_rank_info(info.ranks, place)
    return info


def fill_session_info(
    info: controller_pb2.SessionInfo,
    session: SessionTable,
    now: float,
    queued: QueuePlace | None,
    yours: bool,
) -> None:
    """Writes what lists say about a session, but for where its ranks run."""
    info.session = session.session
    info.name, info.owner = session.name, session.owner
    info.num_workers = session.num_workers
    info.state = session.state.value
    info.age_s = monotonic() - session.created
    info.attached = session.attached
    if (left := session.lease_left(now)) is not None:
        info.lease_left_s = left
    info.carrier = session.carrier if session.attached else ""
    if queued is not None:
        fill_queued(info.queued, session, queued, yours)
    known = session.activity
    if known.ends_by is not None and session.alive:
        info.ends_in_s = max(known.ends_at - now, 0.0)
        info.ends_by = int(known.ends_by)  # type: ignore[assignment]  (the numbers are the same)


def fill_queued(
    queued: controller_pb2.Queued, session: SessionTable, place: QueuePlace, yours: bool = True
) -> None:
    """Writes what is told of a session's place in the queue, but for the state of the slots.

    How many slots an owner has, and may have, is for those who may use its sessions.
    """
    queued.ahead = place.ahead
    queued.why = int(place.why)  # type: ignore[assignment]  (the numbers are the same)
    queued.priority = session.priority.word
    if yours and place.why is WaitReason.OWNER_SLOTS:
        queued.owner_slots, queued.owner_limit = place.owner_slots, place.owner_limit


def fill_waits_for(info: controller_pb2.SessionInfo, room: Mapping[int, str]) -> None:
    """Writes in words what a session in the queue waits for.

    Args:
        info: What else is said of it.
        room: What room sessions need and there is, by their ids.
    """
    if info.HasField("queued"):
        place, needs = describe_wait(info.queued), room.get(info.session, "")
        held_back = info.queued.why == WaitReason.OWNER_SLOTS
        info.waits_for = place if held_back else ", ".join(filter(None, (place, needs)))


def add_rank_info(infos: Any, place: tuple[int, str, int, str]) -> controller_pb2.RankInfo:
    """Writes where a rank runs, at the end of a repeated field.

    Made in place: a message that is put into another one is copied, and there may be many.
    """
    worker, node, pid, device = place
    return infos.add(worker=worker, node=node, pid=pid, device=device)


# What the cluster does at this moment, for all viewers: one source, asked rarely.
#
# Nodes are asked only while there are viewers, once a second at most however many there are,
# and their answers are shared. What each viewer may see of them is decided per viewer.


INTERVAL_S = 1.0
"""The shortest interval between two rounds of questions to the nodes."""

_NODES_S = 1.0
"""How long to wait for a node's answer."""

_SLICE = 1024
"""Of how many ranks is told before others are read; it takes some milliseconds."""

_IDLE = "idle"
"""The state in lists of a session that runs, and whose ranks execute nothing."""

_RECENT_S = 10.0
"""Samples older than this are not used for rates."""


@dataclass(frozen=True, slots=True)
class _Sample:
    """A rank's report, and when it was received."""

    at: float
    report: controller_pb2.RankReport

    @property
    def is_busy(self) -> bool:
        """Whether the rank was in a command or collective."""
        return self.report.HasField("current") or self.report.HasField("collective")

    def rate(self, before: _Sample | None) -> tuple[float | None, float | None]:
        """Commands and bytes of collectives in a second since an earlier sample."""
        same = before is not None and before.report.pid == self.report.pid
        if before is None or not same or not 0 < self.at - before.at <= _RECENT_S:
            return None, None
        seconds = self.at - before.at
        commands = max(self.report.finished.seq - before.report.finished.seq, 0)
        moved = max(self.report.collective_bytes - before.report.collective_bytes, 0)
        return commands / seconds, moved / seconds


@dataclass(frozen=True, slots=True)
class _Answers:
    """The answers of all nodes at one time."""

    at: float = -INTERVAL_S
    latency: dict[str, float] = field(default_factory=dict[str, float])
    received: dict[int, int] = field(default_factory=dict[int, int])
    ranks: dict[tuple[int, int], _Sample] = field(default_factory=dict[tuple[int, int], _Sample])


class Overviews:
    """Used from the event loop only.

    Args:
        cluster: Knows the nodes and the sessions.
        inspections: Asks the nodes.
        clock: The time by which waits end.
    """

    def __init__(
        self,
        cluster: Cluster,
        inspections: Inspections,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        self._clock = clock
        self._cluster = cluster
        self._inspections = inspections
        self._asking: asyncio.Task[None] | None = None
        self._answers = _Answers(at=-INTERVAL_S + monotonic())
        self._before = self._answers

    async def snapshot(
        self,
        who: Identity = EVERYBODY,
        *,
        ended: bool = False,
        ranks_of_ended: str | None = None,
    ) -> controller_pb2.OverviewResult:
        """What a viewer may see of the cluster; nothing in it is older than a second or two.

        Args:
            who: The viewer: administrators see everything and owners their sessions; of other
                sessions only the list entry is visible, to observers with where they run.
            ended: Whether to include sessions that ended lately.
            ranks_of_ended: Of these, the id in hexadecimal of the only one that is told with
                where its ranks ran; None for all.
        """
        await self.refresh()
        now, cluster = monotonic(), self._cluster
        nodes = sorted(cluster.members.nodes.values(), key=lambda node: natural(node.name))
        sessions = [*cluster.sessions.values(), *(cluster.lately_over(now) if ended else ())]
        result = controller_pb2.OverviewResult(
            version=__version__, taken_s=self._answers.at, nodes=map(self._node, nodes)
        )
        room = cluster.waiting(self._clock())
        for session in sessions:
            out = result.sessions.add()
            over = session.state is SessionState.GONE
            places = not over or ranks_of_ended in (None, f"{session.session:016x}")
            await self._add_session(out, session, who, now, places=places)
            fill_waits_for(out.info, room)
        return result

    async def refresh(self) -> None:
        """Asks the nodes, unless their last answers are of the last second."""
        left = self._answers.at + INTERVAL_S - monotonic()
        if self._asking is None and (left <= 0 or self._misses_some()):
            self._asking = asyncio.ensure_future(self._ask(max(left, 0.0)))
            self._asking.add_done_callback(self._asked)
        if self._asking is not None:
            await asyncio.shield(self._asking)  # shared with other callers

    def state_of(self, session: SessionTable) -> str:
        """The state of a session in lists: its own, or ``idle`` where its ranks execute nothing.

        A rank that did not answer may execute something. So may one that has executed commands
        since the answers before, although it is between two of them now.
        """
        if session.state is not SessionState.RUNNING or not session.ranks:
            return session.state.value
        issued = self._answers.received.get(session.session, 0)
        for worker, (_, _, pid, _) in session.ranks.items():
            sample = self._answers.ranks.get((session.session, worker))
            if sample is None or sample.report.pid != pid:
                return session.state.value
            commands, _ = sample.rate(self._before.ranks.get((session.session, worker)))
            if commands or sample.is_busy or sample.report.finished.seq < issued:
                return session.state.value
        return _IDLE

    def _asked(self, task: asyncio.Task[None]) -> None:
        self._asking = None
        if not task.cancelled():
            task.exception()  # the callers that wait get it too

    def _misses_some(self) -> bool:
        """Whether sessions have begun since the nodes were asked."""
        known = self._answers.received
        return any(s.ranks and s.session not in known for s in self._cluster.sessions.values())

    async def _ask(self, wait: float) -> None:
        """Asks every node that is connected, after some seconds."""
        await asyncio.sleep(wait)
        asked = _Answers(monotonic())
        here = [n.name for n in self._cluster.members.nodes.values() if n.away_since is None]
        await asyncio.gather(*(self._ask_node(node, asked) for node in here))
        self._before, self._answers = self._answers, asked

    async def _ask_node(self, node: str, asked: _Answers) -> None:
        """Notes what one node answers, if it does in time."""
        glance = await self._inspections.glance(node, _NODES_S)
        if glance is None:
            return
        found, asked.latency[node] = glance
        at = monotonic()
        for each in found.sessions:
            newest = asked.received.get(each.session, 0)
            asked.received[each.session] = max(newest, each.received)
            for report in each.ranks:
                asked.ranks[each.session, report.worker] = _Sample(at, report)

    def _node(self, node: Node) -> controller_pb2.NodeOverview:
        return controller_pb2.NodeOverview(
            # Also those of a node that takes no sessions: viewers see how many are in use.
            info=node_info(node, len(node.devices) - len(node.taken)),
            latency_s=self._answers.latency.get(node.name),
            load=None if node.load.newest is None else _encode_load(node.load.newest),
        )

    async def _add_session(
        self,
        out: controller_pb2.SessionOverview,
        session: SessionTable,
        who: Identity,
        now: float,
        *,
        places: bool,
    ) -> None:
        """Writes what a viewer may see of a session, its ranks, if wanted, in slices."""
        yours, end = who.owns(session.principal), session.end
        info = out.info
        place = self._cluster.queue.places().get(session.session)
        fill_session_info(info, session, self._clock(), place, yours)
        info.state = self.state_of(session)
        if session.state is SessionState.GONE:
            info.ended_s = now - session.ended
            if end is not None:
                info.state = "ended" if end.as_wished else "failed"
        if yours and end is not None:
            info.end_reason, info.end_message = end.reason.name.lower(), end.message
        out.yours = yours
        answers, before = self._answers, self._before
        if yours:
            out.issued = answers.received.get(session.session, 0)
        executed: list[int] = []
        shown = places and (yours or who.sees_places)
        ranks = sorted(session.ranks.values()) if shown else []
        for first in range(0, len(ranks), _SLICE):
            if first:
                await asyncio.sleep(0)  # whatever else came meanwhile is read
            for place in ranks[first : first + _SLICE]:
                add_rank_info(info.ranks, place)
                sample = answers.ranks.get((session.session, place[0])) if yours else None
                if sample is not None and sample.report.pid == place[2]:
                    executed.append(sample.report.finished.seq)
                    _add_rank(out, sample, before.ranks.get((session.session, place[0])))
        out.executed = min(executed, default=0)


def _add_rank(out: controller_pb2.SessionOverview, sample: _Sample, before: _Sample | None) -> None:
    """Writes what a rank does."""
    rank = out.ranks.add()
    rank.report.CopyFrom(sample.report)
    commands, moved = sample.rate(before)
    if commands is not None and moved is not None:
        rank.commands_per_s, rank.collective_bytes_per_s = commands, moved
