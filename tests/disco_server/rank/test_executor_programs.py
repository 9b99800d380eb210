"""Programs among the commands of a rank: definitions, runs, reports, and tokens for the peers."""

from __future__ import annotations

import pytest

from disco_client.program import RecordingLog
from disco_client.wire.codec import (
    Action,
    ArrayPorter,
    EncodedBatch,
    EncodedProgram,
    EncodedReply,
    decode_failure,
    encode_value,
)
from disco_server.rank import functions
from disco_server.rank.executor import Executor
from disco_server.rank.registers import Poison
from disco_server.rank.worker import Worker


class Rank:
    """Worker 1 of 2 with an echo in register 1, and a function that fails in register 2."""

    def __init__(self):
        self.sent, self.passed, self.live = [], [], None
        self.porter = ArrayPorter()
        worker = Worker(1, 2, 1, open_groups=None, node="n")
        worker.cannot_enter = self.passed.append
        self.executor = Executor(worker, self)
        for register, name in ((1, "t.echo"), (2, "t.fail")):
            self.run(Action.GET_GLOBAL_FUNC, name, reg=register)

    def reply(self, raw, ack):
        self.sent.append(EncodedReply.FromString(raw))

    def run(self, action, *args, **fields):
        """Runs one command; returns what is answered."""
        batch = EncodedBatch()
        command = batch.commands.add(action=int(action), **fields)
        for arg in args:
            encode_value(command.args.add(), arg)
        self.executor.run_batch(self.executor.seq + 1, batch.SerializeToString())
        answered, self.sent = self.sent, []
        return answered

    def read(self, register):
        return self.executor.registers.slots[register]


@pytest.fixture
def rank(monkeypatch):
    known = {"t.echo": lambda value: value, "t.fail": lambda value: value / 0}
    monkeypatch.setattr(functions, "_registry", {**functions._registry, **known})
    return Rank()


def program(func):
    """Echoes its input, calls a function with it, and returns both results."""
    log = RecordingLog()
    echo, called, x = log.allocate(3)
    outputs = [log.issue_call(each, [2 * x + 1], int) for each in (echo, called)]
    return EncodedProgram(
        batches=log.encode(),
        inputs=[x],
        captured=[echo, called],
        registers=[1, func],
        outputs=outputs,
        name="p",
    )


def test_a_run_is_one_silent_command(rank):
    """Its outputs are in the registers that it names; releasing the program frees it."""
    assert rank.run(Action.DEFINE_PROGRAM, reg=5, program=program(1)) == []
    assert rank.run(Action.RUN_PROGRAM, 8, func=5, results=[6, 7]) == []
    assert (rank.read(6), rank.read(7), rank.executor.seq) == (8, 8, 4)
    assert repr(rank.read(5)) == "<Program 'p', 2 steps>"
    rank.run(Action.KILL_REG, released=[5, 6])
    assert (rank.read(5), rank.read(6), rank.read(7)) == (None, None, 8)


def test_a_failing_step_is_reported_once_and_passes_the_run(rank):
    """With the definition's number, the step and its function; made outputs stay."""
    rank.run(Action.DEFINE_PROGRAM, reg=5, program=program(2))
    (reply,) = rank.run(Action.RUN_PROGRAM, 8, func=5, results=[6, 7])
    failure, _ = decode_failure(reply.failure)
    assert (reply.seq, failure.seq, failure.program, failure.step) == (4, 4, 3, 2)
    assert (failure.function, failure.exception) == ("t.fail", "ZeroDivisionError")
    assert rank.read(6) == 8
    assert rank.read(7) == Poison(failure, decode_failure(reply.failure)[1])
    assert rank.passed == [4]


def test_what_reads_poison_does_not_begin(rank):
    """An input's poison becomes that of all outputs; peers hear of it, the client knows."""
    rank.run(Action.DEFINE_PROGRAM, reg=5, program=program(1))
    rank.run(Action.CALL_PACKED, 0, func=2, reg=9)
    batch = EncodedBatch()
    command = batch.commands.add(action=int(Action.RUN_PROGRAM), func=5, results=[6, 7])
    command.args.add().reg = 9
    rank.executor.run_batch(5, batch.SerializeToString())
    assert [reply.failure.seq for reply in rank.sent] == [4]
    assert rank.read(6) is rank.read(7) is rank.read(9)
    assert rank.passed == [4, 5]


def test_a_definition_that_cannot_be_read_poisons_its_register(rank):
    """Runs of it are skipped for that reason."""
    (reply,) = rank.run(Action.DEFINE_PROGRAM, reg=5, program=EncodedProgram(outputs=[4]))
    assert reply.failure.function == "capture"
    (left_out,) = rank.run(Action.RUN_PROGRAM, func=5, results=[6])
    assert left_out.failure.seq == reply.seq
    assert rank.read(6) is rank.read(5)
    outer = EncodedProgram(captured=[1], registers=[5])
    batch = EncodedBatch()
    batch.commands.add(action=int(Action.RUN_PROGRAM), func=1)
    outer.batches.append(batch.SerializeToString())
    (left_out,) = rank.run(Action.DEFINE_PROGRAM, reg=7, program=outer)
    assert left_out.failure.seq == reply.seq
    assert rank.read(7) is rank.read(5)


def test_a_run_that_does_not_fit_is_refused(rank):
    """Another number of inputs or outputs, or a register that holds no program."""
    rank.run(Action.DEFINE_PROGRAM, reg=5, program=program(1))
    for fields, message in (
        ({"func": 5, "results": [6, 7]}, "expected 1 input of"),
        ({"func": 1, "results": [6]}, "expected a program in register 1"),
    ):
        (reply,) = rank.run(Action.RUN_PROGRAM, **fields)
        assert message in reply.failure.message
        assert reply.failure.function == "run_program"
        assert isinstance(rank.read(6), Poison)
