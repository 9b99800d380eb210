"""The ranks of a session on one machine: scenarios, and a model that no order of events breaks."""

from __future__ import annotations

import math

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from disco_server.core.node import (
    CAUSE_FIRST_S,
    AllGone,
    AssignRank,
    CancelStart,
    EndOrphan,
    EndRank,
    FindHung,
    KillRanks,
    NodeSession,
    NodeState,
    RankEnd,
    SayGoodbye,
    ServePmi,
    StartRank,
    TellExit,
    TellOpening,
    TellRanksReady,
    WrongEvent,
)
from disco_server.core.pmi import ClosePmi, MeetNodes, SendPmi

START, OPEN, LEASE = 60.0, 5.0, 20.0
ENDED = RankEnd(7)
FOLLOWED = RankEnd(7, follows=True)
SELDOM = st.integers(0, 9).map(lambda drawn: drawn == 9)
"""So that sessions live for a while before they end."""


def session(workers, num_workers, **limits):
    """One of which some ranks are here, on its only machine."""
    return NodeSession(workers, [range(num_workers)], "disco-test", **limits)


def ready(count=2, num_workers=None, **limits):
    """A session that runs."""
    node = session(range(count), num_workers or count, **limits)
    node.start()
    for worker in range(count):
        node.started(worker, 0.0)
    for worker in range(count):
        node.assigned(worker)
    return node


def test_a_session_goes_from_its_start_to_its_end():
    """Processes start one after another; each is told once, and the owner when all are ready."""
    node = session((4, 5), 8, start_limit_s=START)
    assert node.start() == [StartRank(4)]
    assert node.started(4, 0.0) == [AssignRank(4), StartRank(5)]
    assert node.assigned(4) == []
    assert node.started(5, 0.0) == [AssignRank(5), ServePmi()]
    assert node.unready == [5]
    assert not node.ready
    assert node.assigned(5) == [TellRanksReady()]
    assert node.ready
    assert node.wake_at == math.inf
    assert node.end(10.0) == [SayGoodbye()]
    assert node.exited(5, ENDED, 10.1) == []
    assert node.exited(4, ENDED, 10.2) == [AllGone()]
    assert node.state is NodeState.GONE
    assert node.wake_at == math.inf


def test_ranks_that_do_not_leave_are_killed():
    """After a moment; and once more, with what keeps them, where they have not ended of it."""
    node = ready(3)
    assert node.end(10.0) == [SayGoodbye()]
    assert node.exited(1, ENDED, 10.1) == []
    assert node.time_passed(10.4) == []
    assert node.time_passed(node.wake_at) == [KillRanks((0, 2))]
    assert node.time_passed(node.wake_at) == [KillRanks((0, 2), again=True)]
    assert node.wake_at == math.inf
    assert [node.exited(0, ENDED, 30.0), node.exited(2, ENDED, 31.0)] == [[], [AllGone()]]


def test_no_grace_is_given_where_a_rank_has_ended():
    """The others may wait for it inside their collective library."""
    node = ready()
    assert node.exited(1, ENDED, 5.0) == [TellExit(1, ENDED, at_start=False)]
    assert node.end(6.0) == [KillRanks((0,))]


def test_whoever_is_in_a_hurry_need_not_wait_for_the_grace():
    """A second request may take it away, and a third does nothing."""
    node = ready()
    assert node.end(6.0) == [SayGoodbye()]
    assert node.end(6.1) == []
    assert node.end(6.2, grace=False) == [KillRanks((0, 1))]
    assert node.end(6.3, grace=False) == []


def test_a_session_may_end_while_a_process_starts():
    """That one is not waited for, which may take long; nothing is left when the others are gone."""
    node = session((0, 1), 2)
    node.start()
    node.started(0, 0.0)
    assert node.end(1.0) == [CancelStart(1), SayGoodbye()]
    assert node.exited(0, ENDED, 1.1) == [AllGone()]
    first = session((0, 1), 2)
    first.start()
    assert first.end(1.0) == [CancelStart(0), AllGone()]


def test_a_rank_without_a_process_did_not_start():
    """The others are not tried; the session ends when its owner says so."""
    node = session((0, 1, 2), 3)
    node.start()
    node.started(0, 0.0)
    assert node.not_started(1, ENDED) == [TellExit(1, ENDED, at_start=True)]
    assert node.end(1.0) == [SayGoodbye()]
    assert node.exited(0, ENDED, 1.5) == [AllGone()]


def test_ranks_that_do_not_get_ready_are_ended():
    """Those alone, with the reason; however long it took until all had processes."""
    node = session((0, 1), 2, start_limit_s=START)
    node.start()
    node.started(0, 100.0)
    assert node.wake_at == math.inf
    node.started(1, 200.0)
    node.assigned(0)
    assert node.wake_at == 200.0 + START
    assert node.time_passed(200.0 + START) == [
        EndRank(1, "was ended because it was not ready within 60 s")
    ]
    assert node.exited(1, ENDED, 201.0 + START) == [TellExit(1, ENDED, at_start=True)]


def test_a_session_of_which_a_rank_has_ended_does_not_get_ready():
    """Its owner is told of that alone."""
    node = session((0, 1), 2)
    node.start()
    node.started(0, 0.0)
    node.started(1, 0.0)
    node.assigned(0)
    assert node.exited(0, ENDED, 1.0) == [TellExit(0, ENDED, at_start=False)]
    assert node.assigned(1) == []
    assert not node.ready


def test_an_end_that_may_follow_another_is_told_later():
    """Another machine's rank may be the cause, which ends the session before that."""
    node = ready(2, num_workers=4)
    assert node.exited(1, FOLLOWED, 5.0) == []
    assert node.wake_at == 5.0 + CAUSE_FIRST_S
    assert node.time_passed(5.0 + CAUSE_FIRST_S) == [TellExit(1, FOLLOWED, at_start=False)]
    other = ready(2, num_workers=4)
    other.exited(1, FOLLOWED, 5.0)
    assert other.exited(0, ENDED, 6.0) == [TellExit(0, ENDED, at_start=False)]
    assert other.end(6.1) == [AllGone()]
    assert other.time_passed(9.0) == []


def test_of_those_that_may_follow_another_the_first_to_lose_its_peers_is_told_first():
    """Whatever the order in which their ends were seen; those without a record come last."""
    node = ready(4, num_workers=5)
    for worker, lost_at in ((3, 0), (0, 750), (2, 725), (1, 775)):
        assert node.exited(worker, RankEnd(7, follows=True, lost_at=lost_at), 8.0 + worker) == []
    told = node.time_passed(8.0 + 3 + CAUSE_FIRST_S)
    assert [effect.worker for effect in told] == [2, 0, 1, 3]


def test_where_no_rank_is_left_nothing_is_waited_for():
    """A session that is on this machine alone can have no other cause."""
    node = ready(2)
    later, first = (RankEnd(7, follows=True, lost_at=at) for at in (45, 44))
    assert node.exited(0, later, 5.0) == []
    assert node.exited(1, first, 5.1) == [
        TellExit(1, first, at_start=False),
        TellExit(0, later, at_start=False),
    ]


def test_ranks_that_hang_in_opening_their_communicator_are_ended():
    """Those that are neither done nor wait for others, when the limit of all is over."""
    node = ready(4, open_limit_s=OPEN)
    for worker in range(4):
        assert node.opens(worker) == [TellOpening(worker, 1)]
    node.opening.all_begin(1, 10.0)
    node.opening.done(1)
    assert node.wake_at == 10.0 + OPEN
    assert node.time_passed(10.0 + OPEN) == [FindHung(1, (0, 2, 3))]
    for worker in (0, 3):
        assert node.pmi_said(worker, b"cmd=barrier_in\n") == []
    (end,) = node.hung(1, stopped=set())
    assert end.worker == 2
    assert "not there is worker 2" in end.why


def test_a_world_that_mpi_cannot_describe_is_not_started():
    """The ranks end with the reason, which their owner is told."""
    ragged = [range(first, 400, 2) for first in (0, 1)]
    node = NodeSession((0, 2), ragged, "disco-test")
    node.start()
    node.started(0, 0.0)
    assign, *ends = node.started(2, 0.0)
    assert assign == AssignRank(2)
    assert [end.worker for end in ends] == [0, 2]
    assert "give each node consecutive ranks" in ends[0].why
    assert node.pmi_said(0, b"cmd=get_appnum\n") == ()


def test_without_an_owner_a_session_lives_for_its_lease():
    """One that is not ready, or has no lease, ends at once."""
    node = ready(2, lease_s=LEASE)
    assert node.owner_lost(1.0) == []
    node.owner_back()
    assert node.wake_at == math.inf
    assert node.owner_lost(5.0) == []
    assert node.time_passed(5.0 + LEASE) == [EndOrphan()]
    assert ready(2).owner_lost(5.0) == [EndOrphan()]
    starting = session((0,), 1, lease_s=LEASE)
    starting.start()
    assert starting.owner_lost(1.0) == [EndOrphan()]


def test_what_cannot_be_is_refused():
    """A rank's own code may say anything; nothing changes."""
    node = session((0, 1), 2)
    node.start()
    for wrong in (
        lambda: node.started(1, 0.0),
        lambda: node.not_started(1, ENDED),
        lambda: node.assigned(0),
        lambda: node.exited(0, ENDED, 0.0),
    ):
        with pytest.raises(WrongEvent):
            wrong()
    node.started(0, 0.0)
    node.assigned(0)
    with pytest.raises(WrongEvent):
        node.assigned(0)


class NodeMachine(RuleBasedStateMachine):
    """Ranks, an owner and a clock that do anything that they can, at any time."""

    @initialize(
        count=st.integers(1, 4),
        elsewhere=st.integers(0, 2),
        lease=st.sampled_from((20, 0)),
        is_ready=st.booleans(),
    )
    def begin(self, count, elsewhere, lease, is_ready):
        self.workers = list(range(elsewhere, elsewhere + count))
        self.whole = not elsewhere
        self.node = session(
            self.workers,
            count + elsewhere,
            start_limit_s=START,
            open_limit_s=OPEN,
            lease_s=lease,
        )
        self.now = 0.0
        self.wanted = None
        self.pids, self.ended, self.said = set(), [], set()
        self.killed, self.follows, self.times = set(), {}, {}
        self.together = []
        self.waits, self.closed, self.meeting, self.served = {}, set(), None, False
        self.told, self.asked_to_end, self.told_after_end = [], False, []
        self.take(self.node.start())
        if is_ready:  # else few examples would get there
            for _ in self.workers:
                self.get_process(can=True)
            for worker in self.workers:
                self.get_ready(worker)

    def take(self, effects):
        """Carries effects out, as far as a driver does that at once."""
        self.together.append([each.worker for each in effects if isinstance(each, TellExit)])
        for effect in effects:
            self.told.append(effect)
            if self.asked_to_end:
                self.told_after_end.append(effect)
            self.start_or_end(effect)
            self.answer(effect)

    def start_or_end(self, effect):
        match effect:
            case StartRank(worker):
                assert self.wanted is None, "processes start one after another"
                self.wanted = worker
            case CancelStart(worker):
                assert self.wanted == worker
                self.wanted = None
            case KillRanks(workers):
                assert set(workers) <= self.pids, "what has ended is not killed"
                self.killed |= set(workers)
            case EndRank(worker, why):
                assert worker in self.pids
                assert why
                self.killed.add(worker)
            case FindHung(attempt, workers):
                assert set(workers) <= self.pids
                self.take(self.node.hung(attempt, set(workers[1:])))
            case EndOrphan():
                self.end(grace=True)

    def answer(self, effect):
        match effect:
            case ServePmi():
                self.served = True
            case SendPmi(worker):
                assert self.waits.pop(worker, None), "only who asks is answered, and once"
            case ClosePmi(worker):
                assert worker not in self.closed
                self.closed.add(worker)
            case MeetNodes(name):
                assert self.meeting is None
                self.meeting = name

    def end(self, grace):
        effects = self.node.end(self.now, grace=grace)
        first, self.asked_to_end = not self.asked_to_end, True
        if first:
            self.told_after_end = []
        self.take(effects)

    @precondition(lambda self: self.wanted is not None)
    @rule(can=st.booleans())
    def process(self, can):
        """The process that was asked for is there, or cannot be."""
        self.get_process(can)

    def get_process(self, can):
        worker, self.wanted = self.wanted, None
        if can:
            self.pids.add(worker)
            self.take(self.node.started(worker, self.now))
        else:
            self.take(self.node.not_started(worker, ENDED))

    @precondition(lambda self: self.pids - self.said)
    @rule(data=st.data())
    def says_ready(self, data):
        """A rank is ready."""
        self.get_ready(data.draw(st.sampled_from(sorted(self.pids - self.said))))

    def get_ready(self, worker):
        self.said.add(worker)
        self.take(self.node.assigned(worker))

    @precondition(lambda self: self.pids)
    @rule(data=st.data(), follows=st.booleans(), lost=st.integers(0, 3))
    def exits(self, data, follows, lost):
        """A rank ends, of itself or because it was killed."""
        worker = data.draw(st.sampled_from(sorted(self.pids)))
        self.pids.discard(worker)
        self.ended.append(worker)
        if follows and not self.asked_to_end:
            self.follows[worker] = self.now, lost
        self.waits.pop(worker, None)
        if self.served:
            self.take(self.node.pmi_said(worker, b""))
        self.take(self.node.exited(worker, RankEnd(7, follows=follows, lost_at=lost), self.now))

    def may_speak(self):
        """The ranks whose MPI libraries wait for no answer."""
        return sorted((self.pids & self.said) - self.closed - set(self.waits))

    @precondition(lambda self: self.served and self.may_speak())
    @rule(data=st.data(), line=st.sampled_from(("get_appnum", *["barrier_in"] * 3, "finalize")))
    def library_asks(self, data, line):
        """The MPI library of a rank says something, and waits for the answer."""
        worker = data.draw(st.sampled_from(self.may_speak()))
        self.waits[worker] = line
        self.take(self.node.pmi_said(worker, f"cmd={line}\n".encode()))

    @precondition(lambda self: self.meeting)
    @rule(do=st.booleans())
    def nodes_meet(self, do):
        """The nodes have exchanged what their ranks put, or cannot."""
        name, self.meeting = self.meeting, None
        self.take(self.node.pmi_met({}) if do else self.node.pmi_not_met(name, "gone"))

    @invariant()
    def a_library_waits_for_others_only(self):
        """For a rank here that may still come to the barrier, or for the other nodes."""
        may_come = set(self.workers) - self.closed - set(self.waits)
        assert not self.waits or self.meeting or may_come

    @precondition(lambda self: self.pids & self.said)
    @rule(data=st.data(), is_done=st.booleans())
    def opens(self, data, is_done):
        """A rank opens its communicator, and perhaps has."""
        worker = data.draw(st.sampled_from(sorted(self.pids & self.said)))
        times = self.times[worker] = self.times.get(worker, 0) + 1
        assert self.node.opens(worker) == [TellOpening(worker, times)]
        if is_done:
            self.node.opening.done(worker)

    @rule(attempt=st.integers(0, 3))
    def all_open(self, attempt):
        """The owner says that all ranks have begun."""
        self.node.opening.all_begin(attempt, self.now)

    @rule(seconds=st.sampled_from((0.1, 0.6, 3.0, 5.0, 11.0, 61.0)))
    def wait(self, seconds):
        """Time passes, in which a driver calls when it is due."""
        until = self.now + seconds
        while (due := self.node.wake_at) <= until:
            self.now = max(self.now, due)
            self.take(self.node.time_passed(self.now))
            assert self.node.wake_at > self.now, "what was due is done"
        self.now = until

    @rule(in_earnest=SELDOM)
    def owner_leaves(self, in_earnest):
        """No owner is connected."""
        if in_earnest:
            self.take(self.node.owner_lost(self.now))

    @rule()
    def owner_returns(self):
        """The owner is connected again."""
        self.node.owner_back()

    @rule(grace=st.booleans(), in_earnest=SELDOM)
    def owner_ends(self, grace, in_earnest):
        """The owner wants the session to end."""
        if in_earnest or self.asked_to_end:
            self.end(grace)

    @invariant()
    def each_is_told_once(self):
        """Whatever happens: no effect that stands for something that happens once comes twice."""
        once = [
            effect
            for effect in self.told
            if isinstance(
                effect,
                (StartRank, CancelStart, AssignRank, ServePmi, TellRanksReady, TellExit, AllGone),
            )
        ]
        names = [(type(effect), getattr(effect, "worker", None)) for effect in once]
        assert len(names) == len(set(names))

    @invariant()
    def nothing_is_told_of_ranks_after_the_end_was_asked_for(self):
        """The owner knows that they end."""
        assert not any(
            isinstance(effect, (StartRank, AssignRank, TellRanksReady, TellExit, EndRank, FindHung))
            for effect in self.told_after_end
        )

    @invariant()
    def it_is_over_when_nothing_is_left(self):
        """As soon as that is so, and never before."""
        over = self.asked_to_end and not self.pids
        assert (self.node.state is NodeState.GONE) == over
        assert (AllGone() in self.told) == over

    @invariant()
    def every_end_is_told(self):
        """At once, or when the cause of it would have been told; in the order of the causes."""
        if self.asked_to_end:
            return
        told = [effect.worker for effect in self.told if isinstance(effect, TellExit)]
        assert set(told) >= {worker for worker in self.ended if worker not in self.follows}
        late = [worker for worker in self.follows if worker not in told]
        if late:
            first = min(self.follows[worker][0] for worker in late)
            assert self.node.wake_at <= first + CAUSE_FIRST_S
            all_ended = len(self.ended) == len(self.workers)
            assert told or not (self.whole and all_ended)

    @invariant()
    def the_first_loss_is_told_first(self):
        """Of ends that are told together, those without a record last."""
        for told in self.together:
            lost = [
                self.follows[worker][1] or math.inf for worker in told if worker in self.follows
            ]
            assert lost == sorted(lost)

    @invariant()
    def who_does_not_leave_is_killed(self):
        """A session that is to end does so in the end, whatever its ranks do."""
        if self.asked_to_end and self.pids - self.killed:
            assert self.node.wake_at < math.inf


NodeMachine.TestCase.settings = settings(deadline=None, stateful_step_count=40, max_examples=150)
test_no_order_of_events_breaks_it = NodeMachine.TestCase
