"""What the cluster does at this moment, for all who watch it: one source, asked rarely.

Nodes are asked when somebody looks, once a second at most however many look, and what they
said is shared. Who may know what of it is decided for each of them.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field, replace

from disco_client.version import __version__
from disco_client.wire.inspection import RankReport, decode_report
from disco_client.wire.overview import NodeView, Overview, RankView, SessionView
from disco_server.controller.inspections import Inspections
from disco_server.core.access import EVERYBODY, Identity
from disco_server.core.cluster import Cluster
from disco_server.core.membership import Node
from disco_server.core.session_state import SessionTable

__all__ = ["INTERVAL_S", "Overviews"]

INTERVAL_S = 1.0
"""Nodes are asked so often at most."""

_NODES_S = 1.0
"""How long a node is waited for."""

_RECENT_S = 10.0
"""What was seen longer ago says nothing about how much is done in a second."""


@dataclass(frozen=True, slots=True)
class _Sample:
    """What was heard of a rank, and when."""

    at: float
    report: RankReport

    @property
    def executed(self) -> int:
        return self.report.finished.seq if self.report.finished else 0

    def rate(self, before: _Sample | None) -> tuple[float | None, float | None]:
        """Commands and bytes of collectives in a second since an earlier sample."""
        same = before is not None and before.report.pid == self.report.pid
        if before is None or not same or not 0 < self.at - before.at <= _RECENT_S:
            return None, None
        seconds = self.at - before.at
        commands = max(self.executed - before.executed, 0)
        moved = max(self.report.collective_bytes - before.report.collective_bytes, 0)
        return commands / seconds, moved / seconds


@dataclass(frozen=True, slots=True)
class _Answers:
    """What all nodes said at one time."""

    at: float = -INTERVAL_S
    latency: dict[str, float] = field(default_factory=dict[str, float])
    received: dict[int, int] = field(default_factory=dict[int, int])
    ranks: dict[tuple[int, int], _Sample] = field(default_factory=dict[tuple[int, int], _Sample])


class Overviews:
    """Used from the event loop only.

    Args:
        cluster: Knows the nodes and the sessions.
        inspections: Asks the nodes.
    """

    def __init__(self, cluster: Cluster, inspections: Inspections) -> None:
        self._cluster = cluster
        self._inspections = inspections
        self._asking: asyncio.Task[None] | None = None
        self._answers = _Answers(at=-INTERVAL_S + time.monotonic())
        self._before = self._answers

    async def snapshot(self, who: Identity = EVERYBODY) -> Overview:
        """What somebody may know of the cluster; nothing in it is older than a second or two.

        Args:
            who: Who looks: administrators see everything, owners their sessions, and
                otherwise there are the lists alone, of whose sessions observers also see
                where they run.
        """
        left = self._answers.at + INTERVAL_S - time.monotonic()
        if self._asking is None and (left <= 0 or self._misses_some()):
            self._asking = asyncio.ensure_future(self._ask(max(left, 0.0)))
            self._asking.add_done_callback(self._asked)
        if self._asking is not None:
            await asyncio.shield(self._asking)  # others wait for it too
        now = time.monotonic()
        return Overview(
            __version__,
            self._answers.at,
            tuple(self._node(node, now) for node in self._cluster.members.nodes.values()),
            tuple(self._session(each, who, now) for each in self._cluster.sessions.values()),
        )

    def _asked(self, task: asyncio.Task[None]) -> None:
        self._asking = None
        if not task.cancelled():
            task.exception()  # whoever waits has it

    def _misses_some(self) -> bool:
        """Whether sessions have begun since the nodes were asked."""
        known = self._answers.received
        return any(s.ranks and s.session not in known for s in self._cluster.sessions.values())

    async def _ask(self, wait: float) -> None:
        """Asks every node that is connected, after some seconds."""
        await asyncio.sleep(wait)
        asked = _Answers(time.monotonic())
        here = [n.name for n in self._cluster.members.nodes.values() if n.away_since is None]
        glances = await asyncio.gather(*(self._inspections.glance(n, _NODES_S) for n in here))
        for node, glance in zip(here, glances, strict=True):
            if glance is None:
                continue
            found, asked.latency[node] = glance
            at = time.monotonic()
            for each in found.sessions:
                newest = asked.received.get(each.session, 0)
                asked.received[each.session] = max(newest, each.received)
                for raw in each.ranks:
                    report = decode_report(raw)
                    asked.ranks[each.session, report.worker] = _Sample(at, report)
        self._before, self._answers = self._answers, asked

    def _node(self, node: Node, now: float) -> NodeView:
        return NodeView(
            node.name,
            node.state,
            len(node.devices),
            len(node.taken),
            node.devices,
            node.version,
            now - node.joined,
            self._answers.latency.get(node.name),
        )

    def _session(self, session: SessionTable, who: Identity, now: float) -> SessionView:
        yours = who.owns(session.principal)
        ranks = [self._rank(session.session, place) for place in sorted(session.ranks.values())]
        view = SessionView(
            session.session,
            session.name,
            session.owner,
            session.state.value,
            session.num_workers,
            session.attached,
            now - session.created,
            session.lease_left(now),
            yours,
        )
        if not yours:
            places = (RankView(r.worker, r.node, r.pid, r.device) for r in ranks)
            return replace(view, ranks=tuple(places) if who.sees_places else ())
        executed = min((rank.executed for rank in ranks if rank.state != "unknown"), default=0)
        issued = self._answers.received.get(session.session, 0)
        return replace(view, issued=issued, executed=executed, ranks=tuple(ranks))

    def _rank(self, session: int, place: tuple[int, str, int, str]) -> RankView:
        worker, node, pid, device = place
        view = RankView(worker, node, pid, device)
        sample = self._answers.ranks.get((session, worker))
        if sample is None or sample.report.pid != pid:
            return view
        report = sample.report
        commands, moved = sample.rate(self._before.ranks.get((session, worker)))
        return replace(
            view,
            state=report.state.value,
            executed=sample.executed,
            current=report.current,
            collective=report.collective,
            memory_bytes=report.memory_bytes,
            collectives=report.collectives,
            collective_bytes=report.collective_bytes,
            commands_per_s=commands,
            collective_bytes_per_s=moved,
        )
