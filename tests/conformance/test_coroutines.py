"""Coroutine functions run on a loop of the worker's own, each to its end, as any command."""

from __future__ import annotations

import contextlib
import time

import numpy as np
import pytest
from interrupting import GRACE_S, await_start, missing_everywhere, started
from reentry import watched

import disco_client as di

LONG = 600.0
"""Seconds that nobody waits for."""

SHORT = 0.2

REACTS_S = 5.0
"""How long a loop that waits may take to end on a machine that does other things."""

WAYS = ("sleep", "spin", "lock", "gather", "beside")


@pytest.fixture
def session(session):
    """The shared session, where functions have noted nothing yet."""
    session.sync_all()
    session.get_global_func("coroutine.kept")()
    session.sync_all()
    return session


def works(session, tools):
    """All workers run what comes next, coroutines too, and meet in a collective."""
    with contextlib.suppress(di.RemoteError):  # if nothing has read it
        session.sync_all()
    total = tools.call("coroutine.allreduced", session.broadcast(np.ones(3)))
    assert all((got == len(tools.workers)).all() for got in tools.fetch(total))
    return tools.results("coroutine.steps", 20) == [20] * len(tools.workers)


def everywhere(tools, value):
    """The value, for each worker."""
    return [value] * len(tools.workers)


# What a call returns -------------------------------------------------------------------


def test_a_call_returns_what_the_coroutine_returns(session, tools):
    """In a column of plain calls, with other arguments, by keywords, and of a reference."""
    double = session.get_global_func("coroutine.doubled")
    assert tools.fetch(double(4)) == everywhere(tools, 8)
    assert tools.fetch(double("a", 0.01)) == everywhere(tools, "aa")
    assert tools.fetch(double(value=double(2), seconds=0)) == everywhere(tools, 8)
    assert double.on(worker=1)(3).get(1) == 6
    assert (double(session.broadcast(np.ones(2))).numpy(1) == 2).all()
    assert double(None, 0).session is session
    with pytest.raises(di.RemoteException, match="unsupported operand"):
        session.sync_all()


def test_whatever_returns_a_coroutine_is_awaited(session, tools):
    """An object that is called, a partial, a lambda, and functions of a module."""
    assert tools.results("coroutine.called", 3) == everywhere(tools, 6)
    assert tools.results("coroutine.partial") == everywhere(tools, 42)
    assert tools.results("coroutine.lambda", 3) == everywhere(tools, 6)
    assert tools.results("disco_conformance_functions.awaited", 3) == everywhere(tools, 6)


def test_methods_of_objects_are_awaited(session, tools):
    """Those that are coroutine functions, static ones, and those that return a coroutine."""
    client = session.create("coroutine.Client")
    assert tools.fetch(client.static(3)) == everywhere(tools, 6)
    assert tools.fetch(client.plain()) == everywhere(tools, 8)


def test_commands_keep_their_order(session, tools):
    """A command begins when the coroutine before has ended."""
    double, note = session.get_global_func("coroutine.doubled"), session.get_global_func
    for number in range(20):
        double(number, 0.01 if number % 5 == 0 else 0)
        note("conformance.echo")(number)
    assert tools.results("coroutine.kept") == everywhere(tools, list(range(20)))


def test_steps_of_a_program_are_awaited(session, tools):
    """Each to its end, and its error names the step."""
    double, fail = (session.get_global_func(f"coroutine.{name}") for name in ("doubled", "fails"))
    with session.capture("awaits") as program:
        x = program.input("x")
        program.output(double(double(x)), x)
    with session.capture("fails") as failing:
        failing.output(fail(double(failing.input("x"))))
    for number in range(3):
        assert tools.fetch(program(number)[0]) == everywhere(tools, 4 * number)
    with pytest.raises(di.RemoteException, match="unhandled errors"):
        failing("x").get()
    with watched():
        with session.capture("waits") as waiting:
            waiting.output(session.get_global_func("coroutine.waits")("sleep", LONG))
        with session.limit(SHORT), pytest.raises(di.TimeLimit):
            waiting().get()
        assert works(session, tools)


def test_functions_of_distributed_tensors_are_awaited(session):
    """As others that compute the parts of a tensor."""
    made = session.numpy.fromfunction("coroutine.doubled", 4, dtype="float64")
    assert made.numpy().tolist() == [0, 2, 4, 6]


def test_what_a_coroutine_raises_is_the_failure_of_its_call(session, tools):
    """In itself, in a task and in a group of tasks, with the lines of the program alone."""
    fail = session.get_global_func("coroutine.fails")
    for how in ("itself", "task", "group"):
        with pytest.raises(di.RemoteException, match=r"told to fail|unhandled errors") as failed:
            fail(how).get()
        shown = failed.value.remote_traceback
        assert 'raise ValueError("told to fail")' in shown
        assert "ValueError: told to fail" in shown
        for file in ("rank/coroutines.py", "rank/signals.py", "rank/executor.py"):
            assert file not in shown
        for loop in ("base_events.py", "events.py"):
            assert loop not in shown
    with pytest.raises(di.RemoteException, match="by itself"):
        fail("cancelled").get()
    assert works(session, tools)


def test_what_has_yet_to_be_computed_is_no_result_of_a_coroutine(session, tools):
    """Such as another coroutine; Python complains of nothing."""
    returning = session.get_global_func("coroutine.returning")
    with pytest.raises(di.BadArgument, match=r"a coroutine.*await it"):
        returning().get()
    assert works(session, tools)
    assert tools.results("coroutine.complaints") == everywhere(tools, [])


# The loop --------------------------------------------------------------------------------


def test_each_worker_has_one_loop_in_its_own_thread(session, tools):
    """It stays the same, and tasks that a coroutine makes know their worker, too."""
    first, again = tools.results("coroutine.where"), tools.results("coroutine.where")
    assert first == again
    assert [worker for _, _, worker in first] == list(tools.workers)
    assert [thread for _, thread, _ in first] == tools.results("coroutine.thread")


def test_what_a_call_leaves_in_the_loop_is_there_for_the_next(session, tools):
    """A lock, a queue, and a task that waits for them."""
    client = session.create("coroutine.Client")
    client.take()
    assert tools.fetch(client.free()) == list(tools.workers)


def test_tasks_go_on_only_while_a_coroutine_is_awaited(session, tools):
    """Plain commands do not run the loop."""
    tools.call("coroutine.leaves")
    tools.results("coroutine.steps", 10)
    before = tools.results("coroutine.turns")
    tools.results("interrupt.spin", 0.05)
    assert tools.results("coroutine.turns") == before
    tools.results("coroutine.steps", 100)
    after = tools.results("coroutine.turns")
    assert all(turns >= former + 100 for turns, former in zip(after, before, strict=True))
    assert tools.results("coroutine.ended") == everywhere(tools, True)


def test_tasks_are_cancelled_at_the_end_of_the_session(open_session, tmp_path, eventually):
    """They clean up, awaiting something, before the loop is closed."""
    session = open_session()
    path = tmp_path / "left"
    session.get_global_func("coroutine.leaves")(str(path))
    session.get_global_func("coroutine.steps")(10)
    session.sync_all()
    session.shutdown()
    for worker in (0, 1):
        file = tmp_path / f"left.{worker}"
        eventually(lambda file=file: file.exists() and file.read_text() == "cancelled")


def test_a_session_ends_while_a_coroutine_waits(open_session):
    """However long it would wait."""
    session = open_session()
    with watched():
        session.get_global_func("coroutine.waits")("lock", LONG)
        await_start(session, "coroutine.waits")
        session.shutdown()


def test_workers_meet_in_collectives_inside_coroutines(session, tools):
    """Which do not await."""
    assert works(session, tools)


# Interrupts ------------------------------------------------------------------------------


@pytest.mark.parametrize("how", WAYS)
def test_an_interrupt_ends_a_coroutine(session, tools, how):
    """At once, where it awaits and where it runs Python; it cleans up, and the loop goes on."""
    with watched():
        running = started(session, tools, "coroutine.waits", how, LONG)
        begun = time.monotonic()
        assert session.interrupt(grace=GRACE_S) == ()
        assert time.monotonic() - begun < REACTS_S
        with pytest.raises(di.Interrupted):
            session.sync_all()
        assert missing_everywhere(running, tools)
        for noted in tools.results("coroutine.kept"):
            assert noted[-1] == "cleaned up"
            assert noted[-2] in ("CancelledError", "CommandInterrupted")
        assert works(session, tools)
        assert tools.results("coroutine.complaints") == everywhere(tools, [])


@pytest.mark.parametrize("how", WAYS)
def test_a_coroutine_is_cancelled(session, tools, how):
    """By its reference; all else is executed."""
    with watched():
        running = started(session, tools, "coroutine.waits", how, LONG)
        after = tools.call("coroutine.doubled", 4)
        running.cancel()
        assert tools.fetch(after) == everywhere(tools, 8)
        assert missing_everywhere(running, tools)
        assert works(session, tools)


@pytest.mark.parametrize("how", WAYS)
def test_a_coroutine_that_takes_too_long_ends(session, tools, how):
    """The error says where it was."""
    with watched():
        with session.limit(SHORT):
            running = tools.call("coroutine.waits", how, LONG)
        with pytest.raises(di.TimeLimit, match=r"limit of 0\.2 s") as ended:
            running.get()
        assert "in waits\n" in ended.value.remote_traceback
        assert "rank/" not in ended.value.remote_traceback.replace("rank.time_limits", "")
        assert works(session, tools)


def test_a_collective_inside_a_coroutine_ends(session, tools):
    """Where another worker never comes to it."""
    with watched():
        ref = started(session, tools, "coroutine.waits", "collective", LONG)
        assert session.interrupt(grace=GRACE_S) == ()
        assert missing_everywhere(ref, tools)
        assert works(session, tools)


def test_what_a_coroutine_returns_in_spite_of_an_end_counts(session, tools):
    """As of any function; it sees a cancellation."""
    with watched():
        with session.limit(SHORT):
            ref = tools.call("coroutine.catches", LONG)
        assert tools.fetch(ref) == everywhere(tools, "CancelledError")
        assert works(session, tools)


def test_a_coroutine_that_swallows_cancellation_does_not_react(session, tools, waiter, await_begun):
    """It is named as one that does not, and goes on until it ends by itself."""
    with watched():
        ref = tools.call("coroutine.swallows", str(waiter))
        await_begun(waiter)
        assert sorted(session.interrupt(grace=0.5)) == list(tools.workers)
        waiter.touch()
        assert tools.fetch(ref) == everywhere(tools, None)
        assert all("swallowed" in noted for noted in tools.results("coroutine.kept"))
        assert works(session, tools)


def test_a_task_of_an_earlier_call_goes_on_after_an_interrupt(session, tools):
    """It ends what the command awaits, and nothing beside."""
    tools.call("coroutine.leaves")
    with watched():
        for _ in range(10):
            with session.limit(0.01):
                tools.call("coroutine.waits", "sleep", LONG)
            with pytest.raises(di.TimeLimit):
                session.sync_all()
            with contextlib.suppress(di.TimeLimit):
                session.sync_all()
    assert tools.results("coroutine.ended") == everywhere(tools, True)
    assert works(session, tools)


def test_an_end_at_any_moment_harms_nothing_else(session, tools):
    """Coroutines that take about as long as they may: each is right or has failed."""
    steps = session.get_global_func("coroutine.steps")
    with watched(120):
        ended = 0
        for number in range(100):
            with session.limit(0.004):
                ref = steps(40 * (number % 10))
            plain = steps(number % 3)
            for worker in tools.workers:
                try:
                    assert ref.debug_get_from_remote(worker) == 40 * (number % 10)
                except di.TimeLimit:
                    ended += 1
            with contextlib.suppress(di.TimeLimit):  # of a worker that was later than its answer
                session.sync_all()
            assert tools.fetch(plain) == everywhere(tools, number % 3)
        assert works(session, tools)
        assert tools.results("coroutine.complaints") == everywhere(tools, [])
