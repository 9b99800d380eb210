"""The controller's decisions: scenarios, and a model that no sequence of events may break."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    initialize,
    invariant,
    rule,
)

from disco_server.core.cluster import (
    LATELY_S,
    Cluster,
    CordonNode,
    DropNode,
    EndOnNode,
    SessionGone,
    StartSession,
    TellDraining,
    TellEnded,
    TellQueued,
    TellReady,
)
from disco_server.core.fair_queue import QueuePlace, WaitReason
from disco_server.core.nodes import Node, NodeRefused, place
from disco_server.core.quotas import Quota, SessionLimits
from disco_server.core.session_state import End, EndReason, SessionState, SessionTable

LEASE = 10.0
NODE_LEASE = 5.0


def node(name, slots=2, heard=0.0, incarnation=1, **more):
    return Node(name, ("cpu",) * slots, incarnation, "0.1", "host", heard, **more)


def session(number, workers=2, deadline=100.0):
    return SessionTable(number, f"s{number}", "me@here:1", workers, 1, "", b"key", 0.0, deadline)


def of(effects, kind):
    return [effect for effect in effects if isinstance(effect, kind)]


@pytest.fixture
def cluster():
    """Two nodes of two slots."""
    made = Cluster(LEASE, NODE_LEASE)
    made.node_joined(node("a"))
    made.node_joined(node("b"))
    return made


def start(cluster, number, workers=2):
    """A session that runs."""
    asked = session(number, workers)
    cluster.requested(asked)
    for share in asked.shares:
        ranks = [(worker, share.node, 100 + worker, "cpu") for worker in share.workers]
        cluster.ready_on_node(number, share.node, ranks)
    assert asked.state is SessionState.RUNNING
    return asked


def test_a_session_goes_from_request_to_ready_to_gone(cluster):
    """Each party is told once, and the slots are free when the last node says so."""
    asked = session(1, 3)
    effects = cluster.requested(asked)
    assert effects == [StartSession(asked)]
    assert [share.node for share in asked.shares] == ["a", "b"]
    assert cluster.members.free_slots == 1
    assert cluster.ready_on_node(1, "a", [(0, "a", 10, "cpu"), (1, "a", 11, "cpu")]) == []
    assert cluster.ready_on_node(1, "b", [(2, "b", 12, "cpu")]) == [TellReady(asked)]
    assert sorted(asked.ranks) == [0, 1, 2]
    end = End(EndReason.CLOSED, "done")
    effects = cluster.end(1, end)
    assert effects == [TellEnded(asked, end), EndOnNode("a", 1), EndOnNode("b", 1)]
    assert cluster.end(1, end) == []
    assert cluster.gone_on_node(1, "a") == []
    assert cluster.members.free_slots == 3
    assert cluster.gone_on_node(1, "b") == [SessionGone(1)]
    assert cluster.members.free_slots == 4
    assert cluster.gone_on_node(1, "b") == []


def test_a_session_that_does_not_fit_waits_and_is_told_its_place(cluster):
    """When it came, and again with each beat; not with each change."""
    start(cluster, 1, 4)
    second, third = session(2, 4), session(3, 1)
    first, behind = QueuePlace(0, WaitReason.NO_SLOTS, 4), QueuePlace(1, WaitReason.TURN, 4)
    assert cluster.requested(second) == [TellQueued(second, first)]
    assert cluster.requested(third) == [TellQueued(third, behind)]
    assert cluster.tick(0.0) == []
    cluster.end(1, End(EndReason.CLOSED, ""))
    cluster.gone_on_node(1, "a")
    effects = cluster.gone_on_node(1, "b")
    assert {effect.session.session for effect in of(effects, StartSession)} == {2}
    assert of(effects, TellQueued) == []
    assert cluster.tell_queue() == [TellQueued(third, first)]


def test_a_lost_rank_ends_its_session_with_all_that_is_known(cluster):
    """Node, rank, status and last words; before the start it is another reason."""
    asked = start(cluster, 1)
    effects = cluster.rank_exited(1, "a", 1, -9, ("last words",), at_start=False)
    (told,) = of(effects, TellEnded)
    assert told.end.reason is EndReason.RANK_LOST
    assert (told.end.worker, told.end.node, told.end.exit_status) == (1, "a", -9)
    assert told.end.output == ("last words",)
    assert "worker 1 on node 'a' died of SIGKILL (signal 9, Killed)" in told.end.message
    assert cluster.rank_exited(1, "a", 0, -9, (), at_start=False) == []
    assert asked.end is told.end
    cluster.requested(session(2))
    (told,) = of(cluster.rank_exited(2, "b", 0, 1, (), at_start=True), TellEnded)
    assert told.end.reason is EndReason.START_FAILED
    assert "could not be started" in told.end.message


def test_those_that_ended_are_known_for_ten_minutes_and_not_without_bound(cluster):
    """With their reason; the clock is whoever asks's."""
    for number in (1, 2):
        start(cluster, number)
        cluster.end(number, End(EndReason.CLOSED if number == 1 else EndReason.RANK_LOST, "why"))
        for name in ("a", "b"):
            cluster.gone_on_node(number, name)
        cluster.over[number].ended = 100.0 * number
    assert [(s.session, s.end.as_wished) for s in cluster.lately_over(250.0)] == [
        (1, True),
        (2, False),
    ]
    assert [s.session for s in cluster.lately_over(200.0 + LATELY_S)] == [2]
    assert cluster.lately_over(201.0 + LATELY_S) == []
    for number in range(10, 3000):
        cluster.draining = True
        cluster.requested(session(number))
        cluster.over[number].ended = 300.0
    assert len(cluster.lately_over(300.0)) <= 1024


def test_a_lost_node_ends_its_sessions_and_frees_what_they_held_elsewhere(cluster):
    """The other nodes of those sessions are told; sessions beside them go on."""
    both, other = start(cluster, 1, 3), start(cluster, 2, 1)
    effects = cluster.node_left("a", "it broke")
    assert [told.session for told in of(effects, TellEnded)] == [both]
    assert of(effects, TellEnded)[0].end.reason is EndReason.NODE_LOST
    assert of(effects, TellEnded)[0].end.node == "a"
    assert of(effects, EndOnNode) == [EndOnNode("b", 1)]
    assert other.state is SessionState.RUNNING
    assert cluster.gone_on_node(1, "b") == [SessionGone(1)]
    assert cluster.node_left("a", "again") == []
    assert (cluster.members.total_slots, cluster.members.free_slots) == (2, 1)


def test_a_node_that_leaves_takes_no_more_sessions(cluster):
    """Its running ones end with its name, and nothing new is placed there."""
    start(cluster, 1, 2)
    effects = cluster.node_leaving("a")
    assert of(effects, TellEnded)[0].end.node == "a"
    cluster.gone_on_node(1, "a")
    start(cluster, 2, 2)
    assert cluster.sessions[2].shares[0].node == "b"
    waiting = session(3, 1)
    cluster.requested(waiting)
    assert waiting.state is SessionState.QUEUED
    assert cluster.node_leaving("nobody") == []


def test_a_cordoned_node_keeps_its_sessions_and_takes_no_more(cluster):
    """Also while its connection is away, and after it has come back."""
    start(cluster, 1, 2)
    (told,) = cluster.node_cordoned("a")
    assert told == TellDraining(cluster.sessions[1])
    assert cluster.draining_ranks(cluster.sessions[1]) == [0]
    assert cluster.node_cordoned("nobody") == []
    assert cluster.members.nodes["a"].state == "draining"
    start(cluster, 2, 2)
    assert cluster.sessions[2].shares[0].node == "b"
    assert of(cluster.node_away("a", 1.0), TellEnded) == []
    assert cluster.sessions[1].state is SessionState.RUNNING
    returned = cluster.node_joined(node("a", cordoned=True), [cluster.sessions[1]], 2.0)
    assert of(returned, TellDraining) == [TellDraining(cluster.sessions[1])]
    assert cluster.sessions[1].state is SessionState.RUNNING
    waiting = session(3, 1)
    cluster.requested(waiting)
    assert waiting.state is SessionState.QUEUED


def test_a_drained_node_stays_so_until_that_is_undone(cluster):
    """Its sessions go on and their clients are told; whoever waits is placed when it is undone."""
    start(cluster, 1, 2)
    cordon, told = cluster.node_drained("a", "ops: new disk")
    assert (cordon, told) == (
        CordonNode("a", "ops: new disk"),
        TellDraining(cluster.sessions[1]),
    )
    assert cluster.sessions[1].state is SessionState.RUNNING
    start(cluster, 2, 2)
    assert cluster.sessions[2].shares[0].node == "b"
    waiting, behind = session(3, 1, deadline=1.0), session(4, 1)
    cluster.requested(waiting)
    cluster.requested(behind)
    assert cluster.waiting(0.0) == {
        3: "needs 1, 0 of 2 slots free; node 'a' drains with 2 slots (ops: new disk)",
        4: "needs 1, 0 of 2 slots free; node 'a' drains with 2 slots (ops: new disk)",
    }
    (ended,) = of(cluster.tick(1.0), TellEnded)
    assert "node 'a' drains with 2 slots (ops: new disk)" in ended.end.message
    cluster.end(1, End(EndReason.CLOSED, "closed"))
    cluster.gone_on_node(1, "a")
    assert behind.state is SessionState.QUEUED
    effects = cluster.node_undrained("a")
    assert of(effects, CordonNode) == [CordonNode("a", "")]
    assert [start.session for start in of(effects, StartSession)] == [behind]
    assert cluster.node_undrained("a") == []
    assert cluster.waiting(1.0) == {}


def test_a_session_that_would_fit_without_a_drain_is_told_how_to_undo_it(cluster):
    """Where no node is left it is the way to go on, too."""
    cluster.node_drained("a", "on request")
    cluster.requested(session(1, 4, deadline=1.0))
    (ended,) = of(cluster.tick(1.0), TellEnded)
    assert "disco drain NODE --undo" in ended.end.message


def test_a_client_is_told_that_its_node_takes_sessions_again(cluster):
    """It is named, as the others may still drain."""
    start(cluster, 1, 4)
    cluster.node_drained("a", "on request")
    told = of(cluster.node_undrained("a"), TellDraining)
    assert told == [TellDraining(cluster.sessions[1], "a")]
    assert cluster.draining_ranks(cluster.sessions[1]) == []


def test_a_daemon_that_was_started_again_is_drained_as_before(cluster):
    """A new start does not undo it; what was undone meanwhile is undone."""
    cluster.node_drained("a", "ops")
    cluster.node_left("a", "it ended")
    assert of(cluster.node_joined(node("a", incarnation=2)), CordonNode) == [CordonNode("a", "ops")]
    assert cluster.members.nodes["a"].state == "draining"
    cluster.node_left("a", "it ended")
    assert cluster.node_undrained("a") == []
    cluster.node_joined(node("a", incarnation=3))
    assert cluster.members.nodes["a"].state == "ready"


def test_a_controller_learns_of_a_drain_from_the_daemon(cluster):
    """Which keeps it, as its controller may have been started again; but this one's word counts."""
    cluster.node_joined(node("c", cordoned=True, drained="ops"))
    assert cluster.members.find("c") == "c"
    assert cluster.members.drained["c"] == "ops"
    cluster.node_left("c", "its connection broke")
    cluster.node_undrained("c")
    effects = cluster.node_joined(node("c", cordoned=True, drained="ops"))
    assert of(effects, CordonNode) == [CordonNode("c", "")]
    assert cluster.members.nodes["c"].state == "ready"


def test_a_silent_node_is_dropped_after_the_lease(cluster):
    """Whoever was heard in time stays."""
    start(cluster, 1, 4)
    cluster.node_heard("a", 3.0)
    assert cluster.tick(NODE_LEASE) == []
    effects = cluster.tick(NODE_LEASE + 1)
    assert [drop.node for drop in of(effects, DropNode)] == ["b"]
    assert of(effects, TellEnded)[0].end.node == "b"
    assert list(cluster.members.nodes) == ["a"]


def test_a_wait_for_slots_ends_at_its_time_with_the_reason(cluster):
    """How many there are, who has them, and what to do; the next one may then fit."""
    start(cluster, 1, 3)
    cluster.requested(session(2, 4, deadline=5.0))
    small = session(3, 1)
    cluster.requested(small)
    assert cluster.tick(4.9) == []
    effects = cluster.tick(5.0)
    (told,) = of(effects, TellEnded)
    assert told.end.reason is EndReason.NO_SLOTS
    assert "4 slots on 2 nodes, 1 of them free" in told.end.message
    assert "'s1' holds 3 (me@here:1)" in told.end.message
    assert "wait longer" in told.end.message
    assert [e.session for e in of(effects, StartSession)] == [small]


def test_of_those_that_give_up_together_none_is_placed_in_the_place_of_another():
    """Those that asked for the same are told the same; who still waits has the slots."""
    cluster = Cluster(LEASE, NODE_LEASE)
    cluster.node_joined(node("a"))
    start(cluster, 1, 1)
    late = [session(number, 2, deadline=5.0) for number in (2, 3)]
    late.append(session(4, 1, deadline=5.0))
    patient = session(5, 1)
    for each in (*late, patient):
        cluster.requested(each)
    effects = cluster.tick(5.0)
    told = of(effects, TellEnded)
    assert [each.session for each in told] == late
    assert told[0].end.message == told[1].end.message != told[2].end.message
    assert [each.session for each in of(effects, StartSession)] == [patient]
    assert not cluster.queue


def test_room_is_looked_for_once_for_all_that_ask_for_the_same():
    """A tick of a long queue places as often as there are requests of different size."""
    asked: list[int] = []

    def placer(workers, free):
        asked.append(workers)
        return place(workers, free)

    cluster = Cluster(LEASE, NODE_LEASE, placer=placer, expect_nodes=1)
    cluster.node_joined(node("a"))
    start(cluster, 1)
    for number in range(2, 42):
        cluster.requested(session(number, 1 + number % 2, deadline=5.0))
    asked.clear()
    assert of(cluster.tick(1.0), TellEnded) == []
    assert sorted(asked) == [1, 2]
    assert len(of(cluster.tick(5.0), TellEnded)) == 40
    assert sorted(asked) == [1, 1, 2, 2]


def mixed():
    """A node of two CPU slots and one of two GPUs."""
    made = Cluster(LEASE, NODE_LEASE)
    made.node_joined(node("a"))
    made.node_joined(Node("g", ("cuda:0", "cuda:1"), 1, "0.1", "host", 0.0))
    return made


@pytest.mark.parametrize(("ccl", "where"), [("", "a"), ("mpi", "a"), ("nccl", "g")])
def test_a_session_gets_slots_of_the_kind_that_its_library_needs(ccl, where):
    """GPUs for a library of GPUs; where any kind serves, the one that came first."""
    asked = replace(session(1, 2), ccl=ccl)
    mixed().requested(asked)
    assert [share.node for share in asked.shares] == [where]


def test_slots_of_different_kinds_make_no_session_together():
    """It waits, and is told that there are enough slots but not of one kind."""
    cluster = mixed()
    asked = session(1, 3, deadline=5.0)
    cluster.requested(asked)
    assert asked.state is SessionState.QUEUED
    (told,) = of(cluster.tick(5.0), TellEnded)
    assert "4 slots (2 cpu, 2 cuda) on 2 nodes" in told.end.message
    assert "devices of one kind" in told.end.message


@pytest.mark.parametrize(
    ("nodes", "workers", "advice"),
    [(0, 1, "start a worker daemon"), (1, 3, "add nodes or slots"), (1, 2, "wait longer")],
)
def test_what_to_do_depends_on_what_is_missing(nodes, workers, advice):
    """No daemon at all, too few slots, or only no free ones."""
    cluster = Cluster(LEASE, 1e9)
    for index in range(nodes):
        cluster.node_joined(node(f"n{index}"))
    if workers == 2:
        start(cluster, 1, 1)
    cluster.requested(session(2, workers, deadline=1.0))
    assert advice in of(cluster.tick(2.0), TellEnded)[0].end.message


def test_a_client_that_is_cut_off_has_its_lease(cluster):
    """Its session ends when it does not come back; one that only waited ends at once."""
    asked = start(cluster, 1, 4)
    assert cluster.client_left(1, now=7.0) == []
    assert asked.state is SessionState.DETACHED
    for name in ("a", "b"):
        cluster.node_heard(name, 15.0)
    assert of(cluster.tick(7.0 + LEASE - 0.1), TellEnded) == []
    (told,) = of(cluster.tick(7.0 + LEASE), TellEnded)
    assert "did not come back within 10 s" in told.end.message
    cluster.requested(session(2))
    assert of(cluster.client_left(2, 20.0), SessionGone) == [SessionGone(2)]
    assert cluster.client_left(2, 20.0) == []


def test_who_waits_is_told_whose_program_is_lost(cluster):
    """With how long its slots are held at most, in steps; a program that detached is not lost."""
    start(cluster, 1, 3)
    start(cluster, 2, 1)
    assert cluster.held_by_lost(0.0) == ""
    cluster.client_left(1, 5.0)
    cluster.requested(session(3, deadline=1e9))
    lost = "session 's1' has lost its program, its slots are free in at most 10 s"
    assert cluster.held_by_lost(5.0) == cluster.held_by_lost(5.1) == lost
    assert cluster.waiting(5.0)[3].endswith(f"0 of 4 slots free; {lost}")
    cluster.client_left(2, 5.0, 600.0)
    told = cluster.held_by_lost(34.0).partition(", session ")[2]
    assert told == "'s2' is detached, its slots are free in at most 580 s"
    cluster.client_back(1, "me")
    assert "s1" not in cluster.held_by_lost(5.0)


def test_without_a_lease_a_session_ends_with_its_connection():
    """For those who want their slots at once."""
    cluster = Cluster(0.0, NODE_LEASE)
    cluster.node_joined(node("a"))
    start(cluster, 1)
    assert of(cluster.client_left(1, 1.0), TellEnded)


def test_more_sessions_than_it_takes_are_refused():
    """Those that wait for slots count too; when one is gone there is room."""
    made = Cluster(10.0, 5.0, limits=SessionLimits(total=2))
    made.node_joined(node("a"))
    for number in (1, 2):
        made.requested(session(number))
    late = session(3)
    (told,) = of(made.requested(late), TellEnded)
    assert told.end.reason is EndReason.NO_SLOTS
    assert "--max-sessions" in told.end.message
    assert 3 not in made.sessions
    made.end(2, told.end)
    assert not of(made.requested(session(4)), TellEnded)


def test_a_draining_controller_ends_everything_and_starts_nothing(cluster):
    """Those that wait are told too, and whoever asks now is refused."""
    start(cluster, 1, 3)
    cluster.requested(session(2, 4))
    cluster.requested(session(3, 1))
    effects = cluster.drain()
    assert {told.session.session for told in of(effects, TellEnded)} == {1, 2, 3}
    assert {told.end.reason for told in of(effects, TellEnded)} == {EndReason.DRAINED}
    assert of(effects, StartSession) == []
    late = session(4)
    assert of(cluster.requested(late), TellEnded)[0].end.reason is EndReason.DRAINED
    cluster.gone_on_node(1, "a")
    assert of(cluster.gone_on_node(1, "b"), StartSession) == []
    assert cluster.sessions == {}


def test_what_arrives_too_late_changes_nothing(cluster):
    """Messages of nodes cross the end of a session on their way."""
    start(cluster, 1)
    cluster.end(1, End(EndReason.CLOSED, ""))
    assert cluster.ready_on_node(1, "a", []) == []
    assert cluster.rank_exited(1, "a", 0, 0, (), at_start=False) == []
    assert cluster.ready_on_node(99, "a", []) == []
    assert cluster.gone_on_node(99, "a") == []
    assert cluster.end(99, End(EndReason.CLOSED, "")) == []


def asked_for(number, least, most, groups=1, owner="me@here:1"):
    table = session(number, least)
    table.most_workers, table.num_groups, table.owner_key = most, groups, owner
    return table


def test_a_session_takes_as_many_as_are_free_when_its_turn_comes(cluster):
    """Up to what it asked for, in groups of one size; and no more than its owner may hold."""
    first = asked_for(1, 2, 3)
    cluster.requested(first)
    assert first.num_workers == 3
    second = asked_for(2, 1, 8)
    cluster.requested(second)
    assert (second.num_workers, cluster.members.free_slots) == (1, 0)
    cluster.node_joined(node("c", 5))
    assert (second.num_workers, cluster.members.free_slots) == (1, 5), "it never grows"
    pairs = asked_for(3, 2, 8, groups=2)
    cluster.requested(pairs)
    assert pairs.num_workers == 4
    limited = Cluster(LEASE, NODE_LEASE, limits=SessionLimits(quota=Quota(slots=3)))
    limited.node_joined(node("a", 8))
    one, other, waits = (asked_for(number, 1, 2) for number in (1, 2, 3))
    for each in (one, other, waits):
        limited.requested(each)
    assert (one.num_workers, other.num_workers) == (2, 1)
    assert waits.state is SessionState.QUEUED


def test_slots_that_are_being_given_back_are_waited_for(cluster):
    """So that who takes the place of a session that is lost has as many workers as there can be."""
    running = start(cluster, 1, 4)
    cluster.rank_exited(1, "a", 0, -9, (), at_start=False)
    successor = asked_for(2, 1, 4)
    cluster.requested(successor)
    cluster.gone_on_node(1, "a")
    assert successor.state is SessionState.QUEUED
    cluster.node_left("b", "it is gone")
    assert running.state is SessionState.GONE
    assert successor.num_workers == 2


class ClusterMachine(RuleBasedStateMachine):
    """Any events in any order, with a world that does what the effects say."""

    nodes = Bundle("nodes")
    sessions = Bundle("sessions")

    @initialize()
    def begin(self):
        self.cluster = Cluster(LEASE, 1e9)
        self.now, self.count = 0.0, 0
        self.tables, self.queue, self.asked = {}, [], {}
        self.held = {}  # node: {slot: session}, of the nodes that are here
        self.ending = set()  # (node, session) that owe a "gone"
        self.starting = {}  # session: nodes that owe a "ready"
        self.ended, self.gone = [], []

    def carry_out(self, effects):
        placed = {}
        for effect in effects:
            match effect:
                case StartSession(table):
                    assert not self.cluster.draining
                    for share in table.shares:
                        taken = self.held[share.node]
                        assert not set(share.slots) & set(taken), "a slot was given twice"
                        assert len(share.slots) == len(share.workers) == len(share.devices)
                        taken.update(dict.fromkeys(share.slots, table.session))
                        placed.setdefault(table.session, []).extend(share.workers)
                        self.starting.setdefault(table.session, set()).add(share.node)
                    least, most = self.asked[table.session]
                    assert least <= table.num_workers <= most
                case EndOnNode(name, number):
                    assert name in self.held
                    self.ending.add((name, number))
                    self.starting.pop(number, None)
                case TellReady(table):
                    assert sorted(table.ranks) == list(range(table.num_workers))
                case TellEnded(table, _):
                    assert table.session not in self.ended
                    self.ended.append(table.session)
                    if table.session in self.queue:
                        self.queue.remove(table.session)
                case SessionGone(number):
                    assert number in self.ended
                    assert number not in self.gone
                    self.gone.append(number)
                    assert all(number not in taken.values() for taken in self.held.values())
                case TellQueued(table, place):
                    assert self.queue[place.ahead] == table.session
                case _:
                    pass
        for number, workers in placed.items():
            assert workers == list(range(self.tables[number].num_workers)), "all ranks or none"
            assert self.queue.pop(0) == number, "the order of arrival"

    @rule(target=nodes, slots=st.integers(1, 3))
    def join(self, slots):
        self.count += 1
        name = f"n{self.count}"
        self.held[name] = {}
        self.carry_out(self.cluster.node_joined(node(name, slots)))
        return name

    @rule(name=nodes)
    def join_twice(self, name):
        if name in self.held:
            with pytest.raises(NodeRefused):
                self.cluster.node_joined(node(name, incarnation=2))

    @rule(name=consumes(nodes))
    def leave(self, name):
        del self.held[name]
        self.ending = {(n, s) for n, s in self.ending if n != name}
        for owed in self.starting.values():
            owed.discard(name)
        self.carry_out(self.cluster.node_left(name, "gone"))

    @rule(name=nodes)
    def cordon_node(self, name):
        self.cluster.node_cordoned(name)

    @rule(name=nodes)
    def drain_node(self, name):
        self.carry_out(self.cluster.node_drained(name, "somebody"))

    @rule(name=nodes)
    def undrain_node(self, name):
        self.carry_out(self.cluster.node_undrained(name))

    @rule(name=nodes)
    def node_leaves(self, name):
        self.carry_out(self.cluster.node_leaving(name))

    @rule(
        target=sessions,
        workers=st.integers(1, 5),
        more=st.integers(0, 4),
        patience=st.integers(1, 20),
    )
    def request(self, workers, more, patience):
        self.count += 1
        table = session(self.count, workers, self.now + patience)
        table.most_workers = workers + more
        self.asked[self.count] = workers, workers + more
        self.tables[self.count] = table
        self.queue.append(self.count)
        self.carry_out(self.cluster.requested(table))
        return self.count

    @rule(number=sessions, choice=st.integers(0, 9))
    def ready(self, number, choice):
        owed = sorted(self.starting.get(number, ()))
        if owed:
            name = owed[choice % len(owed)]
            self.starting[number].discard(name)
            share = next(s for s in self.tables[number].shares if s.node == name)
            ranks = [(worker, name, 1, "cpu") for worker in share.workers]
            self.carry_out(self.cluster.ready_on_node(number, name, ranks))

    @rule(number=sessions, worker=st.integers(0, 4))
    def rank_dies(self, number, worker):
        shares = self.tables[number].shares
        if shares:
            self.carry_out(
                self.cluster.rank_exited(number, shares[0].node, worker, -9, (), at_start=False)
            )

    @rule(number=sessions)
    def close(self, number):
        self.carry_out(self.cluster.end(number, End(EndReason.CLOSED, "closed")))

    @rule(number=sessions)
    def lose_client(self, number):
        self.carry_out(self.cluster.client_left(number, self.now))

    @rule(choice=st.integers(0, 99))
    def report_gone(self, choice):
        if self.ending:
            name, number = owed = sorted(self.ending)[choice % len(self.ending)]
            self.ending.discard(owed)
            taken = self.held[name]
            self.held[name] = {slot: s for slot, s in taken.items() if s != number}
            self.carry_out(self.cluster.gone_on_node(number, name))

    @rule(by=st.integers(1, 8))
    def time_passes(self, by):
        self.now += by
        self.carry_out(self.cluster.tick(self.now))

    @rule()
    def drain(self):
        if self.count > 6:
            self.carry_out(self.cluster.drain())

    @invariant()
    def slots_are_counted_right(self):
        if not hasattr(self, "cluster"):
            return
        members = self.cluster.members
        for name, known in members.nodes.items():
            assert known.taken == self.held[name]
        assert set(self.cluster.sessions) == set(self.tables) - set(self.gone)

    @invariant()
    def nobody_waits_who_could_run(self):
        if hasattr(self, "cluster") and self.queue and not self.cluster.draining:
            first = self.tables[self.queue[0]]
            sessions = self.cluster.sessions.values()
            ending = any(each.state is SessionState.ENDING for each in sessions)
            least, most = self.asked[first.session]
            assert self.cluster.members.free_slots < (most if ending else least)

    def teardown(self):
        if not hasattr(self, "cluster"):
            return
        self.carry_out(self.cluster.drain())
        while self.ending:
            self.report_gone(0)
        assert self.cluster.sessions == {}
        assert sorted(self.gone) == sorted(self.ended) == sorted(self.tables)
        members = self.cluster.members
        assert members.free_slots == members.total_slots
        assert all(not known.taken for known in members.nodes.values())


TestClusterMachine = ClusterMachine.TestCase
TestClusterMachine.settings = settings(max_examples=80, stateful_step_count=50, deadline=None)
