"""What a rank tells of its programs and its published tensors."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from disco_client.wire.codec import Action
from disco_client.wire.reports import MOST_SOURCES, EncodedHoldingsRequest
from disco_client.wire.values import Shape
from disco_server.rank import holdings
from disco_server.rank.holdings import PAGE, describe_holdings
from disco_server.rank.program import UNWRITTEN, StepFailed


def told(*programs, published=None, name_of="function {}".format, **asked):
    return describe_holdings(EncodedHoldingsRequest(**asked), programs, published or {}, name_of)


def sources(steps):
    """For each step where it reads from."""
    found, at = [], 0
    for count in steps.reads:
        found.append(list(steps.sources[at : at + min(count, MOST_SOURCES)]))
        at += min(count, MOST_SOURCES)
    return found


def run(rank, program, *args):
    results = [UNWRITTEN] * len(program.definition.outputs)
    program.run(list(args), results, rank.registers.read)
    return results


def test_programs_are_listed_a_page_at_a_time(rank, new_recording):
    """In the order of their definition, with how often they ran."""
    programs = [rank.compile(new_recording(), defined) for defined in range(1, PAGE + 3)]
    run(rank, programs[1])
    found = told(*reversed(programs))
    assert found.num_programs == PAGE + 2
    assert [each.defined for each in found.programs] == list(range(1, PAGE + 1))
    assert [each.runs for each in found.programs][:3] == [0, 1, 0]
    rest = told(*programs, programs_from=PAGE)
    assert [each.defined for each in rest.programs] == [PAGE + 1, PAGE + 2]
    assert not rest.HasField("steps")


def test_steps_say_what_they_do_and_where_their_values_come_from(rank, recording):
    """Of other steps, of inputs, or of the session; names as the functions were found."""
    rank.known["t.late"] = lambda value: value
    echo, held, x = recording.take(1), recording.take(2), recording.input()
    first = recording.call(echo, x, "text")
    late = recording.issue(Action.GET_GLOBAL_FUNC, "t.late")
    second = recording.plain(late, first)
    third = recording.call(echo, [first, second], held)
    there = recording.issue(Action.CALL_PACKED, x, func=echo, workers=(0,))
    recording.outputs = [third, x, held, there]
    steps = told(rank.compile(recording), program=7).steps
    assert [steps.names[what] for what in steps.what] == [
        "function 1",
        "get_global_func('t.late')",
        "t.late",
        "function 1",
        "left to other workers",
    ]
    assert sources(steps) == [[-1], [], [1], [1, 3, 0], []]
    assert list(steps.outputs) == [4, -1, 0, 5]
    assert (steps.inputs, list(steps.recorded)) == (1, [1, 2, 3, 4, 5])


def test_who_reads_what_was_overwritten_reads_it_of_the_one_that_wrote_it(rank, recording):
    """As of a collective that writes into an array."""
    linker = rank.linker()
    writes = {2: 1}
    rank.linker = lambda: replace(linker, destination=lambda reg, _n, _k: writes.get(reg, -1))
    echo, into_second, x = recording.take(1), recording.take(2), recording.input()
    made = recording.plain(echo, x)
    recording.plain(into_second, x, made)
    recording.outputs = [recording.plain(echo, made), made]
    steps = told(rank.compile(recording), program=7).steps
    assert sources(steps) == [[-1], [-1, 1], [2]]
    assert list(steps.outputs) == [3, 2]


def test_a_step_that_reads_very_much_says_how_much(rank, recording):
    """And of so many values where they come from."""
    echo = recording.take(1)
    made = [recording.plain(echo, n) for n in range(MOST_SOURCES + 4)]
    recording.call(echo, made)
    steps = told(rank.compile(recording), program=7).steps
    assert steps.reads[-1] == MOST_SOURCES + 4
    assert sources(steps)[-1] == list(range(1, MOST_SOURCES + 1))


def test_steps_are_timed_from_the_first_question_on_and_for_a_while(rank, recording, monkeypatch):
    """Runs before it, and long after it, cost nothing more."""
    x = recording.input()
    recording.outputs = [
        recording.plain(recording.take(2), x, recording.plain(recording.take(1), x))
    ]
    program = rank.compile(recording)
    assert run(rank, program, 1) == [2]
    assert told(program, program=7).steps.timed == 0
    for number in range(3):
        assert run(rank, program, number) == [2 * number]
    steps = told(program, program=7).steps
    assert (steps.timed, len(steps.total_ns), len(steps.last_ns)) == (3, 2, 2)
    assert all(total >= last > 0 for total, last in zip(steps.total_ns, steps.last_ns, strict=True))
    monkeypatch.setattr(holdings, "TIMED_S", -1.0)
    told(program, program=7)
    run(rank, program, 1)
    found = told(program, program=7)
    assert (found.steps.timed, found.programs[0].runs) == (3, 5)


def test_a_step_that_fails_while_it_is_timed_is_told_as_ever(rank, recording):
    """With its number; its run has no times."""
    recording.plain(recording.take(1), 1)
    recording.plain(recording.take(3))
    program = rank.compile(recording)
    told(program, program=7)
    with pytest.raises(StepFailed) as caught:
        run(rank, program)
    assert (caught.value.step, caught.value.register) == (2, 3)
    assert isinstance(caught.value.error, ZeroDivisionError)
    assert told(program, program=7).steps.timed == 0


FACTS = {
    "shape": Shape((8, 6)),
    "dtype": np.dtype("float32"),
    "placement": "S[0]",
    "mesh": Shape((2,)),
    "workers": [0, 1],
    "names": ["tp"],
}


def test_published_tensors_are_told_with_the_whole_and_the_part_here():
    """Other values are none; what a client noted wrongly is left out."""
    published = {
        "w": (np.ones((4, 6), "float32"), FACTS),
        "elsewhere": (None, FACTS),
        "own": (np.zeros(3, "int8"), {}),
        "text": ("no tensor", {}),
        "odd": (np.zeros(2), {"shape": "none"}),
    }
    found = told(published=published)
    known = {each.name: each for each in found.tensors}
    assert found.num_tensors == 4
    assert sorted(known) == ["elsewhere", "odd", "own", "w"]
    whole, part = known["w"].whole, known["w"]
    assert (list(part.shape), part.nbytes, part.dtype) == ([4, 6], 96, "float32")
    assert (list(whole.shape), whole.placement, list(whole.workers)) == ([8, 6], "S[0]", [0, 1])
    assert not known["elsewhere"].dtype
    assert known["elsewhere"].whole == whole
    assert not known["own"].HasField("whole")
    assert not known["odd"].HasField("whole")


def test_tensors_are_listed_a_page_at_a_time():
    """By name."""
    published = {f"{n:02}": (np.zeros(1), {}) for n in range(PAGE + 1)}
    assert [each.name for each in told(published=published, tensors_from=PAGE).tensors] == ["25"]
