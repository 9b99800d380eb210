"""What takes longer than its limit ends as a failure, and the session goes on."""

from __future__ import annotations

import asyncio
import contextlib
import threading

import numpy as np
import pytest
from interrupting import waiting_collectives
from reentry import in_thread, watched

import disco_client as di

LONG = 600.0
"""Seconds that nobody waits for."""

SHORT = 0.2


def goes_on(session, tools):
    """All workers execute what comes next, and meet in a collective."""
    with contextlib.suppress(di.RemoteError):  # if nothing has read it
        session.sync_all()
    total = session.allreduce(session.broadcast(np.ones(3)), in_group=False)
    return all((got == len(tools.workers)).all() for got in tools.fetch(total))


def test_a_function_that_takes_too_long_ends(session, tools):
    """Its value is the error, which says where it was on the worker, and which line called it."""
    with watched():
        with session.limit(SHORT):
            running = session.get_global_func("interrupt.spin")(LONG)
        after = tools.call("interrupt.add", 1, 1, 0)
        with pytest.raises(di.TimeLimit, match=r"limit of 0\.2 s") as ended:
            running.get()
        assert ended.value.function == "interrupt.spin"
        assert ended.value.worker == 0
        assert ended.value.issued_at.filename == __file__
        assert "in spin\n" in ended.value.remote_traceback
        assert "rank/signals.py" not in ended.value.remote_traceback
        assert isinstance(ended.value, di.Interrupted)
        assert tools.fetch(after) == [2] * len(tools.workers)
        assert goes_on(session, tools)


@pytest.mark.layouts((2, 1), (4, 2))
def test_a_collective_that_waits_too_long_ends_on_all(session, tools):
    """Where one worker comes late, where it never comes, and where all wait for each other."""
    for name, args in waiting_collectives(session):
        with watched():
            with session.limit(SHORT):
                ref = tools.call(name, *args)
            ended = []
            for worker in tools.workers:
                try:
                    ref.debug_get_from_remote(worker)
                except (di.TimeLimit, di.CollectiveAborted) as error:
                    ended.append(type(error))
            # That one worker has gone past is known before the limit passes.
            assert ended
            assert di.TimeLimit in ended or name == "interrupt.waits_for_nobody"
            assert goes_on(session, tools)


def test_what_is_done_in_time_is_not_touched(session, tools):
    """Of whatever kind it is."""
    with watched(), session.limit(LONG):
        array = session.broadcast(np.ones(40_000))
        total = session.allreduce(array, in_group=False)
        numbers = [tools.call("interrupt.add", number, 1, 0) for number in range(50)]
        for got in tools.fetch(total):
            assert (got == len(tools.workers)).all()
        assert [ref.get(1) for ref in numbers] == [number + 1 for number in range(50)]


def test_the_wait_before_a_command_does_not_count(session, tools):
    """It is the worker's time from when it begins."""
    with watched():
        tools.call("interrupt.spin", 2.0)
        with session.limit(1.5):
            behind = tools.call("interrupt.add", 1, 1, 0)
        assert tools.fetch(behind) == [2] * len(tools.workers)


def test_a_function_has_a_limit_of_its_own(session, tools):
    """Also on chosen workers, with keywords, and within a block, where the shortest counts."""
    spin, add = session.get_global_func("interrupt.spin"), session.get_global_func("interrupt.add")
    with watched():
        assert add.limit(LONG)(1, number=2, seconds=0).get() == 3
        assert add.limit(LONG).on(worker=1)(1, 1, 0).get(1) == 2
        assert add.on(worker=1).limit(LONG)(1, 1, 0).get(1) == 2
        with session.limit(LONG), pytest.raises(di.TimeLimit):
            spin.limit(SHORT).on(worker=1)(LONG).get(1)
        with session.limit(SHORT), session.limit(LONG), pytest.raises(di.TimeLimit):
            spin(LONG).get()
        assert goes_on(session, tools)


def test_a_run_of_a_program_is_one_command(session, tools):
    """Its steps have no limits of their own."""
    spin = session.get_global_func("interrupt.spin")
    with session.capture("in steps") as program:
        with pytest.raises(di.CaptureError, match="no limits of their own"):
            session.limit(1)
        with pytest.raises(di.CaptureError, match="no limits of their own"):
            session.get_global_func("interrupt.spin").limit(1)
        program.output(spin(LONG))
    with watched():
        with session.limit(SHORT):
            ref = program()
        with pytest.raises(di.TimeLimit, match="in steps"):
            ref.get()
        assert goes_on(session, tools)


def test_a_limit_is_of_its_block_and_of_the_tasks_begun_there(open_session):
    """Other threads and tasks, and what is issued after its end, have none."""

    async def spin(session, seconds):
        return await session.get_global_func("interrupt.spin")(seconds)

    async def program():
        async with open_session() as session:
            await session.synced()
            beside = asyncio.create_task(spin(session, 2 * SHORT))
            with session.limit(SHORT):
                limited = asyncio.create_task(spin(session, LONG))
                with pytest.raises(di.TimeLimit):
                    await limited
                outside = in_thread(lambda: session.get_global_func("interrupt.spin")(2 * SHORT))
                outside.join()
            assert await beside == 0
            assert await spin(session, 2 * SHORT) == 0
            await session.synced()

    with watched():
        asyncio.run(program())


def test_a_function_that_goes_on_is_ended_again(session, tools):
    """What it returns in spite of that does not count, but for a value before the limit."""
    with watched():
        with session.limit(SHORT):
            ref = tools.call("interrupt.catches", LONG)
        assert ref.get() == "CommandInterrupted"
        before = tools.results("interrupt.counted", "cleaned up")
        with session.limit(SHORT):
            tools.call("interrupt.cleans_up", LONG)
        assert goes_on(session, tools)
        after = tools.results("interrupt.counted", "cleaned up")
        assert after == [number + 1 for number in before]


@pytest.mark.parametrize(
    "seconds", [0, -1, float("inf"), float("nan"), "long", None, True, np.ones(2)], ids=repr
)
def test_what_is_no_limit_is_refused(session, seconds):
    """By the block and by the function."""
    with pytest.raises(di.ConfigError, match="more than 0 seconds"):
        session.limit(seconds)
    with pytest.raises(di.ConfigError, match="more than 0 seconds"):
        session.get_global_func("interrupt.spin").limit(seconds)


def test_a_limit_that_passes_at_any_moment_harms_nothing_else(session, tools):
    """Commands that take about as long as they may: each is right or has failed."""
    add = session.get_global_func("interrupt.add")
    with watched(120):
        ended = 0
        for number in range(150):
            with session.limit(0.004):
                ref = add(number, 1, number % 8 / 1000)
            plain = add(number, 2, 0)
            for worker in tools.workers:
                try:
                    assert ref.debug_get_from_remote(worker) == number + 1
                except di.TimeLimit:
                    ended += 1
            with contextlib.suppress(di.TimeLimit):  # of a worker that was later than its answer
                session.sync_all()
            assert tools.fetch(plain) == [number + 2] * len(tools.workers)
        assert ended
        assert goes_on(session, tools)


def test_threads_that_watch_end(open_session, eventually):
    """A session that is over leaves none behind, and none is there where nothing is limited."""
    session = open_session()
    with watched(60):
        with session.limit(LONG):
            session.get_global_func("interrupt.add")(1, 1, 0).get()
        session.shutdown()
        eventually(
            lambda: all(each.name != "disco-limits" for each in threading.enumerate()),
            what="the threads that watch to end",
        )
