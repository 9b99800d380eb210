"""What is cancelled ends or is left out, and nothing else: whoever shares the session goes on."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import random
import time
from functools import partial

import numpy as np
import pytest
from interrupting import await_start, missing_everywhere, started
from reentry import in_thread, watched

import disco_client as di

LONG = 600.0
"""Seconds that nobody waits for."""

LIMIT_S = 30.0


@pytest.fixture
def session(session):
    """The shared session, whose functions are there."""
    session.sync_all()
    return session


@pytest.fixture
def often_collected():
    """The garbage collector runs after every few objects, and so in the middle of calls."""
    before = gc.get_threshold()
    gc.set_threshold(7)
    yield
    gc.set_threshold(*before)


def counted(tools, name):
    """How often each worker has counted under a name."""
    return tools.results("interrupt.counted", name)


def fresh(what):
    """A name that no other test counts under."""
    return f"{what} {time.monotonic_ns()}"


def test_a_command_that_runs_ends_and_all_others_are_executed(session, tools):
    """Those that read its result fail; the scope that has cancelled it is not told."""
    name, untold = fresh("beside"), session.failures().total
    with watched():
        running = started(session, tools, "interrupt.spin", LONG)
        reads = tools.call("interrupt.add", running, 1, 0)
        tools.call("interrupt.count", name)
        running.cancel()
        assert counted(tools, name) == [1] * len(tools.workers)
        assert missing_everywhere(running, tools)
        assert missing_everywhere(reads, tools)
        session.sync_all()
    assert session.failures().total == untold


def test_a_command_that_waits_is_left_out(session, tools):
    """The one that runs goes on, until it is cancelled as well."""
    name = fresh("waits")
    with watched():
        running = started(session, tools, "interrupt.spin", LONG)
        waits = tools.call("interrupt.count", name)
        waits.cancel()
        with pytest.raises(di.DiscoTimeout):
            running.get(timeout=0.1)
        running.cancel()
        assert missing_everywhere(running, tools)
        assert missing_everywhere(waits, tools)
        assert counted(tools, name) == [0] * len(tools.workers)


def test_what_was_executed_stays(session, tools):
    """Cancelling comes too late then."""
    ref = session.broadcast(np.ones(2))
    session.sync_all()
    ref.cancel()
    assert all((got == 1).all() for got in tools.fetch(ref))


@pytest.mark.layouts((2, 1), (4, 2))
def test_a_collective_ends_on_all(session, tools):
    """Also where one worker is not there yet."""
    array = session.broadcast(np.ones(3))
    with watched():
        ref = started(session, tools, "interrupt.meet_late", 1, LONG, count=1)
        ref.cancel()
        assert all(
            (got == session.num_workers).all()
            for got in tools.fetch(session.allreduce(array, in_group=False))
        )
        assert found(ref, tools) == [None] * session.num_workers
        session.sync_all()


def test_a_block_that_an_exception_leaves_cancels_what_it_has_issued(session, tools):
    """And nothing of others, whether that was issued before, meanwhile or afterwards."""
    mine, others = fresh("mine"), fresh("others")
    with watched():
        with contextlib.suppress(di.DiscoTimeout), session.scope(cancel=True):
            tools.call("interrupt.spin", LONG)
            tools.call("interrupt.count", mine)
            in_thread(partial(tools.call, "interrupt.count", others)).join()
            total = session.allreduce(session.broadcast(np.ones(2)))
            total.get(timeout=0.05)
        tools.call("interrupt.count", others)
        assert counted(tools, others) == [2] * len(tools.workers)
        assert counted(tools, mine) == [0] * len(tools.workers)
        assert missing_everywhere(total, tools)
        session.sync_all()


def test_a_block_that_ends_well_cancels_nothing(session, tools):
    """What it has issued is executed after its end; so is that of a block without ``cancel``."""
    name = fresh("ends")
    with watched():
        with session.scope(cancel=True):
            tools.call("interrupt.spin", 0.1)
            tools.call("interrupt.count", name)
        with contextlib.suppress(ZeroDivisionError), session.scope():
            tools.call("interrupt.count", name)
            _ = 1 / 0
        assert counted(tools, name) == [2] * len(tools.workers)


def test_a_block_can_be_cancelled_from_outside(session, tools):
    """By another thread, which has it; what is issued in it afterwards is executed."""
    name = fresh("outside")
    with watched(), session.scope() as block:
        running = started(session, tools, "interrupt.spin", LONG)
        in_thread(block.cancel).join()
        tools.call("interrupt.count", name)
        assert counted(tools, name) == [1] * len(tools.workers)
        assert missing_everywhere(running, tools)


def test_a_future_cancels_what_it_asks_for(session, tools):
    """Nobody gets its value any more, and the workers go on."""
    with watched():
        future = started(session, tools, "interrupt.spin", LONG).future()
        assert future.cancel()
        assert future.cancelled()
        assert tools.fetch(tools.call("interrupt.add", 1, 1, 0)) == [2] * len(tools.workers)
        done = tools.call("interrupt.add", 1, 1, 0).future()
        assert done.result() == 2
        assert not done.cancel()


def test_a_run_of_a_program_is_given_up_by_one_of_its_outputs(session, tools):
    """It ends as a whole, and what is done stays; another run is executed."""
    spin, add = session.get_global_func("interrupt.spin"), session.get_global_func("interrupt.add")
    with session.capture("two outputs") as program:
        seconds = program.input("seconds")
        program.output(add(1, 1, 0), spin(seconds))
        with pytest.raises(di.CaptureError, match="nothing runs"):
            spin(0).cancel()
    with watched():
        first, second = program(LONG)
        other, _ = program(0)
        await_start(session, "two outputs")
        first.cancel()
        assert tools.fetch(other) == [2] * len(tools.workers)
        assert tools.fetch(first) == [2] * len(tools.workers)
        assert missing_everywhere(second, tools)


def test_a_function_on_chosen_workers_is_cancelled_there(session, tools):
    """The others have had nothing to do with it."""
    with watched():
        ref = session.get_global_func("interrupt.spin").on(worker=1)(LONG)
        ref.cancel()
        assert tools.fetch(tools.call("interrupt.add", 1, 1, 0)) == [2] * len(tools.workers)
        with pytest.raises(di.Interrupted):
            ref.get(1)


def test_an_object_keeps_its_own_cancel(session):
    """A reference to an object looks the name up there, as every other one of the object's."""
    order = session.create("interrupt.Order")
    assert order.cancel("too late").get(1) == "cancelled: too late"


def test_what_waits_for_room_goes_on(session, tools, eventually):
    """Where as many commands are under way as may be, behind one that does not end."""
    with watched():
        running = started(session, tools, "interrupt.spin", LONG)
        count = session.get_global_func("interrupt.add")

        def fill():
            for _ in range(70_000):
                last = count(1, 1, 0)
            return last

        def is_full():
            now = session.statistics()
            return now["issued"] - now["acked"] >= 65_000

        filling = in_thread(fill)
        eventually(is_full, what="the session to be full")
        running.cancel()
        filling.join()
        assert missing_everywhere(running, tools)


def test_a_task_that_times_out_leaves_nothing_to_wait_for(open_session):
    """The tasks beside it get what they asked for."""

    async def request(session, number, seconds):
        with session.scope(cancel=True):
            await session.ready()
            return await session.get_global_func("interrupt.add")(number, 1, seconds)

    async def program():
        async with open_session() as session:
            await session.synced()
            slow = asyncio.create_task(request(session, 1, LONG))
            good = [asyncio.create_task(request(session, number, 0)) for number in range(20)]
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(slow, 0.2)
            assert await asyncio.gather(*good) == [number + 1 for number in range(20)]
            await session.synced()

    with watched():
        asyncio.run(program())


def test_a_cancel_out_of_a_finalizer_reaches_the_workers(session, tools, often_collected):
    """It may come wherever the program is, also in the middle of another command."""

    class Owner:
        """Gives up what it was made for when the garbage collector finds it."""

        def __init__(self, ref):
            self.cancel, self.itself = ref.cancel, self

        def __del__(self):
            self.cancel()

    refs = []  # outside of the cycles, so that none ends before its owner
    with watched():
        for _ in range(6):
            refs.append(tools.call("interrupt.spin", LONG))
            Owner(refs[-1])
            for number in range(20):  # in one of these calls, mostly
                session.broadcast([number])
            gc.collect()
            assert tools.fetch(tools.call("interrupt.add", 1, 1, 0)) == [2] * len(tools.workers)


@pytest.mark.parametrize("seed", range(2))
def test_whatever_is_cancelled_whenever_all_else_is_right(session, tools, seed):
    """What was not cancelled is right; what was is right on all workers, or missing on all."""
    chance, untold = random.Random(seed), session.failures().total
    add = session.get_global_func("interrupt.add")
    with watched(120):
        for _ in range(8):
            kept, given_up, blocks = [], [], []
            for _ in range(chance.randrange(1, 60)):
                number, what = chance.randrange(100), chance.random()
                if what < 0.2:
                    kept.append((session.broadcast(np.full(7, number)), number))
                elif what < 0.4 and kept:
                    ref, value = chance.choice(kept)
                    kept.append((session.allreduce(ref), value * session.num_workers))
                elif what < 0.6:
                    ref = session.broadcast(np.full(7, number))
                    kept.append((add(ref, 1, chance.random() * 0.002), number + 1))
                elif what < 0.8:
                    with session.scope() as block:
                        ref = session.broadcast(np.full(7, number))
                        given_up.append((ref, number))
                        given_up.append((session.allreduce(ref), number * session.num_workers))
                        given_up.append((add(ref, 1, chance.random() * 0.01), number + 1))
                    blocks.append(block)
                elif blocks:
                    chance.choice(blocks).cancel()
                    chance.choice(given_up)[0].cancel()
            for ref, value in kept:
                assert all((got == value).all() for got in tools.fetch(ref))
            session.sync_all()
            for ref, value in given_up:
                assert all(got is None or (got == value).all() for got in found(ref, tools))
    assert session.failures().total == untold


def found(ref, tools):
    """What workers have of a result, once it is there on all of them or, as None, on none."""
    limit = time.monotonic() + LIMIT_S
    while True:
        results = []
        for worker in tools.workers:
            try:
                results.append(ref.debug_get_from_remote(worker))
            except di.Interrupted:
                results.append(None)
        missing = [result is None for result in results]
        if all(missing) or not any(missing):
            return results
        assert time.monotonic() < limit, results
