"""Programs as one function: values, order, lifetimes, and failures."""

from __future__ import annotations

import weakref

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from disco_client.errors import RemoteFailure
from disco_client.wire.codec import FailureKind
from disco_server.rank.errors import ArgumentRefused
from disco_server.rank.program import UNWRITTEN, StepFailed
from disco_server.rank.registers import Poison, Poisoned

POISON = Poison(RemoteFailure(worker=1, seq=3, message="earlier"), FailureKind.EXCEPTION)


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
    with pytest.raises(ArgumentRefused, match="expected 1 input of program 'p', got 0"):
        program.run([], [UNWRITTEN], rank.registers.read)
    with pytest.raises(ArgumentRefused, match="expected 1 output of program 'p', got 2"):
        program.run([1], [UNWRITTEN] * 2, rank.registers.read)


# Any program ---------------------------------------------------------------------------

STEPS = st.lists(
    st.tuples(st.booleans(), st.lists(st.integers(0, 30), min_size=2, max_size=2)), max_size=30
)


@given(STEPS, st.lists(st.integers(0, 40), max_size=6))
@settings(max_examples=150)
def test_any_program_computes_what_its_steps_say(new_rank, new_recording, steps, outputs):
    """Variables are shared by values only where that makes no difference."""
    rank = new_rank()
    rank.registers.write(2, lambda first, second: [first, second])
    recording = new_recording()
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
