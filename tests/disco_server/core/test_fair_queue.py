"""Whose turn it is in the queue: by class, and then by the slots that owners hold."""

from __future__ import annotations

import random
from collections import Counter

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    invariant,
    multiple,
    rule,
)

from disco_server.core.fair_queue import FairQueue, WaitReason
from disco_server.core.session_state import Priority, SessionTable

LOW, NORMAL, HIGH = Priority


def session(number, owner, workers=1, priority=NORMAL):
    """One that a client of that owner asks for."""
    principal = f"token:{owner}"
    return SessionTable(
        *(number, f"s{number}", "me@here:1", workers, 1, "", b"key", 0.0, 100.0),
        principal=principal,
        priority=priority,
    )


def queue_of(*sessions, quotas=None):
    quotas = quotas or {}
    made = FairQueue(lambda s: quotas.get(s.owner_name, 0))
    for each in sessions:
        made.add(each)
    return made


def begin(queue):
    """Places the next session; returns its number."""
    found = queue.next()
    queue.remove(found.session)
    queue.hold(found)
    return found.session


def test_owners_take_turns_though_one_has_asked_for_much_before():
    """And each owner's sessions go in the order in which they came."""
    ann = [session(number, "ann") for number in range(1, 5)]
    ben = [session(number, "ben") for number in range(5, 8)]
    queue = queue_of(*ann, *ben)
    expected = [1, 5, 2, 6, 3, 7, 4]
    assert list(queue.places()) == expected
    assert [begin(queue) for _ in expected] == expected
    assert queue.next() is None


def test_turns_are_by_slots_and_not_by_sessions():
    """Who holds a large one waits until the other one holds as much."""
    queue = queue_of(session(1, "ann", 3), session(2, "ann"), *(session(n, "ben") for n in (3, 4)))
    queue.add(session(5, "ben", 2))
    assert [begin(queue) for _ in range(5)] == [1, 3, 4, 5, 2]


def test_a_higher_class_goes_first_and_keeps_nobody_waiting_that_may_not_begin():
    """A lower class begins when what is left of the higher one is held back by quotas."""
    high = [session(number, "ann", priority=HIGH) for number in (1, 2)]
    queue = queue_of(session(3, "ben", priority=LOW), session(4, "ben"), *high, quotas={"ann": 1})
    assert list(queue.places()) == [1, 2, 4, 3]
    assert queue.places()[3].why is WaitReason.HIGHER_CLASS
    assert begin(queue) == 1
    places = queue.places()
    assert list(places) == [4, 3, 2]
    assert [each.why for each in places.values()] == [
        WaitReason.NO_SLOTS,
        WaitReason.HIGHER_CLASS,
        WaitReason.OWNER_SLOTS,
    ]
    assert (places[2].owner_slots, places[2].owner_limit) == (1, 1)
    assert [begin(queue), begin(queue)] == [4, 3]
    assert queue.next() is None
    queue.let_go(high[0])
    assert begin(queue) == 2


def test_a_turn_that_has_come_stays_until_it_is_used():
    """So that small sessions of others do not overtake a large one for which slots come free."""
    large, small = session(1, "ann", 8), [session(number, "ben") for number in (2, 3, 4)]
    held = session(9, "ann")
    queue = queue_of(small[0], large, *small[1:])
    queue.hold(held)
    assert begin(queue) == 2
    assert queue.next() is large  # as many slots, and it came first
    queue.keep_turn(large)
    queue.let_go(small[0])
    assert queue.next() is large
    queue.remove(large.session)
    assert queue.next() is small[1]


def test_other_quotas_hold_at_once():
    """For who waits: a turn may be lost by them, and come by them."""
    quotas = {"ann": 2}
    queue = FairQueue(lambda s: quotas.get(s.owner_name, 0))
    for each in (session(1, "ann", 2), session(2, "ben")):
        queue.add(each)
    assert queue.next().session == 1
    queue.keep_turn(queue.next())
    quotas["ann"] = 1
    queue.requota()
    assert queue.next().session == 2
    quotas["ann"] = 0
    queue.requota()
    assert [begin(queue), begin(queue)] == [1, 2]


@pytest.mark.parametrize("seed", range(5))
def test_two_owners_who_always_wait_hold_about_as_much(seed):
    """Whoever ends when: a turn goes to who holds less, and in the long run both hold the same."""
    chance = random.Random(seed)
    queue, number, free, running = FairQueue(lambda _: 0), 0, 16, []
    waiting, sums, turn = Counter(), Counter(), None
    for _ in range(2000):
        while True:
            for owner, most in (("ann", 40), ("ben", 1)):
                while waiting[owner] < most:
                    number += 1
                    queue.add(session(number, owner, chance.randint(1, 4)))
                    waiting[owner] += 1
            found = queue.next()
            if found is not turn:
                least = min(queue.held("token:ann"), queue.held("token:ben"))
                assert queue.held(found.owner_key) == least
            turn = found
            if found.num_workers > free:
                queue.keep_turn(found)
                break
            begin(queue)
            waiting[found.owner_name] -= 1
            free -= found.num_workers
            running.append(found)
        for owner in ("ann", "ben"):
            sums[owner] += queue.held(f"token:{owner}")
        ended = running.pop(chance.randrange(len(running)))
        queue.let_go(ended)
        free += ended.num_workers
    assert 0.8 < sums["ann"] / sums["ben"] < 1.25


def test_a_long_queue_is_put_in_order_once_for_all_that_ask():
    """And its heaps do not grow with what has changed."""
    queue = queue_of(*(session(number, f"o{number % 50}") for number in range(1, 1001)))
    assert queue.places() is queue.places()
    assert [each.ahead for each in queue.places().values()] == list(range(1000))
    begun = session(2000, "o7")
    for _ in range(1000):
        queue.hold(begun)
        queue.let_go(begun)
    assert len(queue._lines[NORMAL].heap) <= 2 * 50 + 65


OWNERS = ("ann", "ben", "cid")
QUOTAS = {"ann": 0, "ben": 3, "cid": 6}


class FairQueueMachine(RuleBasedStateMachine):
    """Any order of arrivals, placements and ends, beside what the rules say in plain words."""

    waiting = Bundle("waiting")
    running = Bundle("running")

    def __init__(self):
        super().__init__()
        self.quotas = dict(QUOTAS)
        self.queue = FairQueue(lambda s: self.quotas[s.owner_name])
        self.count, self.here, self.held = 0, [], Counter()
        self.turns = {}

    def may(self, asked):
        limit = self.quotas[asked.owner_name]
        return not limit or self.held[asked.owner_name] + asked.num_workers <= limit

    def named(self, number):
        return next(each for each in self.here if each.session == number)

    def firsts(self, priority):
        """The first session of each owner in a class, of those that may begin."""
        found = {}
        for each in self.here:
            if each.priority is priority:
                found.setdefault(each.owner_name, each)
        return [each for each in found.values() if self.may(each)]

    def whose_turn(self):
        for priority in sorted(Priority, reverse=True):
            firsts = self.firsts(priority)
            if self.turns.get(priority) in firsts:
                return self.turns[priority]
            self.turns.pop(priority, None)
            if firsts:
                return min(firsts, key=self._rank)
        return None

    def _rank(self, each):
        return self.held[each.owner_name], self.here.index(each)

    @rule(
        target=waiting,
        owner=st.sampled_from(OWNERS),
        workers=st.integers(1, 4),
        priority=st.sampled_from(Priority),
    )
    def ask(self, owner, workers, priority):
        self.count += 1
        made = session(self.count, owner, workers, priority)
        self.here.append(made)
        self.queue.add(made)
        return made

    @rule(gone=consumes(waiting))
    def give_up(self, gone):
        self.here = [each for each in self.here if each is not gone]
        self.queue.remove(gone.session)

    @rule(target=running)
    def place(self):
        found = self.queue.next()
        assert found is self.whose_turn()
        if found is None:
            return multiple()
        self.queue.remove(found.session)
        self.queue.hold(found)
        self.here.remove(found)
        self.held[found.owner_name] += found.num_workers
        limit = self.quotas[found.owner_name]
        assert not limit or self.held[found.owner_name] <= limit
        return found

    @rule()
    def does_not_fit(self):
        if (turn := self.queue.next()) is not None:
            self.queue.keep_turn(turn)
            self.turns[turn.priority] = turn

    @rule(ended=consumes(running))
    def end(self, ended):
        self.queue.let_go(ended)
        self.held[ended.owner_name] -= ended.num_workers

    @rule(owner=st.sampled_from(OWNERS), slots=st.integers(0, 8))
    def change_quota(self, owner, slots):
        self.quotas[owner] = slots
        self.queue.requota()

    @invariant()
    def everybody_has_a_place(self):
        """The next is the first, all are there once, and those held back come last."""
        turn = self.whose_turn()
        assert self.queue.next() is turn
        places = self.queue.places()
        assert [each.ahead for each in places.values()] == list(range(len(self.here)))
        assert set(places) == {each.session for each in self.here}
        assert turn is None or next(iter(places)) == turn.session
        back = [each.why is WaitReason.OWNER_SLOTS for each in places.values()]
        assert back == sorted(back)
        assert back == [self.queue.is_held_back(self.named(number)) for number in places]
        for owner in OWNERS:
            for priority in Priority:
                own = [e for e in self.here if (e.owner_name, e.priority) == (owner, priority)]
                at = [places[each.session].ahead for each in own]
                assert at == sorted(at), "an owner's sessions go in the order of arrival"


TestFairQueue = FairQueueMachine.TestCase
TestFairQueue.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
