"""The controller's decisions about peers that come back: nodes, clients, and it itself."""

from __future__ import annotations

from dataclasses import replace

import pytest

from disco_client.transport.run_clock import RunClock
from disco_server.core.access import Identity, Role
from disco_server.core.cluster import Cluster, EndOnNode, Rejoined, SessionGone, TellEnded
from disco_server.core.nodes import Node, NodeRefused
from disco_server.core.session_state import End, EndReason, SessionState, SessionTable

LEASE, NODE_LEASE, RETURN = 10.0, 5.0, 2.0


def node(name, incarnation=1):
    return Node(name, ("cpu", "cpu"), incarnation, "0.1", "host", 0.0)


def empty():
    return Cluster(LEASE, NODE_LEASE, node_return=RETURN)


def hear(cluster, now):
    for name in list(cluster.members.nodes):
        cluster.node_heard(name, now)


def of(effects, kind):
    return [effect for effect in effects if isinstance(effect, kind)]


@pytest.fixture
def cluster():
    """Two nodes of two slots."""
    made = empty()
    made.node_joined(node("a"))
    made.node_joined(node("b"))
    return made


def start(cluster, number=1, workers=4):
    """A session that runs on both nodes."""
    asked = SessionTable(number, f"s{number}", "me", workers, 1, "", b"key", 0.0, 100.0)
    cluster.requested(asked)
    for share in asked.shares:
        ranks = [(worker, share.node, 100 + worker, "cpu") for worker in share.workers]
        cluster.ready_on_node(number, share.node, ranks)
    assert asked.state is SessionState.RUNNING
    return asked


def told_by(name, session):
    """A session as a node tells of it to a controller that never heard of it."""
    ranks = {worker: rank for worker, rank in session.ranks.items() if rank[1] == name}
    return replace(
        session, state=SessionState.RETURNING, ranks=ranks, waiting_for=set(), lease=LEASE
    )


def test_a_node_whose_connection_broke_is_waited_for(cluster):
    """Its sessions run on where it is back in time, and nobody else gets its slots meanwhile."""
    session = start(cluster, workers=3)
    assert cluster.node_away("b", 10.0) == []
    assert cluster.members.free_slots == 0
    hear(cluster, 10.0)
    assert of(cluster.tick(10.0 + RETURN - 0.1), TellEnded) == []
    effects = cluster.node_joined(node("b"), [told_by("b", session)], 11.9)
    assert effects == [Rejoined(session, "b")]
    assert session.state is SessionState.RUNNING
    assert cluster.members.free_slots == 1
    hear(cluster, 13.0)
    assert of(cluster.tick(13.0), TellEnded) == []


def test_a_node_that_does_not_come_back_ends_its_sessions(cluster):
    """When its time is over; the session's end names it."""
    start(cluster)
    cluster.node_away("b", 10.0)
    cluster.node_heard("a", 12.0)
    (told,) = of(cluster.tick(10.0 + RETURN), TellEnded)
    assert (told.end.reason, told.end.node) == (EndReason.NODE_LOST, "b")


def test_a_node_without_sessions_is_not_waited_for(cluster):
    """It is no longer listed, and may join again as any other."""
    assert cluster.node_away("b", 10.0) == []
    assert list(cluster.members.nodes) == ["a"]
    cluster.node_joined(node("b", incarnation=2))


def test_a_daemon_that_was_started_again_is_not_the_one_that_left(cluster):
    """Its ranks ended with the former one, so the session ends at once."""
    start(cluster)
    with pytest.raises(NodeRefused, match="connected already"):
        cluster.node_joined(node("b", incarnation=2))
    cluster.node_away("b", 10.0)
    (told,) = of(cluster.node_joined(node("b", incarnation=2), (), 10.5), TellEnded)
    assert "started again" in told.end.message


def test_a_node_that_comes_back_without_its_ranks_ends_their_session(cluster):
    """It ended them itself, because it was apart for longer than their lease."""
    session = start(cluster)
    cluster.node_away("b", 10.0)
    effects = cluster.node_joined(node("b"), (), 11.0)
    (told,) = of(effects, TellEnded)
    assert (told.end.reason, told.end.node) == (EndReason.NODE_LOST, "b")
    assert of(effects, EndOnNode)[0] == EndOnNode("a", 1)
    assert session.waiting_for == {"a"}


def test_a_node_is_told_of_what_ended_while_it_was_away(cluster):
    """Ended or gone by now: its ranks end, and only then are its slots free."""
    session = start(cluster)
    cluster.node_away("b", 10.0)
    cluster.end(1, End(EndReason.CLOSED, ""))
    assert of(cluster.node_joined(node("b"), [told_by("b", session)], 11.0), EndOnNode) == [
        EndOnNode("b", 1)
    ]
    cluster.gone_on_node(1, "a")
    assert cluster.gone_on_node(1, "b") == [SessionGone(1)]
    # Late, from a node that was lost meanwhile.
    cluster.node_left("b", "it was silent")
    late = cluster.node_joined(node("b"), [told_by("b", session)], 30.0)
    assert late == [EndOnNode("b", 1)]


def test_a_session_that_only_starts_does_not_wait_for_its_node(cluster):
    """Nobody knows what of its ranks is there, and its client has nothing to lose."""
    asked = SessionTable(1, "s1", "me", 4, 1, "", b"key", 0.0, 100.0)
    cluster.requested(asked)
    (told,) = of(cluster.node_away("a", 1.0), TellEnded)
    assert "while workers were started" in told.end.message


def test_a_controller_that_starts_again_learns_its_sessions_from_the_nodes(cluster):
    """With the last of its nodes the session is back, with slots taken and ranks known."""
    session = start(cluster, workers=3)
    later = empty()
    (back,) = of(later.node_joined(node("b"), [told_by("b", session)], 100.0), Rejoined)
    assert back.session.state is SessionState.RETURNING
    assert later.members.free_slots == 1
    later.node_joined(node("a"), [told_by("a", session)], 101.0)
    assert back.session.state is SessionState.DETACHED
    assert sorted(back.session.ranks) == [0, 1, 2]
    assert later.members.free_slots == 1
    later.client_back(1, "me again")
    assert (back.session.state, back.session.owner) == (SessionState.RUNNING, "me again")
    hear(later, 101.0 + 2 * LEASE)
    assert of(later.tick(101.0 + 2 * LEASE), TellEnded) == []


def test_a_session_of_which_a_node_is_missing_ends_after_the_lease_of_nodes(cluster):
    """The end names the node."""
    session = start(cluster)
    later = empty()
    later.node_joined(node("b"), [told_by("b", session)], 100.0)
    later.node_heard("b", 104.0)
    assert of(later.tick(100.0 + NODE_LEASE - 0.1), TellEnded) == []
    (told,) = of(later.tick(100.0 + NODE_LEASE), TellEnded)
    assert (told.end.reason, told.end.node) == (EndReason.NODE_LOST, "a")
    assert "did not come back to a controller that was started again" in told.end.message


def test_a_client_may_ask_for_a_longer_wait(cluster):
    """Until then somebody may attach; the end says how long that was."""
    session = start(cluster)
    cluster.client_left(1, 5.0, lease=100.0)
    for now in (5.0 + LEASE, 104.9):
        hear(cluster, now)
        assert of(cluster.tick(now), TellEnded) == []
    assert session.state is SessionState.DETACHED
    (told,) = of(cluster.tick(105.0), TellEnded)
    assert "within 100 s" in told.end.message


def test_sessions_are_found_by_name_and_by_id(cluster):
    """Of several of one name it is the newest."""
    first, second = start(cluster, 1, 1), start(cluster, 2, 1)
    second.name, second.created = first.name, 7.0
    assert cluster.find("s1") is second
    assert cluster.find(f"{1:016x}") is first
    assert cluster.find("nobody") is None


def test_a_beginning_of_an_id_names_a_session():
    """Those that run come first, then one's own; of several the text lists whole ids."""
    ids = (0x3A6B82CF00000001, 0x3A6C000000000002, 0x3A6C0F0000000003)
    cluster = empty()
    for number in ids:
        cluster.sessions[number] = SessionTable(
            number, f"s{number % 16}", "me", 1, 1, "", b"key", 0.0, 100.0
        )
    assert cluster.find("3a6b") is cluster.find("3A6B82CF") is cluster.sessions[ids[0]]
    assert cluster.find("3a6") is None
    with pytest.raises(LookupError, match=r"3a6c000000000002 \('s.*3a6c0f0000000003"):
        cluster.find("3a6c")
    cluster.sessions[ids[1]].principal = "token:alice"
    cluster.sessions[ids[2]].principal = "token:bob"
    alice = Identity(Role.CLIENT, "alice", "token")
    assert cluster.find("3a6c", alice) is cluster.sessions[ids[1]]
    cluster.over[ids[2]] = cluster.sessions.pop(ids[2])
    assert cluster.find("3a6c", ended=True) is cluster.sessions[ids[1]]
    assert cluster.find("3a6c0f") is None
    assert cluster.find("3a6c0f", ended=True) is cluster.over[ids[2]]


def test_what_is_gone_is_remembered_for_a_while(cluster):
    """So that its client, coming back, hears how it ended; only the latest are kept."""
    start(cluster, workers=1)
    end = End(EndReason.RANK_LOST, "a rank ended")
    cluster.end(1, end)
    cluster.gone_on_node(1, "a")
    assert cluster.over[1].end is end
    for number in range(2, 1100):
        start(cluster, number, 1)
        cluster.end(number, end)
        cluster.gone_on_node(number, "a")
    assert len(cluster.over) == 1024
    assert 1 not in cluster.over


# A controller that stands still --------------------------------------------------------------


class Judge:
    """Feeds a cluster with the time in which its controller ran."""

    def __init__(self, cluster):
        self.cluster = cluster
        self.real = 0.0
        self.clock = RunClock(1.0, lambda: self.real)

    def run(self, seconds, heard=()):
        """Lets time pass in turns, in which some nodes are heard of; returns the effects."""
        effects = []
        for _ in range(int(seconds * 2)):
            self.real += 0.5
            for name in heard:
                self.cluster.node_heard(name, self.clock.turn())
            effects += self.cluster.tick(self.clock.turn())
        return effects

    def stand_still(self, seconds):
        """Lets time pass in which nothing is read; what comes of the first turn after it."""
        self.real += seconds
        return self.cluster.tick(self.clock.turn())


@pytest.fixture
def judge(cluster):
    """One who has run for a while, and heard of both nodes."""
    made = Judge(cluster)
    start(cluster)
    assert made.run(20, heard="ab") == []
    return made


def test_a_controller_that_stood_still_hears_before_it_judges(judge):
    """No node is lost, however long it was; and those that are heard of stay."""
    for _ in range(3):
        assert judge.stand_still(100 * NODE_LEASE) == []
        assert judge.run(2 * NODE_LEASE, heard="ab") == []


def test_a_node_that_is_silent_beyond_the_controller_s_own_stall_is_lost(judge):
    """Its silence counts from before the stall, and ends by what the controller ran alone."""
    assert judge.run(NODE_LEASE - 2, heard="b") == []
    assert judge.stand_still(100.0) == []
    (ended,) = of(judge.run(2, heard="b"), TellEnded)
    assert ended.end.reason is EndReason.NODE_LOST
    assert ended.end.node == "a"


def test_who_is_away_may_still_come_back_after_the_controller_stood_still(judge):
    """A client's lease, a wait for slots and a node's return go by the same time."""
    cluster = judge.cluster
    waits = SessionTable(2, "waits", "me", 4, 1, "", b"key", 0.0, judge.clock() + 5)
    cluster.requested(waits)
    cluster.client_left(1, judge.clock())
    cluster.node_away("a", judge.clock())
    assert judge.stand_still(1000.0) == []
    assert of(judge.run(RETURN, heard="b"), TellEnded)[0].end.node == "a"
    assert waits.state is SessionState.QUEUED


def test_a_node_behind_a_slow_link_has_the_time_that_its_return_takes(cluster):
    """What its newest answer took counts, because a link or a machine may have become slow."""
    start(cluster)
    for seconds in (3.0, 0.1, 0.4):
        cluster.node_answered("a", seconds)
    cluster.node_away("a", 10.0)
    hear(cluster, 15.0)
    assert cluster.tick(10.0 + RETURN + 3.5) == []
    assert of(cluster.tick(10.0 + RETURN + 3.6 + 1e-6), TellEnded)
    cluster.node_answered("gone", 1.0)


def test_a_node_that_answers_very_late_has_no_more_than_its_lease_besides(cluster):
    """Else one slow answer would hold slots for minutes."""
    start(cluster)
    cluster.node_answered("a", 60.0)
    cluster.node_away("a", 10.0)
    hear(cluster, 10.0 + RETURN + NODE_LEASE - 0.1)
    assert cluster.tick(10.0 + RETURN + NODE_LEASE - 0.1) == []
    assert of(cluster.tick(10.0 + RETURN + NODE_LEASE + 1e-6), TellEnded)
