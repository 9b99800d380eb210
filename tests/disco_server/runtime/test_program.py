"""Recorded commands as one function: values, order, lifetimes, failures, and what is refused."""

from __future__ import annotations

import weakref

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from disco_client.errors import EncodingError, RemoteFailure
from disco_client.recorder import RecordingLog
from disco_client.wire import values
from disco_client.wire.codec import (
    Action,
    EncodedBatch,
    EncodedProgram,
    FailureKind,
    encode_value,
)
from disco_server.runtime import program as module
from disco_server.runtime.errors import ArgumentRefused
from disco_server.runtime.program import UNWRITTEN, Linker, StepFailed, compile_program
from disco_server.runtime.register_file import Poison, Poisoned, RegisterFile

POISON = Poison(RemoteFailure(worker=1, seq=3, message="earlier"), FailureKind.EXCEPTION)


class Rank:
    """Worker 1 of a session: its registers, and the functions that it knows."""

    def __init__(self):
        self.registers = RegisterFile()
        self.known = {}
        self.copied = []

    def linker(self):
        return Linker(1, self.registers.read, self.known.__getitem__, self._copy_into)

    def _copy_into(self, held, value):
        self.copied.append((held, list(value.array.shape)))

    def compile(self, recording, defined=7):
        return compile_program(recording.encode(), defined, self.linker())

    def run(self, recording, *args):
        results = [UNWRITTEN] * len(recording.outputs)
        self.compile(recording).run(list(args), results, self.registers.read)
        return results


class Value(int):
    """An argument that stands for a register."""


class Recording:
    """Writes a program as a client does."""

    def __init__(self):
        self.log = RecordingLog()
        self.inputs, self.captured, self.registers, self.outputs = [], [], [], []

    def input(self):
        self.inputs += self.log.allocate(1)
        return Value(self.inputs[-1])

    def take(self, register):
        self.captured += self.log.allocate(1)
        self.registers.append(register)
        return Value(self.captured[-1])

    def plain(self, func, *args):
        column = [arg * 2 + 1 if isinstance(arg, Value) else arg * 2 for arg in args]
        return Value(self.log.issue_call(func, column))

    def issue(self, action, *args, func=0, reg=None, worker=None, results=()):
        def fill(command):
            for arg in args:
                encode_value(command.args.add(), arg, register_of=register_of)
            command.results.extend(results)
            return 0

        return Value(self.log.issue(action, fill, func=func, reg=reg, worker=worker)[1])

    def call(self, func, *args):
        return self.issue(Action.CALL_PACKED, *args, func=func)

    def encode(self):
        return EncodedProgram(
            batches=self.log.encode(),
            inputs=self.inputs,
            captured=self.captured,
            registers=self.registers,
            outputs=self.outputs,
            name="p",
        )


def register_of(value):
    return int(value) if isinstance(value, Value) else None


@pytest.fixture
def rank():
    made = Rank()
    made.registers.write(1, lambda *args: args[0] if len(args) == 1 else list(args))
    made.registers.write(2, lambda first, second: first + second)
    made.registers.write(3, lambda: 1 / 0)
    return made


@pytest.fixture
def recording():
    return Recording()


def test_steps_pass_their_results_on(rank, recording):
    """Inputs, results, captured registers and constants meet in the order of the steps."""
    x, y, add = recording.input(), recording.input(), recording.take(2)
    total = recording.plain(add, x, y)
    recording.outputs = [recording.plain(add, total, -5), total, y]
    assert rank.run(recording, 40, 2) == [37, 42, 2]


def test_an_empty_program_gives_its_inputs_back(rank, recording):
    """No steps are a program, too; the same value may be several outputs."""
    assert rank.run(recording) == []
    x = recording.input()
    recording.outputs = [x, x]
    assert rank.run(recording, "it") == ["it", "it"]


def test_a_result_may_be_several_outputs_and_be_used_later(rank, recording):
    """It is written to each of them when it is made."""
    add = recording.take(2)
    two = recording.plain(add, 1, 1)
    recording.outputs = [two, recording.plain(add, two, two), two]
    assert rank.run(recording) == [2, 4, 2]


def test_values_of_all_kinds_are_arguments(rank, recording):
    """As in a single call, lists and maps with registers inside them included."""
    echo, x = recording.take(1), recording.input()
    args = [None, True, 1 << 62, -0.5, "é\n'\"", b"\0", np.dtype("int8"), values.Shape((2, 3))]
    recording.outputs = [recording.call(echo, *args, [x, [x]], {"k'": x, "n": [None]}, [])]
    (result,) = rank.run(recording, "given")
    assert result == [*args, ["given", ["given"]], {"k'": "given", "n": [None]}, []]


def test_what_a_step_may_change_is_new_in_each_run(rank, recording):
    """Arrays, lists and maps among the constants are not shared between runs."""
    echo = recording.take(1)
    recording.outputs = [recording.call(echo, np.zeros(2), [1], {"k": 1})]
    program = rank.compile(recording)
    for _ in range(2):
        results = [UNWRITTEN]
        program.run([], results, rank.registers.read)
        ((array, items, mapping),) = results
        assert (list(array), items, mapping) == ([0, 0], [1], {"k": 1})
        array += 1
        items.append(2)
        mapping["more"] = 2


def test_captured_registers_are_read_anew_in_each_run(rank, recording):
    """A program refers to a register, not to what it held when it was defined."""
    held = recording.take(9)
    recording.outputs = [recording.plain(recording.take(2), held, 1)]
    program = rank.compile(recording)
    for content in (1, 10):
        rank.registers.write(9, content)
        results = [UNWRITTEN]
        program.run([], results, rank.registers.read)
        assert results == [content + 1]


def test_functions_may_be_looked_up_inside(rank, recording):
    """In each run, like the single command; reports know the name."""
    found = recording.issue(Action.GET_GLOBAL_FUNC, "t.late")
    recording.outputs = [recording.plain(found, 5)]
    program = rank.compile(recording)
    with pytest.raises(StepFailed) as caught:
        program.run([], [UNWRITTEN], rank.registers.read)
    assert (caught.value.step, type(caught.value.error)) == (1, KeyError)
    rank.known["t.late"] = lambda value: value / 0
    with pytest.raises(StepFailed) as caught:
        program.run([], [UNWRITTEN], rank.registers.read)
    assert (caught.value.step, caught.value.function) == (2, "t.late")


def test_copies_are_for_one_worker(rank, recording):
    """A new array is there on its worker and None on others; copies into one likewise."""
    mine = recording.issue(Action.COPY_TO_WORKER0, np.ones(2), True, worker=1)
    theirs = recording.issue(Action.COPY_TO_WORKER0, np.ones(2), True, worker=0)
    recording.issue(Action.COPY_TO_WORKER0, np.ones(3), False, reg=mine, worker=1)
    recording.issue(Action.COPY_TO_WORKER0, np.ones(3), False, reg=theirs, worker=0)
    recording.outputs = [mine, theirs]
    here, there = rank.run(recording)
    assert (list(here), there) == ([1, 1], None)
    ((held, shape),) = rank.copied
    assert held is here
    assert shape == [3]


@pytest.mark.parametrize("kept", [True, False], ids=["used later", "used once"])
def test_a_value_lives_until_its_last_use(rank, recording, kept):
    """Neither inputs nor results are held longer than some later step reads them."""
    alive = []

    def make(source):
        array = source + 1
        alive.append(weakref.ref(array))
        return array

    rank.registers.write(5, make)
    rank.registers.write(6, lambda *_: seen.append([ref() is not None for ref in alive]))
    seen = []
    make_it, look, x = recording.take(5), recording.take(6), recording.input()
    first = recording.plain(make_it, x)
    second = recording.plain(make_it, first)
    recording.plain(make_it, second)  # nobody wants its result
    recording.plain(look)
    recording.plain(look, *([first] if kept else []))
    rank.run(recording, np.zeros(2))
    assert seen[0] == [kept, False, False]


def test_an_input_dies_after_its_last_use(rank, recording):
    """The frame of a run does not hold it."""
    array = np.zeros(3)
    alive = weakref.ref(array)
    seen = []
    rank.registers.write(6, lambda: seen.append(alive() is not None))
    x, look = recording.input(), recording.take(6)
    recording.plain(recording.take(1), x)
    recording.plain(look)
    frame = [array]
    del array
    rank.compile(recording).run(frame, [], rank.registers.read)
    assert seen == [False]


def test_the_first_failing_step_ends_the_run(rank, recording):
    """What was made before is there, what comes later is not, and the report says where."""
    calls = []
    rank.registers.write(4, lambda: calls.append(1))
    add, fail, note = recording.take(2), recording.take(3), recording.take(4)
    before = recording.plain(add, 1, 2)
    recording.plain(note)
    failed = recording.plain(fail)
    recording.plain(note)
    recording.outputs = [before, failed, recording.plain(add, 1, 1)]
    results = [UNWRITTEN] * 3
    with pytest.raises(StepFailed, match="step 3: ZeroDivisionError") as caught:
        rank.compile(recording).run([], results, rank.registers.read)
    assert (caught.value.step, caught.value.register) == (3, 3)
    assert results == [3, UNWRITTEN, UNWRITTEN]
    assert calls == [1]


@pytest.mark.parametrize("what", [None, 5], ids=str)
def test_calling_what_is_no_function_is_refused_in_words(rank, recording, what):
    """As outside of programs; an exception of a builtin function is not mistaken for it."""
    rank.registers.write(5, what)
    recording.plain(recording.take(5))
    program = rank.compile(recording)
    with pytest.raises(StepFailed) as caught:
        program.run([], [], rank.registers.read)
    assert type(caught.value.error) is ArgumentRefused
    assert f"got {what}" in str(caught.value.error)
    rank.registers.write(5, len)
    with pytest.raises(StepFailed) as caught:
        program.run([], [], rank.registers.read)
    assert type(caught.value.error) is TypeError


def test_captured_poison_stops_a_run_before_it_begins(rank, recording):
    """No step runs, not even those that would not read it."""
    calls = []
    rank.registers.write(4, lambda *_: calls.append(1))
    rank.registers.write(5, POISON)
    note = recording.take(4)
    recording.plain(note)
    recording.plain(note, recording.take(5))
    with pytest.raises(Poisoned, match="earlier"):
        rank.run(recording)
    assert calls == []


def test_the_number_of_inputs_and_outputs_must_fit(rank, recording):
    """A run that brings others is refused with both numbers."""
    recording.outputs = [recording.input()]
    program = rank.compile(recording)
    with pytest.raises(ArgumentRefused, match="expected 1 inputs of program 'p', got 0"):
        program.run([], [UNWRITTEN], rank.registers.read)
    with pytest.raises(ArgumentRefused, match="expected 1 outputs of program 'p', got 2"):
        program.run([1], [UNWRITTEN] * 2, rank.registers.read)


# Programs inside programs ----------------------------------------------------------


def define(rank, register, inner):
    rank.registers.write(register, rank.compile(inner))


def test_a_program_becomes_part_of_another(rank, recording):
    """With references and constants for its inputs; a failure is told of the outer step."""
    inner = Recording()
    x, y = inner.input(), inner.input()
    total = inner.plain(inner.take(2), x, y)
    inner.outputs = [total, x]
    define(rank, 8, inner)
    add, given = recording.take(2), recording.input()
    run = recording.take(8)
    first, second = map(Value, recording.log.allocate(2))
    recording.issue(Action.RUN_PROGRAM, given, 5, func=run, reg=0, results=[first, second])
    recording.outputs = [recording.plain(add, first, second)]
    program = rank.compile(recording)
    define(rank, 8, Recording())  # what the register holds later does not matter
    results = [UNWRITTEN]
    program.run([10], results, rank.registers.read)
    assert results == [25]
    with pytest.raises(StepFailed) as caught:
        program.run(["text"], results, rank.registers.read)
    assert caught.value.step == 1


def test_an_argument_that_can_change_is_one_object_inside(rank, recording):
    """An inlined input that is read twice is the same list both times."""
    inner = Recording()
    x, echo = inner.input(), inner.take(1)
    inner.outputs = [inner.plain(echo, x), inner.plain(echo, x)]
    define(rank, 8, inner)
    run = recording.take(8)
    recording.outputs = recording.log.allocate(2)
    recording.issue(Action.RUN_PROGRAM, [1], func=run, reg=0, results=recording.outputs)
    first, second = rank.run(recording)
    assert first == [1]
    assert first is second


def test_a_program_that_calls_none_is_refused(rank, recording):
    """What is in the register must be a program when the outer one is defined."""
    recording.issue(Action.RUN_PROGRAM, func=recording.take(2), reg=0)
    with pytest.raises(EncodingError, match="expected a program in step 1"):
        rank.compile(recording)


def test_programs_cannot_grow_without_bound(rank, monkeypatch):
    """Calls of calls of calls are counted before they take memory."""
    monkeypatch.setattr(module, "MAX_STEPS", 500)
    inner = Recording()
    inner.plain(inner.take(1))
    define(rank, 20, inner)
    for level, times in ((21, 20), (22, 20), (23, 2)):
        outer = Recording()
        run = outer.take(level - 1)
        for _ in range(times):
            outer.issue(Action.RUN_PROGRAM, func=run, reg=0)
        if level < 23:
            define(rank, level, outer)
    with pytest.raises(EncodingError, match="at most 500 steps"):
        rank.compile(outer)


# What no client writes ----------------------------------------------------------------


def batch(calls=(), commands=0):
    made = EncodedBatch(calls=calls)
    for _ in range(commands):
        made.commands.add(action=int(Action.SYNC_WORKER))
    return EncodedProgram(batches=[made.SerializeToString()])


@pytest.mark.parametrize(
    ("definition", "message"),
    [
        (batch([0]), "breaks off"),
        (batch([0, 1, 2, 3]), "breaks off"),
        (batch([0, 1, 2, -1]), "breaks off"),
        (batch([5, 1, 2, 0]), "breaks off"),
        (batch([-1]), "breaks off"),
        (batch([0, 1, 2, 0]), "register 1, which no earlier one has written"),
        (batch(commands=1), "expected an action that a program may hold in step 1, got 4"),
        (EncodedProgram(outputs=[3]), "register 3"),
        (EncodedProgram(captured=[3]), "as many captured registers"),
    ],
    ids=[
        "head",
        "count",
        "surplus",
        "released",
        "missing",
        "unwritten",
        "action",
        "output",
        "captured",
    ],
)
def test_a_broken_program_is_refused(rank, definition, message):
    """Before anything of it runs, in words."""
    with pytest.raises(EncodingError, match=message):
        compile_program(definition, 1, rank.linker())


def test_values_inside_values_nest_only_so_deep(rank, recording, monkeypatch):
    """As in a single call."""
    recording.call(recording.take(1), [[[1]]])
    monkeypatch.setattr(module, "MAX_DEPTH", 2)
    with pytest.raises(EncodingError, match="nest 2 deep"):
        rank.compile(recording)


# Any program ---------------------------------------------------------------------------

STEPS = st.lists(
    st.tuples(st.booleans(), st.lists(st.integers(0, 30), min_size=2, max_size=2)), max_size=30
)


@given(STEPS, st.lists(st.integers(0, 40), max_size=6))
@settings(max_examples=150)
def test_any_program_computes_what_its_steps_say(steps, outputs):
    """Variables are shared by values only where that makes no difference."""
    rank = Rank()
    rank.registers.write(2, lambda first, second: [first, second])
    recording = Recording()
    x, y, pair = recording.input(), recording.input(), recording.take(2)
    values, expected = [x, y], ["x", "y"]
    for plain, operands in steps:
        picked = [operand % len(values) for operand in operands]
        call = recording.plain if plain else recording.call
        values.append(call(pair, *(values[index] for index in picked)))
        expected.append([expected[index] for index in picked])
    wanted = [index % len(values) for index in outputs]
    recording.outputs = [values[index] for index in wanted]
    assert rank.run(recording, "x", "y") == [expected[index] for index in wanted]
