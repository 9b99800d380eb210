"""What an interrupt ends, what it leaves as it is, and that the session goes on after it."""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from functools import partial

import numpy as np
import pytest
from interrupting import (
    GRACE_S,
    await_start,
    missing_everywhere,
    pressed,
    started,
    waiting_collectives,
)
from reentry import Raising, in_thread, watched

import disco_client as di

LONG = 600.0
"""Seconds that nobody waits for."""


@pytest.fixture
def session(session):
    """The shared session, of which nothing that it was opened with is to be interrupted."""
    session.sync_all()
    return session


def works(session, tools):
    """All workers execute what comes next, and meet in a collective."""
    array = session.broadcast(np.arange(30_000.0))
    session.allreduce(array, array)
    return all(np.array_equal(got, 2 * np.arange(30_000.0)) for got in tools.fetch(array))


def is_told(session):
    """Whether the calling scope learns of an interrupt, once."""
    with pytest.raises(di.Interrupted):
        session.sync_all()
    session.sync_all()
    return True


def test_what_runs_ends_and_what_waits_is_left_out(session, tools):
    """At once, on all workers; what was issued before and after is executed."""
    before, name = session.broadcast(np.ones(3)), f"left out {time.monotonic_ns()}"
    with watched():
        running = started(session, tools, "interrupt.spin", LONG)
        tools.call("interrupt.count", name)
        total = session.allreduce(before)
        assert session.interrupt(grace=GRACE_S) == ()
        assert is_told(session)
        assert tools.results("interrupt.counted", name) == [0] * len(tools.workers)
        assert missing_everywhere(running, tools)
        assert missing_everywhere(total, tools)
        assert all((got == 1).all() for got in tools.fetch(before))
        assert works(session, tools)


def test_the_error_says_what_was_interrupted_and_where_it_was_issued(session, tools):
    """The function that ran, and the line of the program."""
    with watched():
        running = session.get_global_func("interrupt.spin")(LONG)
        await_start(session, "interrupt.spin")
        session.interrupt(grace=GRACE_S)
        assert is_told(session)
        with pytest.raises(di.Interrupted, match="this command was interrupted") as ended:
            running.get(1)
    assert ended.value.function == "interrupt.spin"
    assert ended.value.issued_at is not None
    assert ended.value.issued_at.filename == __file__


def test_where_nothing_runs_nothing_happens(session, tools):
    """Nobody is told of anything, and what was executed stays."""
    ref = session.broadcast(np.ones(2))
    session.sync_all()
    assert session.interrupt(grace=GRACE_S) == ()
    session.sync_all()
    assert all((got == 1).all() for got in tools.fetch(ref))


def test_every_scope_learns_of_its_own_commands(session, tools):
    """Once each; one whose commands were executed learns of nothing."""
    with watched():
        started(session, tools, "interrupt.spin", LONG)
        with session.scope():
            tools.call("interrupt.count", "a scope's")
            session.interrupt(grace=GRACE_S)
            assert is_told(session)
        with session.scope():
            session.sync_all()
        assert is_told(session)
        assert works(session, tools)


def test_a_thread_that_waits_is_interrupted(session, tools):
    """It gets the error in place of the value, whoever has interrupted the session."""
    with watched():

        def wait():
            ref = tools.call("interrupt.spin", LONG)
            with pytest.raises(di.Interrupted):
                ref.get(1)
            session.sync_all()

        waiting = in_thread(wait)
        await_start(session, "interrupt.spin")
        assert session.interrupt(grace=GRACE_S) == ()
        waiting.join()
        assert works(session, tools)


@pytest.mark.layouts((2, 1), (4, 2))
def test_collectives_end_on_all(session, tools):
    """Where one worker is not there yet, and where it has gone past."""
    for name, args in waiting_collectives(session):
        with watched():
            ref = started(session, tools, name, *args, count=1)
            assert session.interrupt(grace=GRACE_S) == ()
            assert missing_everywhere(ref, tools)
            with contextlib.suppress(di.Interrupted):
                session.sync_all()
            session.sync_all()
            assert works(session, tools)


def test_what_one_worker_has_not_executed_is_missing_on_all(session, tools):
    """Also where it was executed; results of before stay."""
    with watched():
        ref = started(session, tools, "interrupt.spin_on", 1, LONG, count=1)
        after = tools.call("interrupt.add", 1, 2, 0)
        assert session.interrupt(grace=GRACE_S) == ()
        assert is_told(session)
        assert missing_everywhere(ref, tools)
        assert missing_everywhere(after, tools)
        assert works(session, tools)


@pytest.mark.parametrize("first", ["interrupt", "cancel"])
def test_an_interrupt_lets_the_one_before_come_to_its_end(session, tools, eventually, first):
    """What that has ended on one worker stays missing on all, and nobody is told of its end."""

    def is_taken_back(ref):
        try:
            ref.debug_get_from_remote(0)
        except di.Interrupted:
            return True
        return False

    with watched(60):
        untold = session.failures().total
        for _ in range(20):
            ref = tools.call("interrupt.spin_on", 1, LONG)
            assert ref.debug_get_from_remote(0) == 0  # it is over there
            if first == "cancel":
                ref.cancel()
                time.sleep(random.random() * 0.01)  # so that it comes at any moment of it
            else:
                session.interrupt(grace=GRACE_S)
            session.interrupt(grace=GRACE_S)
            with contextlib.suppress(di.Interrupted):
                session.sync_all()
            if first == "cancel":  # of which nobody has waited for the end
                eventually(partial(is_taken_back, ref), what="the result to be taken back")
            assert missing_everywhere(ref, tools)
        assert session.failures().total == untold
        assert works(session, tools)


def test_chosen_workers_alone_end_what_they_execute(session, tools):
    """The others end it by themselves, and leave out what follows."""
    with watched():
        name = f"followed {time.monotonic_ns()}"
        ref = started(session, tools, "interrupt.spin_on", 1, LONG, count=1)
        tools.call("interrupt.count", name)
        assert session.interrupt([1], grace=GRACE_S) == ()
        assert is_told(session)
        assert missing_everywhere(ref, tools)
        slow = started(session, tools, "interrupt.spin", 0.3)
        assert session.interrupt([], grace=GRACE_S) == ()
        assert [slow.debug_get_from_remote(worker) for worker in tools.workers] == [*tools.workers]
        assert works(session, tools)


def test_a_destination_is_missing_until_it_is_overwritten(session, tools):
    """It may be half written; another call that overwrites all of it repairs it."""
    source, out = session.broadcast(np.ones(8)), session.broadcast(np.zeros(8))
    with watched():
        session.sync_all()
        started(session, tools, "interrupt.scale_into", source, out, LONG)
        session.interrupt(grace=GRACE_S)
        assert is_told(session)
        assert missing_everywhere(out, tools)
        tools.call("interrupt.scale_into", source, out, 0)
        assert all((got == 2).all() for got in tools.fetch(out))
        assert all((got == 1).all() for got in tools.fetch(source))


def test_captured_programs_and_chosen_workers_end_too(session, tools):
    """Of a run nothing is left but what it was made of."""
    spin = session.get_global_func("interrupt.spin")
    with session.capture("endless") as program:
        program.output(spin(LONG))
    with watched():
        results = program()
        chosen = spin.on(worker=1)(LONG)
        await_start(session, "endless")
        assert session.interrupt(grace=GRACE_S) == ()
        assert is_told(session)
        assert missing_everywhere(results, tools)
        with pytest.raises(di.Interrupted):
            chosen.get(1)
        assert works(session, tools)


def test_a_function_may_clean_up_or_go_on(session, tools, tmp_path, await_begun):
    """As one may after Ctrl-C; what it returns then counts."""
    with watched():
        before = tools.results("interrupt.counted", "cleaned up")
        tools.call("interrupt.cleans_up", LONG, str(tmp_path / "cleans up"))
        await_begun(tmp_path / "cleans up")
        session.interrupt(grace=GRACE_S)
        assert is_told(session)
        after = tools.results("interrupt.counted", "cleaned up")
        assert after == [number + 1 for number in before]
        caught = tools.call("interrupt.catches", LONG, str(tmp_path / "catches"))
        await_begun(tmp_path / "catches")
        assert session.interrupt(grace=GRACE_S) == ()
        assert [caught.get(worker) for worker in tools.workers] == [
            "CommandInterrupted" for _ in tools.workers
        ]


def test_who_is_inside_a_library_is_named(session, tools):
    """And is interrupted when it returns; the session goes on then."""
    with watched(60):
        ref = started(session, tools, "interrupt.outside", 8_000_000)
        late = session.interrupt(grace=0.05)
        assert late == tuple(tools.workers)
        after = tools.call("interrupt.add", 1, 2, 0)
        assert is_told(session)
        assert tools.fetch(after) == [3] * len(tools.workers)
        assert missing_everywhere(ref, tools)
        assert works(session, tools)


def test_whoever_interrupts_may_be_interrupted(session, tools):
    """At any bytecode, as by Ctrl-C: the interrupt comes to its end, and is told once."""
    with watched(60), Raising("timer", interval=0.001) as raising:
        while raising.caught < 30:
            for _ in range(3):
                tools.call("interrupt.spin", 0.005)
                raising.during(lambda: session.interrupt(grace=GRACE_S))
            with contextlib.suppress(di.Interrupted):
                session.sync_all()
            session.sync_all()
        assert works(session, tools)


def test_ctrl_c_ends_the_wait_and_the_second_time_what_runs(session, tools):
    """Twice within a second; the calling scope knows of it, and is told nothing more."""
    kept = session.broadcast(np.ones(3))
    with watched(60):
        ref = started(session, tools, "interrupt.spin", LONG)
        notes = pressed(session.sync_all)
        assert "ended the wait alone" in notes
        while "was interrupted" not in notes:  # the second time may come later than in a second
            notes = pressed(lambda: ref.debug_get_from_remote(1))
        assert all((got == 1).all() for got in tools.fetch(kept))
        session.sync_all()
        assert missing_everywhere(ref, tools)
        assert works(session, tools)


def test_it_is_awaited_in_a_thread(open_session):
    """In an event loop, which it would stop."""

    async def program():
        async with open_session() as session:
            await session.synced()
            ref = session.get_global_func("interrupt.spin")(LONG)
            waiting = asyncio.create_task(ref.get(1))
            await asyncio.to_thread(await_start, session, "interrupt.spin")
            with pytest.raises(di.WouldBlock):
                session.interrupt(grace=GRACE_S)
            assert await asyncio.to_thread(session.interrupt, grace=GRACE_S) == ()
            with pytest.raises(di.Interrupted):
                await waiting
            with contextlib.suppress(di.Interrupted):
                await session.synced()
            array = session.broadcast(np.ones(2))
            assert (await session.allreduce(array) == 2).all()

    with watched():
        asyncio.run(program())


@pytest.mark.parametrize(
    ("workers", "options"),
    [([7], {}), ([-1], {}), (["one"], {}), (None, {"grace": -1}), (None, {"grace": "long"})],
    ids=["beyond", "negative", "a text", "a grace before", "no number"],
)
def test_wrong_arguments_are_refused(session, workers, options):
    """Before anything is interrupted."""
    with pytest.raises((di.ConfigError, TypeError)):
        session.interrupt(workers, **options)


def test_a_closed_session_is_not_interrupted(open_session):
    """It says that it is closed."""
    session = open_session()
    session.shutdown()
    with pytest.raises(di.SessionClosed):
        session.interrupt(grace=GRACE_S)


def test_force_ends_the_process_of_who_is_late(workers_of_their_own, open_session):
    """As if it were lost, which is the end of a session that does not recover."""
    session = open_session()
    with watched(60):
        session.get_global_func("interrupt.outside")(400_000_000)
        await_start(session, "interrupt.outside")
        with pytest.raises(di.WorkerLost, match="did not react to an interrupt"):
            session.interrupt(grace=0.3, force=True)


@pytest.fixture
def workers_of_their_own():
    """Only for kinds whose workers are processes."""


MOMENTS = 10

KINDS = ("upload", "large", "compute", "user", "on", "sum", "run", "into", "free")


@pytest.mark.parametrize("seed", range(3))
def test_whatever_is_interrupted_whenever_the_session_computes_right(session, tools, seed):
    """A result is right on all workers or missing on all, and what follows is right."""
    chance = random.Random(seed)
    with watched(120):
        for _ in range(MOMENTS):
            program = Program(session, chance)
            interrupting = in_thread(partial(interrupt_after, session, chance.random() * 0.03))
            for _ in range(chance.randrange(1, 40)):
                program.step()
            interrupting.join()
            program.check(tools)
            assert works(session, tools)


def interrupt_after(session, seconds):
    time.sleep(seconds)
    assert session.interrupt(grace=GRACE_S) == ()


class Program:
    """Random commands, and what each is to give."""

    def __init__(self, session, chance):
        self.session, self.chance = session, chance
        self.results = []
        self.add = session.get_global_func("interrupt.add")
        self.double = session.get_global_func("interrupt.scale_into")
        with session.capture() as self.captured:
            taken = self.captured.input("taken")
            self.captured.output(self.add(self.add(taken, 1, 0), 1, 0.001))

    def step(self):
        """Issues one more command."""
        chance = self.chance
        kind = chance.choice(KINDS)
        if kind in ("upload", "large") or not self.results:
            size = 30_000 if kind == "large" else 7
            value = np.full(size, chance.randrange(100), float)
            self.keep(self.session.broadcast(value), [value] * self.session.num_workers)
            return
        ref, values = chance.choice(self.results)
        if kind == "compute":
            self.keep(self.add(ref, 1, 0), [value + 1 for value in values])
        elif kind == "user":
            self.keep(self.add(ref, 2, chance.random() * 0.01), [value + 2 for value in values])
        elif kind == "on":
            one = [None] * len(values)
            one[-1] = values[-1] + 3
            self.add.on(worker=len(values) - 1)(ref, 3, 0)
        elif kind == "sum":
            out = self.session.allreduce(ref)
            self.keep(out, [sum(values)] * len(values))
        elif kind == "run":
            self.keep(self.captured(ref), [value + 2 for value in values])
        elif kind == "into":
            out = self.add(ref, 0, 0)
            self.double(ref, out, 0.001)
            self.keep(out, [2 * value for value in values])
        elif kind == "free":
            self.results.remove(chance.choice(self.results))

    def keep(self, ref, values):
        self.results.append((ref, values))

    def check(self, tools):
        """Makes sure that each result is right everywhere or missing everywhere."""
        with contextlib.suppress(di.Interrupted):
            self.session.sync_all()
        self.session.sync_all()
        for ref, values in self.results:
            missing = []
            for worker in tools.workers:
                try:
                    got = ref.debug_get_from_remote(worker)
                except di.Interrupted:
                    missing.append(worker)
                else:
                    np.testing.assert_array_equal(got, values[worker])
            assert missing in ([], [*tools.workers])
