"""Signal handlers, asynchronous exceptions and finalizers, between any two bytecodes of a call.

They come while a program issues calls and waits for values. What they raise leaves the session
whole: what was interrupted has happened or not, once and in its order. What they issue is
executed, and what they wait for comes, or is refused with a typed error where no wait is possible.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import signal
import threading
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from reentry import (
    Finalizing,
    Handling,
    Interruption,
    OutOfTime,
    Program,
    Raising,
    Stopped,
    in_thread,
    sending,
    watched,
)

import disco_client as di

# The timer of the signal that pytest-timeout uses otherwise is the one of these tests.
pytestmark = pytest.mark.timeout(60, method="thread")

MANY = 150
"""How many exceptions a program catches."""

SOME = 40
"""The same where another test has had many."""


def interrupted(program, raising, count):
    """Does steps until so many of them were interrupted; then one of each kind, undisturbed."""
    while raising.caught < count:
        raising.during(program.step)
    assert program.done > 0


def afterwards(program):
    """Does one step of each kind, which nothing disturbs, and compares what has happened."""
    for name in Program.STEPS:
        program.step((name,))
    program.check()


# What raises ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("way", "number", "kind_raised", "count"),
    [
        ("timer", signal.SIGALRM, OutOfTime, MANY),
        ("thread", signal.SIGUSR1, Interruption, SOME),
        ("child", signal.SIGTERM, Stopped, SOME),
        ("thread", signal.SIGINT, KeyboardInterrupt, SOME),
    ],
    ids=["timer", "SIGUSR1", "SIGTERM", "SIGINT"],
)
@watched()
def test_what_a_handler_raises_leaves_the_session_whole(session, way, number, kind_raised, count):
    """The program catches it, and goes on: nothing is lost, executed twice or out of order."""
    program = Program(session)
    with Raising(way, number, kind=kind_raised) as raising:
        interrupted(program, raising, count)
    afterwards(program)


@pytest.mark.parametrize("names", [Program.ISSUES, Program.WAITS, Program.BLOCKS])
@watched()
def test_what_a_handler_raises_at_each_kind_of_step_leaves_the_session_whole(session, names):
    """The same where a program does only one thing: issuing, waiting, or leaving blocks."""
    program = Program(session)
    with Raising("timer", kind=OutOfTime) as raising:
        while raising.caught < SOME:
            raising.during(lambda: program.step(names))
    afterwards(program)


def shared_memory():
    """The memory of arrays of which this process has descriptors, and how many of each."""
    found = Counter()
    for entry in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # it was open to list the others
            found[str(entry.readlink())] += 1
    return Counter({name: count for name, count in found.items() if "disco-array" in name})


@watched()
def test_transfers_that_a_handler_interrupts_leave_no_descriptor(open_session):
    """Of what they had of shared memory nothing is open when the session is over."""
    before = shared_memory()
    session = open_session()
    program = Program(session)
    with Raising("timer", kind=OutOfTime) as raising:
        while raising.caught < 2 * MANY:
            raising.during(lambda: program.step(("large", "copy")))
    afterwards(program)
    session.shutdown()
    gc.collect()
    assert not shared_memory() - before


@watched()
def test_blocks_that_an_exception_ends_are_over(session):
    """Tasks that begin later are not in them: each gets its own errors."""
    program = Program(session)
    fail = session.get_global_func("reentry.fail")

    def blocks():
        for _ in range(50):
            with session.scope():
                pass

    with Raising("timer", interval=0.0005) as raising:
        while raising.caught < 4 * MANY:
            raising.during(blocks)

    async def failing():
        fail()
        await asyncio.sleep(0)
        with pytest.raises(di.RemoteError):
            session.sync_all()

    async def fine():
        program.call()
        await asyncio.sleep(0)
        session.sync_all()

    async def main():
        await asyncio.gather(failing(), fine(), failing(), fine())

    asyncio.run(main())
    afterwards(program)


@watched()
def test_an_asynchronous_exception_leaves_the_session_whole(session):
    """One that another thread raises in the main thread."""
    program = Program(session)
    with Raising("async") as raising:
        interrupted(program, raising, MANY)
    afterwards(program)


@watched()
def test_an_asynchronous_exception_in_another_thread_leaves_the_session_whole(session):
    """A thread that is not the main one uses the session, and then the main one does."""
    program = Program(session)

    def work():
        with Raising("async") as raising:
            interrupted(program, raising, MANY)
        afterwards(program)

    in_thread(work).join()
    afterwards(program)


@watched()
def test_exceptions_in_one_thread_leave_other_threads_alone(session):
    """Threads that use the same session meanwhile get all of their values."""
    victim, over = Program(session), threading.Event()

    def disturbed():
        try:
            with Raising("async") as raising:
                interrupted(victim, raising, MANY)
            afterwards(victim)
        finally:
            over.set()

    def work(program):
        while not over.is_set() or program.done < SOME:
            program.step()
        program.check()

    programs = [Program(session, seed) for seed in (1, 2)]
    threads = [in_thread(disturbed)]
    threads += [in_thread(lambda program=program: work(program)) for program in programs]
    for thread in threads:
        thread.join()
    afterwards(victim)


# What issues ------------------------------------------------------------------------------


@watched()
def test_what_a_handler_issues_is_executed(session):
    """Wherever in a call of the program it comes; both get their values."""
    program, inner = Program(session), Program(session, 1)
    with Handling(inner.issue_inside) as handling:
        while handling.came < MANY:
            program.step(Program.BESIDE)
    assert inner.done > 0
    afterwards(program)
    afterwards(inner)


def test_what_finalizers_issue_is_executed(session):
    """Whatever allocates when the garbage collector runs them, and in any thread."""
    with watched() as ignored:
        program, inner = Program(session), Program(session, 1)
        with Finalizing(inner.issue_inside) as finalizing:
            while finalizing.came < MANY:
                program.step(Program.BESIDE)
        assert inner.done > 0
        assert ignored == []
        afterwards(program)
        afterwards(inner)


@watched()
def test_an_await_outlives_what_a_handler_issues(session):
    """Tasks await values in an event loop, while a signal handler issues calls."""
    program, inner = Program(session), Program(session, 1)

    async def one():
        ref, number = program.call()
        program.same(await ref, number)

    async def main(handling):
        while handling.came < SOME:
            await asyncio.gather(*(one() for _ in range(8)))
            await session.synced()

    with Handling(inner.issue_inside) as handling:
        asyncio.run(main(handling))
    afterwards(program)
    afterwards(inner)


# What waits -------------------------------------------------------------------------------


@pytest.mark.parametrize("wait", ["get", "sync_all", "sync_worker", "result", "numpy"])
@watched()
def test_a_handler_is_served_while_the_program_waits(session, tools, waiter, wait):
    """It gets values of one worker, while the program waits for another one that is busy."""
    inner, served = Program(session, 1), []
    array = session.broadcast(np.arange(3))
    tools.call("wait_on", 0, str(waiter))
    last = tools.call("add", array, 1)
    waits = {
        "get": lambda: last.get(0),
        "sync_all": session.sync_all,
        "sync_worker": lambda: session.sync_worker(0),
        "result": lambda: last.future(0).result(),
        "numpy": lambda: last.numpy(0),
    }

    def act():
        ref, number = inner.call()
        try:
            got = ref.get(1)
        except di.Reentered:
            return  # it has come before the wait, or in the moment of a reply
        inner.same(got, number)
        served.append(number)
        if len(served) == 3:
            waiter.touch()

    with Handling(act, "thread", signal.SIGUSR1, 0.02):
        got = waits[wait]()
    assert len(served) >= 3
    if got is not None:
        assert got.tolist() == [1, 2, 3]
    assert last.get(0).tolist() == [1, 2, 3]
    inner.check()


@watched()
def test_waits_of_handlers_nest(session, tools, waiter):
    """One handler waits inside the wait of another one, which is inside one of the program."""
    tools.call("wait_on", 0, str(waiter))
    outer, values, inside = tools.call("echo", "outer"), {}, []

    def wait(name, worker):
        """Waits in a handler, once; whether that was served."""
        if name in inside or name in values:
            return False
        inside.append(name)
        try:
            values[name] = tools.call("echo", name).get(worker)
        except di.Reentered:
            return False
        finally:
            inside.remove(name)
        return True

    def first(_number, _frame):
        """Waits for the busy worker, while the second handler is on its way."""
        wait("first", 0)

    def second(_number, _frame):
        """Waits for the other worker, and ends the waits of all."""
        if "first" in inside and wait("second", 1):
            waiter.touch()

    signal.signal(signal.SIGUSR1, first)
    signal.signal(signal.SIGUSR2, second)
    with (
        sending("thread", signal.SIGUSR1, 0.02),
        sending("thread", signal.SIGUSR2, 0.03),
    ):
        assert outer.get(0) == "outer"
    assert values == {"first": "first", "second": "second"}
    session.sync_all()


@watched()
def test_a_handler_may_wait_for_what_the_program_waits_for(session, tools):
    """For the end of the same slow call, several times."""
    inner, came = Program(session, 1), []

    def act():
        if inner.wait_inside():
            came.append(inner.served)

    with Handling(act, "thread", signal.SIGUSR1, 0.02) as handling:
        while not came:
            slow = tools.call("nap", 0.1)
            assert slow.get(0) is None
            assert slow.get(1) is None
    assert handling.came >= 1
    inner.check()


@watched()
def test_what_a_handler_waits_for_comes_or_is_refused(session):
    """At random moments; where it is refused, the program does it after the call."""
    program, inner = Program(session), Program(session, 1)
    asked = threading.Event()

    def act():
        if not inner.wait_inside():
            asked.set()

    with Handling(act) as handling:
        while handling.came < MANY or not inner.served:
            program.step(Program.BESIDE)
            if asked.is_set():
                asked.clear()
                program.sync()
    assert inner.served + inner.refused == handling.came
    afterwards(program)
    afterwards(inner)


@watched()
def test_a_program_saves_when_it_is_told_by_a_signal(session, tmp_path):
    """In the handler where that comes in a wait, and otherwise after the call, by a flag."""
    program = Program(session)
    values = np.arange(12.0).reshape(4, 3)
    tensor = session.distribute(values, None, "S[0]")
    saved, asked = [], threading.Event()

    def save():
        path = tmp_path / str(len(saved))
        session.save(path, {"x": tensor})
        saved.append(path)

    def act():
        if asked.is_set():
            return  # the program is about to do it
        try:
            save()
        except di.Reentered:
            asked.set()

    with Handling(act, "child", signal.SIGUSR1, 0.01) as handling:
        while len(saved) < 3 or handling.came < 10:
            program.step(Program.BESIDE)
            if asked.is_set():
                save()
                asked.clear()
    for path in saved:
        assert np.array_equal(session.load(path)["x"].numpy(), values)
    afterwards(program)


def test_what_finalizers_wait_for_comes_or_is_refused(session):
    """They get their values, or an error that Python prints; never does anything hang."""
    with watched() as ignored:
        program, inner = Program(session), Program(session, 1)

        def act():
            if inner.number() % 2:
                inner.wait_inside()
            else:
                inner.step(Program.WAITS)

        with Finalizing(act) as finalizing:
            while finalizing.came < MANY:
                program.step(Program.BESIDE)
        assert all(isinstance(error, di.Reentered) for error in ignored)
        afterwards(program)
        afterwards(inner)


@watched()
def test_the_refusal_says_what_to_do(session):
    """A handler that comes while a call is issued is told to set a flag."""
    program, said = Program(session), []

    def act():
        try:
            session.sync_all()
        except di.Reentered as error:
            said.append(str(error))

    with Handling(act):
        while not said:
            program.step(Program.ISSUES)
    assert "set a flag" in said[0]
    assert issubclass(di.Reentered, di.SessionError)
    afterwards(program)


@watched()
def test_a_signal_to_the_process_reaches_a_waiting_program(session, tools, waiter):
    """SIGTERM of another process ends a wait by the exception of its handler, at once."""
    tools.call("wait_on", 0, str(waiter))
    late = tools.call("echo", 5)

    def end(_number, _frame):
        raise SystemExit(143)

    signal.signal(signal.SIGTERM, end)
    timer = threading.Timer(0.2, lambda: os.kill(os.getpid(), signal.SIGTERM))
    timer.start()
    with pytest.raises(SystemExit):
        late.get(0)
    timer.join()
    waiter.touch()
    assert late.get(0) == 5
