"""What a thread that captures may do: recording, and what is refused in words."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from disco_client import CaptureError, DModule, DPackedFunc, ForeignReference
from disco_client.call_sites import locate
from disco_client.command_log import MAX_COMMAND_BYTES
from disco_client.program import RecordingLog
from disco_client.wire.codec import Action, EncodedBatch


@pytest.fixture
def add(session):
    return session.get_global_func("tests.add")


def test_steps_are_numbered_and_encoded_as_batches():
    """Registers are never used again, and the lines of the steps are remembered."""
    log = RecordingLog()
    registers = [log.issue_call(1, [2 * number], int) for number in range(2100)]
    log.release(registers[0])
    registers.append(log.issue(Action.CALL_PACKED, func=1, reg=int)[1])
    assert registers == list(range(1, 2102))
    assert log.num_steps == 2101
    first, second = map(EncodedBatch.FromString, log.encode())
    assert len(first.calls) == 2048 * 5
    assert len(second.commands) == 1
    sites = log.sites()
    assert len(sites) == 2101
    assert locate(sites[-1]).function == "test_steps_are_numbered_and_encoded_as_batches"


@pytest.mark.parametrize("what", ["steps", "bytes"])
def test_a_program_has_a_largest_size(monkeypatch, what):
    """More steps or values than travel at once are refused while they are recorded."""
    monkeypatch.setattr("disco_client.program.MAX_STEPS", 10)
    log = RecordingLog()

    def record():
        if what == "bytes":
            log.issue(Action.CALL_PACKED, lambda _command: MAX_COMMAND_BYTES, func=1, reg=int)
        else:
            log.issue_call(1, [], int)

    with pytest.raises(CaptureError, match="at most 10 steps"):  # noqa: PT012
        for _ in range(11):
            record()
    assert log.num_steps == (2 if what == "bytes" else 10)


def waits(session, ref):
    """Every call that waits for workers."""
    return {
        "sync_all": session.sync_all,
        "sync_worker": lambda: session.sync_worker(1),
        "sync_worker_0": session.sync_worker_0,
        "get": lambda: ref.debug_get_from_remote(0),
        "numpy": ref.numpy,
        "set": lambda: ref.debug_copy_from(0, np.ones(2)),
        "copy_from": lambda: session.copy_from_worker_0(np.ones(2), ref),
        "init_ccl": lambda: session.init_ccl("mpi"),
    }


@pytest.mark.parametrize("outside", [True, False])
def test_what_waits_is_refused(session, add, outside):
    """With advice; the capture goes on, and no step comes of it."""
    taken = add(1, 2)
    with session.capture("p") as program:
        inside = add(1, 2)
        for call in waits(session, taken if outside else inside).values():
            with pytest.raises(CaptureError, match=r"'p' is captured: .* the capture"):
                call()
        program.output(inside)
    assert program.num_steps == 1
    assert program().debug_get_from_remote(0) == 3
    session.sync_all()


def test_what_was_made_inside_is_of_no_use_outside(session, add):
    """Neither to calls nor to fetch, there and in another capture; the error says what to do."""
    with session.capture("p"):
        inside = add(1, 2)
        function = session.get_global_func("tests.add")
    uses = [
        lambda: add(inside, 1),
        lambda: add([inside], 1),
        lambda: function(1, 2),
        lambda: session.call_packed(function, 1),
        lambda: DPackedFunc(function, session),
        lambda: session.copy_to_worker_0(np.ones(1), inside),
        lambda: inside.debug_get_from_remote(0),
        lambda: inside.debug_copy_from(0, np.ones(1)),
        inside.session.sync_all,
    ]
    for use in uses:
        with pytest.raises(CaptureError, match=r"inside the capture of program 'p'.*output"):
            use()
    with session.capture(), pytest.raises(CaptureError, match="program 'p'"):
        add(inside, 1)
    assert add(1, 2).debug_get_from_remote(0) == 3


def test_another_thread_cannot_use_what_is_being_made(session, add):
    """Its own calls go on, with its own references."""
    seen = []

    def attempt(call):
        try:
            seen.append(call())
        except CaptureError as error:
            seen.append(str(error))

    with session.capture("p") as program:
        inside = add(1, 2)
        function = session.get_global_func("tests.add")
        for call in (
            lambda: add(inside, 1),
            lambda: function(1, 2),
            lambda: program.input("x"),
            lambda: program.output(inside),
        ):
            thread = threading.Thread(target=attempt, args=(call,))
            thread.start()
            thread.join()
    assert [("stands for nothing" in text, "another task or thread" in text) for text in seen] == [
        (True, False),
        (False, True),
        (False, True),
        (False, True),
    ]
    assert program.num_steps == 2


def test_captures_do_not_nest(session, add):
    """The inner one is refused, the outer one goes on; a block is entered once."""
    capture = session.capture()
    with capture as program:
        program.output(add(1, 1))
        with pytest.raises(CaptureError, match="this task or thread captures"), session.capture():
            pass
        program.output(add(1, 2))
    with pytest.raises(CaptureError, match="cannot be entered again"), capture:
        pass
    assert [ref.debug_get_from_remote(1) for ref in program()] == [2, 3]


def test_two_sessions_capture_at_once(open_session):
    """Each its own commands; the other's references are foreign as ever."""
    first, second = open_session(1), open_session(1)
    add = first.get_global_func("tests.add")
    other = second.get_global_func("tests.add")
    with first.capture() as one, second.capture() as two:
        one.output(add(1, 1))
        two.output(other(2, 2))
        with pytest.raises(ForeignReference):
            first.call_packed(add, other)
        with pytest.raises(CaptureError):
            add(other(1, 1), 1)
    assert one().debug_get_from_remote(0) == 2
    assert two().debug_get_from_remote(0) == 4


def test_a_large_array_is_no_part_of_a_program(session, add):
    """It would travel with every run or stay for ever: it is to be copied before, or an input."""
    large = np.zeros(10_000)
    with session.capture() as program:
        for use in (
            lambda: add(large, 1),
            lambda: session.copy_to_worker_0(large),
            lambda: session.broadcast(large),
        ):
            with pytest.raises(CaptureError, match=r"65536 bytes.*before the capture.*an input"):
                use()
        program.output(add(program.input("x"), 1))
    assert program(large).numpy(1).sum() == 10_000


def test_builtins_found_first_in_a_capture_stay_good(open_session):
    """A session's own functions are looked up outside of the program, once."""
    session = open_session(2)
    with session.capture() as program:
        program.output(session.empty((2,), "int32"))
    assert session.empty((3,), "int32").numpy(1).shape == (3,)
    assert program().numpy(1).shape == (2,)


def test_wrappers_can_be_made_inside(session):
    """A result that is a function or a module is wrapped as usual."""
    echo = session.get_global_func("tests.echo")
    with session.capture() as program:
        function = DPackedFunc(echo(echo), session)
        outside = DPackedFunc(echo, session)
        program.output(function(4), outside(5))
        module = DModule(echo(1), session)
        module["anything"]
    four = program()
    with pytest.raises(Exception, match=r"expected a module.*got int"):
        session.sync_all()
    assert [ref.debug_get_from_remote(0) for ref in four] == [4, 5]
    assert "capture of program" in repr(function.session)


def test_a_session_can_be_shut_down_inside(open_session):
    """The capture then ends with the session's own error."""
    session = open_session(1)
    with pytest.raises(Exception, match="was shut down"), session.capture():
        session.get_global_func("tests.add").session.shutdown()
