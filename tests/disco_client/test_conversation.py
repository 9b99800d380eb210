"""The client's end of a session, against workers that a connection reaches now and then."""

from __future__ import annotations

from collections import deque

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from conversing import converse
from disco_client import batches
from disco_client.errors import ControllerLost, RemoteException, RemoteFailure, SessionClosed
from disco_client.wire.batch import command_of, read_batch
from disco_client.wire.codec import (
    Action,
    EncodedBatch,
    EncodedEnvelope,
    EncodedReply,
    FailureKind,
    encode_failure,
    encode_value,
)

WORKERS = 2
WINDOW = 12
ANSWER = (Action.DEBUG_GET_FROM_REMOTE, Action.SYNC_WORKER)


class Far:
    """A worker on a node of its own: what has come of the commands, and what it answers.

    Attributes:
        have: The number of the last command that was executed.
        way: Envelopes on their way.
        replies: The answers that it has not given yet, with whether they are failures.
        registers: Those that hold something, with the command that wrote it.
    """

    def __init__(self, number):
        self.number = number
        self.have = 0
        self.way = deque()
        self.replies = deque()
        self.registers = {}

    def receive(self):
        """Executes the next envelope; returns whether commands before it are missing."""
        raw = self.way.popleft()
        if raw.first_seq > self.have + 1:
            return True
        for seq, entry in read_batch(raw.first_seq, EncodedBatch.FromString(raw.payload)):
            if seq > self.have:  # else it came before
                assert seq == self.have + 1
                command = command_of(entry) if isinstance(entry, tuple) else entry
                self.execute(seq, command)
                self.have = seq
        return False

    def execute(self, seq, command):
        """Does it once: no register is written that still holds something."""
        for register in command.released:
            del self.registers[register]
        if command.action == Action.CALL_PACKED:
            assert command.reg not in self.registers
            self.registers[command.reg] = seq
        elif self.number in (command.workers or range(WORKERS)) and command.action in ANSWER:
            self.replies.append((seq, command.func))


class ConversationMachine(RuleBasedStateMachine):
    """Calls, questions, ends of references, connections that break, and ends, in any order."""

    def __init__(self):
        super().__init__()
        self.lost = []
        self.most, batches.MAX_BATCH_COMMANDS = batches.MAX_BATCH_COMMANDS, 3
        self.client = converse(WORKERS, self.lost.append, window=WINDOW)
        self.log, self.inbox = self.client.log, self.client.inbox
        self.workers = [Far(number) for number in range(WORKERS)]
        self.acks = [0] * WORKERS
        # The registers that references stand for, with the commands that write them.
        self.live, self.asked = {}, {}
        self.refused = self.ended = None

    # The program

    @precondition(lambda self: not (self.refused or self.log.is_full()))
    @rule(plain=st.lists(st.booleans(), min_size=1, max_size=3))
    def call(self, plain):
        for each in plain:
            if not self.log.is_full():
                self.call_once(each)

    def call_once(self, plain):
        if plain:
            register = self.log.issue_call(9, [3, 4], int)
        else:
            _, register = self.log.issue(Action.CALL_PACKED, func=9, reg=int)
        self.live[register] = self.client.issued

    @precondition(lambda self: not (self.refused or self.log.is_full()))
    @rule(workers=st.sets(st.integers(0, WORKERS - 1), min_size=1), fails=st.booleans())
    def ask(self, workers, fails):
        """The register of the function says what the worker shall answer."""
        action = ANSWER[len(workers) - 1]
        some = sorted(workers) if len(workers) < WORKERS else ()
        seq, _ = self.log.issue(action, func=int(fails), reg=0, workers=some, answers=len(workers))
        self.asked[seq] = sorted(workers), fails

    @precondition(lambda self: self.live)
    @rule(choices=st.lists(st.integers(0, 1000), min_size=1, max_size=4))
    def drop(self, choices):
        for choice in choices[: len(self.live)]:
            register = list(self.live)[choice % len(self.live)]
            del self.live[register]
            self.log.release(register)

    @precondition(lambda self: self.refused)
    @rule()
    def call_when_refused(self):
        with pytest.raises(type(self.refused)):
            self.log.issue_call(9, [3], int)

    @precondition(lambda self: self.answered())
    @rule(choice=st.integers(0, 1000))
    def read(self, choice):
        seqs = self.answered()
        seq = seqs[choice % len(seqs)]
        workers, fails = self.asked.pop(seq)
        if self.ended and self.inbox.answers.expected[seq].error is not None:
            with pytest.raises(type(self.ended)):
                self.inbox.wait(seq, never)
        elif fails:
            with pytest.raises(RemoteException, match="told to fail"):
                self.inbox.wait(seq, never)
        else:
            values = self.inbox.wait(seq, never).values
            assert {worker: value.int for worker, value in values.items()} == {
                worker: 100 * seq + worker for worker in workers
            }
        assert not self.inbox.is_open(seq)

    def answered(self):
        expected = self.inbox.answers.expected
        return [seq for seq in self.asked if expected[seq].complete]

    # The connection

    @rule(leaves=st.booleans())
    def send(self, leaves):
        """What was taken and has not left is taken again."""
        raw = self.client.next_envelope()
        if raw is not None and leaves:
            self.client.envelope_left()
            self.put_on_way(raw)

    def put_on_way(self, raw):
        read = EncodedEnvelope.FromString(raw)
        to = self.workers if not read.worker_plus_one else [self.workers[read.worker_plus_one - 1]]
        for worker in to:
            worker.way.append(read)

    @precondition(lambda self: any(worker.way for worker in self.workers))
    @rule(choices=st.lists(st.integers(0, WORKERS - 1), min_size=1, max_size=4))
    def receive(self, choices):
        for choice in choices:
            self.receive_one(choice)

    def receive_one(self, choice):
        worker = self.workers[choice]
        if worker.way and worker.receive():
            self.client.rewind(worker.have, worker.number)

    @rule()
    def lose_connection(self):
        """What was on its way is gone; what no worker has is sent again."""
        for worker in self.workers:
            worker.way.clear()
        self.client.rewind(min(worker.have for worker in self.workers))

    @precondition(lambda self: not self.ended and any(each.replies for each in self.workers))
    @rule(choice=st.integers(0, WORKERS - 1), twice=st.booleans())
    def answer(self, choice, twice):
        worker = self.workers[choice]
        if worker.replies:
            seq, fails = worker.replies.popleft()
            reply = EncodedReply(seq=seq, ack=seq)
            if fails:
                failure = RemoteFailure(
                    worker=choice, seq=seq, message="told to fail", node="n", exception="ValueError"
                )
                encode_failure(reply.failure, failure, FailureKind.EXCEPTION)
            else:
                encode_value(reply.value, 100 * seq + choice)
            for _ in range(1 + twice):
                self.client.reply(choice, reply)
            self.acks[choice] = max(self.acks[choice], seq)

    @precondition(lambda self: not self.ended)
    @rule(choice=st.integers(0, WORKERS - 1))
    def acknowledge(self, choice):
        """A worker says how far it is, once it has answered all before that."""
        worker = self.workers[choice]
        far = worker.replies[0][0] - 1 if worker.replies else worker.have
        self.acks[choice] = max(self.acks[choice], far)
        self.client.acknowledge(choice, far)

    # The end

    @rule(rarely=st.integers(0, 4))
    def close(self, rarely):
        if rarely:
            return
        self.refused = self.refused or SessionClosed("closed")
        self.log.close(self.refused, drop=False)

    @precondition(lambda self: not self.ended)
    @rule(rarely=st.integers(0, 4))
    def lose(self, rarely):
        if not rarely:
            self.ended = ControllerLost("lost")
            self.refused = self.refused or self.ended
            self.client.lost(self.ended)
            assert self.lost == [self.ended]

    # What holds

    @invariant()
    def it_knows_how_far_the_workers_are(self):
        if not self.ended:
            assert self.client.acked == min(self.acks)

    @invariant()
    def an_answer_is_there_when_all_have_replied(self):
        for seq, (workers, _) in self.asked.items():
            answer = self.inbox.answers.expected[seq]
            assert answer.complete == (self.ended is not None or answer.replied == set(workers))

    def teardown(self):
        try:
            if not self.ended:
                self.arrive()
        finally:
            batches.MAX_BATCH_COMMANDS = self.most

    @precondition(lambda self: not self.ended)
    @rule()
    def go_round(self):
        """All that may leave does, is executed and answered."""
        while (raw := self.client.next_envelope()) is not None:
            self.client.envelope_left()
            self.put_on_way(raw)
        for number, worker in enumerate(self.workers):
            while worker.way:
                self.receive_one(number)
            while worker.replies:
                self.answer(number, twice=False)

    def arrive(self):
        """Everything that was issued arrives in the end, and every question is answered."""
        self.lose_connection()
        for _ in range(20):
            self.go_round()
            for number in range(WORKERS):
                self.acknowledge(number)
        assert [worker.have for worker in self.workers] == [self.client.issued] * WORKERS
        assert self.client.acked == self.client.issued
        assert self.answered() == list(self.asked)
        for worker in self.workers:
            assert self.live.items() <= worker.registers.items()


def never():
    pytest.fail("waited though everything had come")


TestConversation = ConversationMachine.TestCase
TestConversation.settings = settings(max_examples=100, stateful_step_count=40, deadline=None)
