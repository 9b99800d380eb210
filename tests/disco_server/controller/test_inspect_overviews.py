"""What the cluster does at a moment: from nodes that are asked rarely, for who may know it."""

from __future__ import annotations

import asyncio
import time

import pytest

from disco_client.pb import envelope_pb2, node_pb2
from disco_client.wire.codec import Action, EnvelopeKind
from disco_client.wire.overview import decode_overview
from disco_server.controller import inspect
from disco_server.controller.inspect import Inspections, Overviews
from disco_server.core.access import EVERYBODY, Identity, Role
from disco_server.core.nodes import Node
from disco_server.core.session_state import End, EndReason, SessionTable
from fakes import cluster_of_two

SESSION = 0xABC
ALICE, BOB = (Identity(Role.CLIENT, name, "token") for name in ("alice", "bob"))
EYE, ROOT = Identity(Role.OBSERVER, "eye", "token"), Identity(Role.ADMIN, "root", "token")


class Room:
    """A cluster of two nodes with a session of Alice on both, which answer or are silent."""

    def __init__(self):
        self.cluster = cluster_of_two(
            SessionTable(SESSION, "s", "me", 2, 1, "", b"k", 0.0, 1e9, principal=ALICE.principal)
        )
        for worker, name in enumerate(("a", "b")):
            self.cluster.ready_on_node(SESSION, name, [(worker, name, 100 + worker, "cpu")])
        inspections = Inspections(self.cluster, self.post)
        self.receive = inspections.receive
        self.overviews = Overviews(self.cluster, inspections)
        self.asked = []
        self.silent = set()
        self.executed = 10
        self.begun = True
        self.busy = {0, 1}
        self.queued = 20

    def post(self, node, raw):
        received = envelope_pb2.Envelope.FromString(raw)
        assert received.kind == EnvelopeKind.INSPECT
        question = node_pb2.InspectNode.FromString(received.payload)
        assert question.all
        self.asked.append(node)
        if node in self.silent:
            return
        answer = node_pb2.NodeInspected(request=question.request, received_ns=5, sent_ns=6)
        if not self.begun:
            self.receive(node, answer.SerializeToString())
            return
        worker = 0 if node == "a" else 1
        newest = self.executed + self.queued + worker
        glance = answer.sessions.add(session=SESSION, received=newest)
        rank = glance.ranks.add(worker=worker, node=node, pid=100 + worker, state="running")
        rank.finished.seq, rank.memory_bytes = self.executed + worker, 1 << 20
        rank.collectives, rank.collective_bytes = 2, 64 * self.executed
        if worker in self.busy:
            rank.current.seq, rank.current.action = self.executed + worker + 1, Action.SYNC_WORKER
        self.receive(node, answer.SerializeToString())

    def look(self, who=EVERYBODY, *, ended=False):
        return decode_overview(asyncio.run(self.overviews.snapshot(who, ended=ended)))


@pytest.fixture
def hurried(monkeypatch):
    """Nodes are asked at each look."""
    monkeypatch.setattr(inspect, "INTERVAL_S", 0.0)


def test_what_nodes_say_is_put_together():
    """Of each node, session and rank."""
    found = Room().look()
    assert [(n.name, n.state, n.slots, n.used) for n in found.nodes] == [
        ("a", "ready", 1, 1),
        ("b", "ready", 1, 1),
    ]
    assert all(node.latency_s is not None for node in found.nodes)
    (session,) = found.sessions
    assert (session.session, session.state, session.attached) == (SESSION, "running", True)
    assert (session.issued, session.executed, session.queued) == (31, 10, 21)
    assert [(r.worker, r.pid, r.state, r.executed) for r in session.ranks] == [
        (0, 100, "running", 10),
        (1, 101, "running", 11),
    ]
    assert session.ranks[1].current.what == "sync_worker"
    assert session.memory_bytes == 2 << 20
    assert session.commands_per_s is None


@pytest.mark.parametrize(
    ("changed", "state"),
    [
        ({"busy": set()}, "idle"),
        ({"busy": {1}}, "running"),
        ({"busy": set(), "queued": 5}, "running"),
        ({"busy": set(), "silent": {"b"}}, "running"),
        ({"busy": set(), "executed": 12}, "running"),
    ],
    ids=["nothing", "one-rank", "waiting", "silent", "between-two"],
)
def test_a_session_is_idle_where_no_rank_executes_anything(hurried, changed, state):
    """For everybody; a rank that is silent, or has executed commands since, may be busy."""
    room = Room()
    room.queued = -1  # all that came was executed by both ranks, of which one is ahead
    room.look()
    for name, value in changed.items():
        setattr(room, name, value)
    for who in (ALICE, BOB):
        assert [each.state for each in room.look(who).sessions] == [state]
        room.executed += changed.get("executed", 10) - 10


def test_however_many_look_nodes_are_asked_once_a_second():
    """At one time, and one after the other; nobody is asked where nobody looks."""
    room = Room()

    async def scenario():
        await asyncio.gather(*(room.overviews.snapshot(ROOT) for _ in range(5)))
        await room.overviews.snapshot(ALICE)

    assert not room.asked
    asyncio.run(scenario())
    assert room.asked == ["a", "b"]


def test_a_session_that_has_just_begun_is_waited_for(monkeypatch):
    """Until nodes may be asked again; nobody sees it without its ranks."""
    monkeypatch.setattr(inspect, "INTERVAL_S", 0.05)
    room = Room()
    room.begun = False
    room.look()
    room.begun = True
    (found,) = room.look().sessions
    assert [rank.state for rank in found.ranks] == ["running", "running"]
    assert room.asked == ["a", "b"] * 2


def test_who_goes_away_while_nodes_are_asked_takes_nothing_from_others(hurried):
    """The question goes on, because others wait for its answer."""
    room = Room()

    async def scenario():
        first = asyncio.ensure_future(room.overviews.snapshot())
        second = asyncio.ensure_future(room.overviews.snapshot())
        await asyncio.sleep(0)
        first.cancel()
        return await second

    assert asyncio.run(scenario()).sessions[0].ranks[0].report.state == "running"


def test_what_is_done_in_a_second_is_known_at_the_second_look(hurried):
    """Of commands and of bytes, by the time between the answers."""
    room = Room()
    room.look()
    room.executed += 50
    (session,) = room.look().sessions
    rank = session.ranks[0]
    assert rank.commands_per_s > 0
    assert rank.collective_bytes_per_s == pytest.approx(64 * rank.commands_per_s)
    assert session.commands_per_s == min(r.commands_per_s for r in session.ranks)


def test_a_look_long_ago_says_nothing_of_a_second(hurried, monkeypatch):
    """Whoever begins to watch sees no average of the hours before."""
    monkeypatch.setattr(inspect, "_RECENT_S", 0.0)
    room = Room()
    room.look()
    assert room.look().sessions[0].commands_per_s is None


def test_of_a_silent_node_nothing_is_said(hurried, monkeypatch):
    """Its ranks stay in the list, and what the others do is there."""
    monkeypatch.setattr(inspect, "_NODES_S", 0.05)
    room = Room()
    room.silent.add("b")
    found = room.look()
    assert [node.latency_s is None for node in found.nodes] == [False, True]
    (session,) = found.sessions
    assert [(r.worker, r.state) for r in session.ranks] == [(0, "running"), (1, "unknown")]
    assert session.executed == 10


def test_a_node_that_is_away_is_not_asked():
    """It could not answer."""
    room = Room()
    room.cluster.node_away("b", 1.0)
    assert [node.state for node in room.look().nodes] == ["ready", "away"]
    assert room.asked == ["a"]


def test_why_a_session_ended_is_its_owner_s_to_know():
    """Others see that it failed, as they saw that it ran; who does not ask sees what runs."""
    room = Room()
    room.cluster.end(SESSION, End(EndReason.RANK_LOST, "worker 1 on node 'b' exited"))
    for name in ("a", "b"):
        room.cluster.gone_on_node(SESSION, name)
    room.cluster.over[SESSION].ended = time.monotonic() - 60.0

    def seen(who):
        (session,) = room.look(who, ended=True).sessions
        assert 60.0 <= session.ended_s < 600.0
        return session.state, session.end_reason, session.end_message, len(session.ranks)

    assert seen(ALICE) == seen(ROOT) == ("failed", "rank_lost", "worker 1 on node 'b' exited", 2)
    assert seen(EYE) == ("failed", "", "", 2)
    assert seen(BOB) == ("failed", "", "", 0)
    assert room.look(ALICE).sessions == ()


def test_nodes_come_in_the_order_in_which_people_count():
    """However they joined."""
    room = Room()
    for name in ("node-10", "node-2", "node-1"):
        room.cluster.node_joined(Node(name, ("cpu",), 1, "1", name, 0.0, host_id=name))
    assert [n.name for n in room.look().nodes] == ["a", "b", "node-1", "node-2", "node-10"]


def test_others_see_the_lists_alone():
    """Owners and administrators see all, observers the places, and other clients not even those."""
    room = Room()

    def seen(who):
        (session,) = room.look(who).sessions
        return session.yours, session.issued > 0, [(r.pid, r.state) for r in session.ranks]

    assert seen(ALICE) == seen(ROOT) == (True, True, [(100, "running"), (101, "running")])
    assert seen(EYE) == (False, False, [(100, "unknown"), (101, "unknown")])
    assert seen(BOB) == (False, False, [])
