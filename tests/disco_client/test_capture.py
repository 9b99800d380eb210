"""Captured programs on four workers: results, effects, inputs and outputs, errors, lifetimes."""

from __future__ import annotations

import copy
import gc
import threading

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from disco_client import (
    CaptureError,
    EncodingError,
    FunctionNotFound,
    Program,
    RemoteException,
    SessionClosed,
)
from disco_client.call_sites import call_site, locate
from disco_client.errors import RemoteFailure
from disco_client.program import Recorder, RecordingLog
from disco_client.step_lines import StepLines


@pytest.fixture
def add(session):
    return session.get_global_func("tests.add")


@pytest.fixture
def twice(session, add):
    """A program that doubles what it is given."""
    with session.capture("twice") as program:
        x = program.input("x")
        program.output(add(x, x))
    return program


def lines_of(function, text):
    """The lines of a test in which a text stands."""
    import inspect

    source, first = inspect.getsourcelines(function)
    return [first + index for index, line in enumerate(source) if text in line]


# What a run does ---------------------------------------------------------------------


def test_a_program_runs_on_every_worker_with_collectives_inside(session, add):
    """Allocations, calls and collectives happen in each run, none of them in the capture."""
    rank_array = session.get_global_func("tests.rank_array")
    before = session.statistics()["issued"]
    with session.capture() as program:
        factor = program.input("factor")
        mine = rank_array((2,), "float32", factor)
        total = session.empty((2,), "float32")
        session.allreduce(mine, total)
        program.output(add(total, mine))
    for factor in (1, 10):
        result = program(factor)
        assert [list(result.numpy(worker)) for worker in range(4)] == [
            [factor * (10 + worker + 1)] * 2 for worker in range(4)
        ]
    # Three lookups and the definition; two runs; eight answers.
    assert session.statistics()["issued"] - before < 20


def test_everything_that_is_a_command_can_be_captured(session):
    """Lookups, copies of small arrays, every collective, and functions of modules."""
    host = np.arange(8.0).reshape(4, 2)
    with session.capture() as program:
        rows = session.scatter(host)
        everywhere = session.broadcast(host)
        gathered = session.empty((4, 2), "float64", worker0_only=True)
        session.gather_to_worker0(rows, gathered)
        chunk = session.empty((2,), "float64")
        session.reduce_scatter(everywhere, chunk)
        everything = session.empty((4, 2), "float64")
        session.allgather(chunk, everything)
        total = session.get_global_func("numpy.sum")(everything)
        copy = session.copy_to_worker_0(host)
        session.copy_to_worker_0(host + 1, copy)
        session.import_python_module("disco_test_functions")
        program.output(rows=rows, gathered=gathered, total=total, copy=copy)
    for _ in range(2):
        got = program()
        assert list(got["rows"].numpy(3)) == [6, 7]
        assert np.array_equal(got["gathered"].numpy(), host)
        assert got["total"].numpy(2) == 4 * host.sum()
        assert np.array_equal(got["copy"].numpy(), host + 1)
        assert got["copy"].debug_get_from_remote(1) is None


def test_outside_registers_are_taken_by_reference(session, add):
    """A run sees what they hold then, and changes them in place as single commands do."""
    counter = session.broadcast(np.zeros(2))
    with session.capture() as program:
        session.get_global_func("numpy.add")(counter, 1, counter)
    program()
    program()
    assert list(counter.numpy(3)) == [2, 2]
    counter.debug_copy_from(3, np.full(2, 10.0))
    assert program() is None
    assert list(counter.numpy(3)) == [11, 11]


def test_outputs_become_inputs_again(session, twice):
    """A loop carries its state from run to run, and uses no more registers for that."""
    state = session.broadcast(np.ones(1))
    state = twice(state)
    registers = session.statistics()["registers"]
    for _ in range(9):
        state = twice(x=state)
    assert state.numpy(2) == 1024
    assert session.statistics()["registers"] <= registers + 2


@pytest.mark.parametrize(
    "value",
    [None, 3, -0.5, "text", np.arange(3.0), [1, {"k": 2.0}], np.arange(50_000)],
    ids=["none", "int", "float", "str", "array", "list", "large array"],
)
def test_an_input_is_anything_that_a_call_may_be_given(session, value):
    """Scalars, small values, arrays that travel beside the commands."""
    echo = session.get_global_func("tests.echo")
    with session.capture() as program:
        program.output(echo(program.input("value")))
    for worker in (0, 3):
        got = program(value).debug_get_from_remote(worker)
        assert np.array_equal(got, value) if isinstance(value, np.ndarray) else got == value


def test_an_empty_program_runs(session):
    """It does nothing, and may give its inputs back."""
    with session.capture() as nothing:
        pass
    assert nothing() is None
    with session.capture() as identity:
        identity.output(identity.input("x"))
    assert identity(7).debug_get_from_remote(1) == 7
    session.sync_all()


def test_a_program_may_be_run_inside_another(session, twice):
    """Its steps become part of the outer one, which goes on when the inner one is closed."""
    weights = session.broadcast(np.ones(2))
    with session.capture() as shift:
        y = shift.input("y")
        shift.output(session.get_global_func("tests.add")(y, weights), y)
    with session.capture() as outer:
        x = outer.input("x")
        shifted, same = shift(twice(x))
        outer.output(twice(shifted), same, twice(3))
    shift.close()
    twice.close()
    del weights
    session.sync_all()
    shifted, same, six = outer(np.full(2, 5.0))
    assert list(shifted.numpy(1)) == [22, 22]
    assert list(same.numpy(1)) == [10, 10]
    assert six.debug_get_from_remote(3) == 6


def test_several_threads_capture_and_run(session, add, twice):
    """Each captures for itself; the others' calls are sent as ever."""
    with session.capture() as mine:
        mine.output(add(mine.input("x"), 1))
        results = {}

        def other():
            results["call"] = add(1, 2)
            with session.capture() as theirs:
                theirs.output(add(theirs.input("x"), 2))
            results["program"] = theirs(40)
            results["run"] = [twice(number) for number in range(20)]

        thread = threading.Thread(target=other)
        thread.start()
        thread.join()
    assert mine.num_steps == 1
    assert results["call"].debug_get_from_remote(2) == 3
    assert results["program"].debug_get_from_remote(2) == 42
    assert [run.debug_get_from_remote(1) for run in results["run"]] == list(range(0, 40, 2))


@given(
    steps=st.lists(st.tuples(st.integers(0, 20), st.integers(0, 20)), max_size=12),
    inputs=st.lists(st.integers(-9, 9), min_size=2, max_size=2),
)
@settings(
    max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_captured_or_not_the_results_are_the_same(session, add, steps, inputs):
    """Any sequence of calls gives what it gives when it is sent one by one."""

    def run(first, second):
        values = [first, second, add(first, second)]
        for left, right in steps:
            values.append(add(values[left % len(values)], values[right % len(values)]))
        return values[-1]

    with session.capture() as program:
        program.output(run(program.input("first"), program.input("second")))
    expected = run(*inputs).debug_get_from_remote(1)
    assert program(*inputs).debug_get_from_remote(1) == expected


def test_a_copy_of_a_program_is_the_program(session, add):
    """Whose inputs and outputs are noted while it is captured, through either name."""
    with session.capture() as program:
        copied = copy.copy(program)
        x = copied.input("x")
        copied.output(copy.copy(add)(copy.copy(x), 1))
    assert copied is program
    assert program(4).get(1) == 5


# Inputs and outputs --------------------------------------------------------------------


def test_outputs_come_as_they_were_named(session, add):
    """None, the one, a tuple, or a dict; also when they are told one after the other."""
    with session.capture() as several:
        several.output(add(1, 1))
        several.output(add(1, 2), add(1, 3))
    assert [ref.debug_get_from_remote(0) for ref in several()] == [2, 3, 4]
    with session.capture() as named:
        named.output(two=add(1, 1))
    ((name, ref),) = named().items()
    assert (name, ref.debug_get_from_remote(0)) == ("two", 2)


@pytest.mark.parametrize(
    ("args", "inputs", "message"),
    [
        ((), {}, "missing: x, y"),
        ((1,), {}, "missing: y"),
        ((1, 2, 3), {}, "at most 2 positional inputs, got 3"),
        ((1, 2), {"z": 3}, "surplus: z"),
        ((1, 2), {"x": 3}, "given twice: x"),
    ],
    ids=["none", "one", "three", "unknown", "twice"],
)
def test_inputs_are_bound_like_arguments(session, args, inputs, message):
    """What does not fit is a TypeError that names it and sends nothing."""
    with session.capture("pair") as program:
        program.input("x")
        program.input("y")
    issued = session.statistics()["issued"]
    with pytest.raises(TypeError, match=f"program 'pair' takes x, y.*{message}"):
        program(*args, **inputs)
    assert session.statistics()["issued"] == issued


def test_an_input_that_cannot_travel_is_refused(session, twice):
    """As in a call; the program can be run with something else."""
    with pytest.raises(EncodingError, match=r"^argument 'x' at \['k'\]\[0\]: .* builtins.object"):
        twice({"k": (object(),)})
    assert twice(4).debug_get_from_remote(0) == 8


def test_wrong_inputs_and_outputs_are_refused_while_capturing(session, add):
    """Names must be texts and unique, outputs references, and all named or none."""
    with session.capture() as program:
        x = program.input("x")
        with pytest.raises(ValueError, match="'x' already"):
            program.input("x")
        with pytest.raises(TypeError, match="name of an input"):
            program.input(3)
        with pytest.raises(TypeError, match="expected a reference as an output, got 3"):
            program.output(3)
        program.output(only=x)
        with pytest.raises(ValueError, match="'only' already"):
            program.output(only=x)
        for args, named in (((x,), {}), ((x,), {"more": x})):
            with pytest.raises(TypeError, match="name for each"):
                program.output(*args, **named)
    assert list(program(5)) == ["only"]
    for verb, argument in ((program.input, "y"), (program.output, x)):
        with pytest.raises(CaptureError, match="belongs inside the capture"):
            verb(argument)


def test_a_program_says_what_it_is(session, twice):
    """Steps, inputs, outputs, and whether it can run."""
    assert repr(twice) == "<Program 'twice': steps: 1, inputs: x, outputs: 1, ready>"
    with session.capture() as program:
        session.get_global_func("tests.add")(1, 2)
        assert "steps: 2, inputs: none, outputs: none, being captured" in repr(program)
        program.output(y=program.input("x"))
    assert "outputs: y" in repr(program)
    twice.close()
    assert repr(twice).endswith("closed>")
    assert isinstance(twice, Program)


# Errors ----------------------------------------------------------------------------------


def test_an_error_names_the_step_and_both_lines(session, add):
    """Where it was captured, and where the run was called."""
    fail = session.get_global_func("tests.fail_on")
    with session.capture("decode") as program:
        x = program.input("x")
        before = add(x, 1)
        failed = fail(2)  # the step
        program.output(before, failed, add(failed, x))
    before, failed, after = program(x=1)  # the run
    with pytest.raises(RemoteException, match="told to fail") as caught:
        session.sync_all()
    here = test_an_error_names_the_step_and_both_lines
    error = caught.value
    assert (error.step, error.function, error.worker) == (2, "tests.fail_on", 2)
    assert [error.captured_at.line] == lines_of(here, "# the step")[:1]
    assert [error.issued_at.line] == lines_of(here, "# the run")[:1]
    assert "step 2 of program 'decode' in tests.fail_on" in str(error)
    assert "in fail_on" in error.remote_traceback
    assert "<program" not in error.remote_traceback
    assert before.debug_get_from_remote(2) == 2
    assert after.debug_get_from_remote(0) == 1
    for poisoned in (failed, after):
        with pytest.raises(RemoteException, match="step 2"):
            poisoned.debug_get_from_remote(2)


def test_a_failing_step_ends_the_collectives_of_its_peers(session, add):
    """Whichever collective of the run they wait in; the program works again afterwards."""
    fail, echo = session.get_global_func("tests.fail_on"), session.get_global_func("tests.echo")
    ones = session.broadcast(np.ones(2))
    with session.capture() as program:
        who = program.input("who")
        first, second = session.empty((2,), "float64"), session.empty((2,), "float64")
        session.allreduce(ones, first)
        fail(who)
        session.allreduce(first, second)
        program.output(echo(second))
    assert list(program(-1).numpy(3)) == [16, 16]
    for who in (1, 3):
        result = program(who)
        with pytest.raises(RemoteException, match="told to fail") as caught:
            session.sync_all()
        assert caught.value.worker == who
        for worker in range(4):
            with pytest.raises(Exception, match=r"told to fail|cannot happen"):
                result.numpy(worker)
        assert list(program(-1).numpy(who)) == [16, 16]


def test_a_poisoned_input_skips_the_run(session, twice):
    """Its outputs have the first cause, and nothing is reported twice."""
    poisoned = session.get_global_func("tests.fail_on")(1)
    result = twice(poisoned)
    with pytest.raises(RemoteException, match="told to fail"):
        session.sync_all()
    session.sync_all()
    assert result.debug_get_from_remote(0) == 0
    with pytest.raises(RemoteException, match="told to fail"):
        result.debug_get_from_remote(1)


def test_a_missing_function_is_an_error_of_its_step(session):
    """If it is looked up inside; outside it poisons what the program takes."""
    with session.capture("inner") as program:
        session.get_global_func("tests.no_such_function")
    program()
    with pytest.raises(FunctionNotFound, match="step 1 of program 'inner'"):
        session.sync_all()
    missing = session.get_global_func("tests.no_such_function")
    with session.capture() as program:
        missing()
    program()
    with pytest.raises(FunctionNotFound, match=r"tests\.no_such_function"):
        session.sync_all()


def test_a_block_that_raises_discards_its_program(session, add):
    """The session goes on, and the program says why it cannot run."""
    registers = session.get_global_func("tests.registers")
    with pytest.raises(KeyError), session.capture("half") as program:  # noqa: PT012
        add(1, 2)
        raise KeyError
    with pytest.raises(CaptureError, match="'half' cannot run: it is discarded"):
        program()
    assert registers().debug_get_from_remote(0)
    assert add(1, 2).debug_get_from_remote(1) == 3


def test_a_program_cannot_run_before_it_is_there(session):
    """Calling it inside its own block is refused."""
    with session.capture() as program, pytest.raises(CaptureError, match="being captured"):
        program()
    assert program() is None


def test_the_lines_of_gone_programs_fade(monkeypatch):
    """Those that ended last are remembered, up to a number of steps; live ones always."""
    monkeypatch.setattr("disco_client.step_lines._REMEMBERED_STEPS", 30)
    lines = StepLines()
    sites = [call_site() for _ in range(9)]
    for defined in range(1, 6):
        lines.add(defined, f"p{defined}", sites)
        if defined > 1:
            lines.end(defined)
    lines.add(6, "p6", sites)

    def explained(defined):
        failure = RemoteFailure(worker=0, seq=1, message="", program=defined, step=4)
        return lines.explain(failure).program_name

    assert [explained(n) for n in range(7)] == ["", "p1", "", "p3", "p4", "p5", "p6"]
    failure = RemoteFailure(worker=0, seq=1, message="", program=1, step=4)
    assert lines.explain(failure).captured_at == locate(sites[3])


def test_of_a_gone_program_only_the_lines_are_kept(session):
    """Neither what recorded it nor its log stays, though its failures may yet be reported."""

    def recording():
        gc.collect()
        return sum(isinstance(one, (Recorder, RecordingLog)) for one in gc.get_objects())

    before = recording()
    for _ in range(20):
        with session.capture() as program:
            program.output(session.get_global_func("numpy.add")(program.input("x"), 1))
        assert program(1).debug_get_from_remote(0) == 2
    del program
    assert recording() == before


# The end -------------------------------------------------------------------------------------


def in_use(session):
    """How many registers hold something on worker 0."""
    return session.get_global_func("tests.registers")().debug_get_from_remote(0)[1]


@pytest.mark.parametrize("how", ["close", "collect"])
def test_a_program_leaves_nothing_behind(session, add, how):
    """Neither its definition nor what it took, on any worker; closing twice is fine."""
    kept = session.broadcast(np.full(1, 2.0))  # the session's own functions stay
    before = in_use(session)
    taken = session.broadcast(np.ones(3))
    with session.capture() as program:
        local = add(taken, program.input("x"))
        program.output(add(local, local))
    del taken, local
    for _ in range(20):
        result = program(1)
    assert list(result.numpy(2)) == [4, 4, 4]
    assert in_use(session) > before
    if how == "close":
        program.close()
        program.close()
        with pytest.raises(CaptureError, match="it is closed"):
            program(1)
    else:
        del program
    del result
    gc.collect()
    assert in_use(session) == before
    assert kept.numpy() == 2


def test_a_program_keeps_what_it_took(session, add):
    """References that the client dropped live on in it."""
    taken = add(20, 1)
    with session.capture() as program:
        program.output(add(taken, taken))
    del taken
    for number in range(10):
        add(number, number)
    assert program().debug_get_from_remote(3) == 42


def test_a_program_ends_with_its_session(open_session):
    """Then it cannot be run, nor can one be captured."""
    session = open_session(1)
    with session.capture() as program:
        pass
    capture = session.capture()
    session.shutdown()
    with pytest.raises(SessionClosed):
        program()
    with pytest.raises(SessionClosed), capture:
        pass
