"""Recorded commands in a row: every kind of step and value, programs inside, what is refused."""

from __future__ import annotations

import numpy as np
import pytest

from disco_client.errors import EncodingError
from disco_client.wire import values
from disco_client.wire.codec import Action, EncodedBatch, EncodedProgram
from disco_server.rank import program as module
from disco_server.rank.program import UNWRITTEN, StepFailed, compile_program


def test_values_of_all_kinds_are_arguments(rank, recording):
    """As in a single call, lists and maps with registers inside them included."""
    echo, x = recording.take(1), recording.input()
    args = [None, True, 1 << 62, -0.5, "é\n'\"", b"\0", np.dtype("int8"), values.Shape((2, 3))]
    recording.outputs = [recording.call(echo, *args, [x, [x]], {"k'": x, "n": [None]}, [])]
    (result,) = rank.run(recording, "given")
    assert result == [*args, ["given", ["given"]], {"k'": "given", "n": [None]}, []]


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
    mine = recording.issue(Action.COPY_TO_WORKER0, np.ones(2), True, workers=(1,))
    theirs = recording.issue(Action.COPY_TO_WORKER0, np.ones(2), True, workers=(0,))
    recording.issue(Action.COPY_TO_WORKER0, np.ones(3), False, reg=mine, workers=(1,))
    recording.issue(Action.COPY_TO_WORKER0, np.ones(3), False, reg=theirs, workers=(0,))
    recording.outputs = [mine, theirs]
    here, there = rank.run(recording)
    assert (list(here), there) == ([1, 1], None)
    ((held, shape),) = rank.copied
    assert held is here
    assert shape == [3]


# Programs inside programs ----------------------------------------------------------


def define(rank, register, inner):
    rank.registers.write(register, rank.compile(inner))


def test_a_program_becomes_part_of_another(rank, recording, new_recording):
    """With references and constants for its inputs; a failure is told of the outer step."""
    inner = new_recording()
    x, y = inner.input(), inner.input()
    total = inner.plain(inner.take(2), x, y)
    inner.outputs = [total, x]
    define(rank, 8, inner)
    add, given = recording.take(2), recording.input()
    run = recording.take(8)
    first, second = recording.new(2)
    recording.issue(Action.RUN_PROGRAM, given, 5, func=run, reg=0, results=[first, second])
    recording.outputs = [recording.plain(add, first, second)]
    program = rank.compile(recording)
    define(rank, 8, new_recording())  # what the register holds later does not matter
    results = [UNWRITTEN]
    program.run([10], results, rank.registers.read)
    assert results == [25]
    with pytest.raises(StepFailed) as caught:
        program.run(["text"], results, rank.registers.read)
    assert caught.value.step == 1


def test_an_argument_that_can_change_is_one_object_inside(rank, recording, new_recording):
    """An inlined input that is read twice is the same list both times."""
    inner = new_recording()
    x, echo = inner.input(), inner.take(1)
    inner.outputs = [inner.plain(echo, x), inner.plain(echo, x)]
    define(rank, 8, inner)
    run = recording.take(8)
    recording.outputs = recording.new(2)
    recording.issue(Action.RUN_PROGRAM, [1], func=run, reg=0, results=recording.outputs)
    first, second = rank.run(recording)
    assert first == [1]
    assert first is second


def test_a_program_that_calls_none_is_refused(rank, recording):
    """What is in the register must be a program when the outer one is defined."""
    recording.issue(Action.RUN_PROGRAM, func=recording.take(2), reg=0)
    with pytest.raises(EncodingError, match="expected a program in the register that step 1 runs"):
        rank.compile(recording)


def test_programs_cannot_grow_without_bound(rank, new_recording, monkeypatch):
    """Calls of calls of calls are counted before they take memory."""
    monkeypatch.setattr(module, "MAX_STEPS", 500)
    inner = new_recording()
    inner.plain(inner.take(1))
    define(rank, 20, inner)
    for level, times in ((21, 20), (22, 20), (23, 2)):
        outer = new_recording()
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
