"""Interrupts, cancels and limits where workers are lost before, meanwhile or afterwards."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import threading
import time

import numpy as np
import pytest
from interrupting import GRACE_S, await_start
from reentry import in_thread, watched

from disco_client import errors

FUNCTIONS = "disco_interrupt_functions"


@pytest.fixture
def session(open_session):
    """A session of two workers that recovers."""
    session = open_session(2, recover="replay", logs=False)
    session.import_python_module(FUNCTIONS)
    session.sync_all()
    return session


@pytest.fixture
def call(session):
    """Calls a function by its name."""

    def by_name(name, *args):
        return session.get_global_func(f"interrupt.{name}")(*args)

    return by_name


def holds(ref, session):
    """What each worker has, or that it was interrupted, or is stale."""
    found = []
    for worker in range(session.num_workers):
        try:
            got = ref.debug_get_from_remote(worker)
        except (errors.Interrupted, errors.StaleReference) as error:
            found.append(type(error).__name__)
        else:
            found.append(got.tolist() if isinstance(got, np.ndarray) else got)
    return found


def interrupt(session, name):
    """Interrupts a function, which the caller has called; it learns of it here."""
    await_start(session, f"interrupt.{name}")
    assert session.interrupt(grace=GRACE_S) == ()
    with pytest.raises(errors.Interrupted):
        session.sync_all()


def test_a_replay_leaves_out_what_was_interrupted(session, call, lose):
    """And does what was done; arguments that may have changed meanwhile are stale."""
    with watched(60):
        array, other = session.broadcast(np.ones(2)), session.broadcast(np.ones(2))
        made = call("add", other, 1, 0)
        ran = call("spin", 600, array)
        waited = call("add", other, 2, 0)
        interrupt(session, "spin")
        after = call("add", other, 3, 0)
        before = [holds(ref, session) for ref in (array, other, made, ran, waited, after)]
        assert before[3:5] == [["Interrupted"] * 2] * 2
        lose(session)
        again = [holds(ref, session) for ref in (array, other, made, ran, waited, after)]
        assert again[0] == ["StaleReference"] * 2
        assert again[1:] == before[1:]
        session.sync_all()
        assert len(session.recoveries) == 1


def test_what_is_interrupted_is_not_begun_again_by_other_workers(session, call, lose):
    """A worker dies in the middle of an interrupt, of which nobody knows how far it had come."""
    with watched(60):
        array = session.broadcast(np.ones(2))
        session.sync_all()
        ran = call("outside", 400_000_000)
        waited = call("spin", 600)
        await_start(session, "interrupt.outside")
        late = session.interrupt(grace=0)
        assert late
        os.kill(session.workers[1].pid, signal.SIGKILL)
        with pytest.raises(errors.Interrupted):
            session.sync_all()
        assert holds(ran, session) == holds(waited, session) == ["Interrupted"] * 2
        assert holds(session.allreduce(array), session) == [[2.0, 2.0]] * 2
        assert len(session.recoveries) == 1


def test_force_goes_on_with_other_workers(session, call):
    """Who stays in a library is lost, and others do what was done."""
    with watched(60):
        array = session.broadcast(np.ones(2))
        session.sync_all()
        ran = call("outside", 400_000_000)
        await_start(session, "interrupt.outside")
        assert session.interrupt(grace=0.2, force=True) == ()
        with pytest.raises(errors.Interrupted):
            session.sync_all()
        assert holds(ran, session) == ["Interrupted"] * 2
        assert holds(session.allreduce(array), session) == [[2.0, 2.0]] * 2
        (recovery,) = session.recoveries
        assert "did not react to an interrupt" in str(recovery.lost)


def test_an_interrupt_during_a_replay_ends_what_is_new(session, call, lose):
    """What other workers do again is not what the program wants to end."""
    with watched(60):
        array = session.broadcast(np.ones(2))
        slow = call("add", array, 1, 0.5)
        session.sync_all()
        lose(session)
        ran = call("spin", 600)
        while session.interrupt(grace=GRACE_S):
            pass
        with contextlib.suppress(errors.Interrupted):
            session.sync_all()
        assert holds(ran, session) == ["Interrupted"] * 2
        assert holds(slow, session) == [[2.0, 2.0]] * 2


def test_a_checkpoint_after_an_interrupt_has_what_there_is(session, call, lose, tmp_path):
    """Nothing of before is stale any more, and what is missing stays missing."""
    with watched(60):
        array = session.broadcast(np.ones(2))
        ran = call("spin", 600, array)
        interrupt(session, "spin")
        session.checkpoint(tmp_path)
        lose(session)
        assert holds(array, session) == [[1.0, 1.0]] * 2
        assert holds(ran, session) == ["Interrupted"] * 2


@pytest.mark.parametrize("seed", range(4))
def test_what_is_right_before_a_loss_is_right_after_it(session, call, lose, seed):
    """At random moments: other workers hold what those before held, or what is stale."""
    chance = random.Random(seed)
    with watched(120):
        base = session.broadcast(np.ones(3))
        for _ in range(4):
            made = [base]
            interrupting = in_thread(lambda: interrupt_after(session, chance.random() * 0.02))
            for _ in range(chance.randrange(1, 20)):
                source = chance.choice(made)
                kind = chance.randrange(3)
                if kind == 0:
                    made.append(call("add", source, 1, chance.random() * 0.005))
                elif kind == 1:
                    made.append(session.allreduce(source))
                else:
                    made.append(session.broadcast(np.full(20_000, 3.0)))
            interrupting.join()
            with contextlib.suppress(errors.Interrupted):
                session.sync_all()
            before = [holds(ref, session) for ref in made]
            assert all("Interrupted" not in each or each == ["Interrupted"] * 2 for each in before)
            lose(session)
            after = [holds(ref, session) for ref in made]
            for then, now in zip(before, after, strict=True):
                assert now in (then, ["StaleReference"] * 2)
            if after[0] != before[0]:
                base = session.broadcast(np.ones(3))
        assert threading.active_count() < 100


def interrupt_after(session, seconds):
    time.sleep(seconds)
    assert session.interrupt(grace=GRACE_S) == ()


# What is cancelled, or takes too long -------------------------------------------------------


@pytest.fixture
def settled(session, eventually):
    """Says what `holds` does, once it is known which workers had executed what was cancelled."""

    def of(ref):
        found = []

        def is_same():
            found[:] = holds(ref, session)
            return found.count("Interrupted") in (0, len(found))

        eventually(is_same, what="the workers to agree")
        return found

    return of


def test_a_replay_leaves_out_what_was_cancelled(session, call, lose, settled):
    """And nothing else; arguments that may have changed meanwhile are stale."""
    with watched(60):
        array, other = session.broadcast(np.ones(2)), session.broadcast(np.ones(2))
        with session.scope() as block:
            ran, waited = call("spin", 600, array), call("add", other, 1, 0)
        beside = call("add", other, 2, 0)
        await_start(session, "interrupt.spin")
        block.cancel()
        before = [settled(ref) for ref in (other, ran, waited, beside)]
        assert before[1:] == [["Interrupted"] * 2, ["Interrupted"] * 2, [[3.0, 3.0]] * 2]
        lose(session)
        assert settled(array) == ["StaleReference"] * 2
        assert [settled(ref) for ref in (other, ran, waited, beside)] == before
        session.sync_all()
        assert len(session.recoveries) == 1


def test_what_is_cancelled_is_not_begun_again(session, call, settled):
    """A worker dies before it is known what was executed; what others have issued is done."""
    with watched(60):
        array = session.broadcast(np.ones(2))
        session.sync_all()
        with session.scope() as block:
            ran, waited = call("outside", 400_000_000), call("spin", 600)
        beside = session.allreduce(array)
        await_start(session, "interrupt.outside")
        block.cancel()
        os.kill(session.workers[1].pid, signal.SIGKILL)
        assert settled(beside) == [[2.0, 2.0]] * 2
        assert settled(ran) == settled(waited) == ["Interrupted"] * 2
        session.sync_all()
        assert len(session.recoveries) == 1


def test_what_took_too_long_is_not_done_again(session, call, lose, settled):
    """Other workers might be faster; what has followed stays as it was."""
    with watched(60):
        with session.limit(0.1):
            ran = call("spin", 600)
        beside, reads = call("add", 1, 1, 0), call("add", ran, 1, 0)
        with pytest.raises(errors.TimeLimit):
            session.sync_all()
        lose(session)
        assert settled(beside) == [2, 2]
        assert settled(ran) == settled(reads) == ["Interrupted"] * 2


def nothing(_session, _call, _endless):
    """Nothing is issued behind an endless command."""


def a_question_given_up(_session, call, endless):
    """Its result is asked for, and that of what is behind it, and neither is waited for."""
    for ref in (endless, call("add", 1, 1, 0)):
        with pytest.raises(errors.DiscoTimeout):
            ref.get(timeout=0.05)


def a_wait_given_up(session, _call, _endless):
    """All workers are waited for, and that is given up."""
    with pytest.raises(errors.DiscoTimeout):
        session.sync_all(timeout=0.05)


def await_others(session, former):
    """Returns when other workers have taken the place of some, though they are not as far."""
    deadline = time.monotonic() + 40
    while {each.pid for each in session.workers} & {each.pid for each in former}:
        assert time.monotonic() < deadline, "no other workers have come"


@pytest.mark.parametrize("how", ["interrupt", "cancel"])
@pytest.mark.parametrize("follow", [nothing, a_question_given_up, a_wait_given_up])
def test_what_is_repeated_and_never_ends_is_interrupted(session, call, settled, how, follow):
    """Where nobody had executed it before; what had been executed is there."""
    with watched(60):
        # Without a question, so that workers acknowledge them together with others.
        before = [call("add", 1, 1, 0) for _ in range(1500)][-1]
        endless = call("spin", 600)
        follow(session, call, endless)
        await_start(session, "interrupt.spin")
        former = session.workers
        os.kill(former[1].pid, signal.SIGKILL)
        await_others(session, former)
        await_start(session, "interrupt.spin")
        end(session, endless, how)
        assert settled(endless) == ["Interrupted"] * 2
        assert settled(before) == [2, 2]
        session.sync_all()


def end(session, endless, how):
    """Ends an endless command."""
    if how == "cancel":
        endless.cancel()
    else:
        assert session.interrupt(grace=GRACE_S) == ()
        with pytest.raises(errors.Interrupted):
            session.sync_all()


@pytest.mark.parametrize("how", ["interrupt", "cancel"])
@pytest.mark.parametrize("seed", range(4))
def test_what_never_ends_is_ended_while_workers_are_replaced(session, call, settled, how, seed):
    """At any moment around a loss, and although the program has given up waiting for it."""
    chance = random.Random(seed)
    with watched(60):
        before = call("add", 1, 1, 0)
        session.sync_all()
        endless = call("spin", 600)
        a_question_given_up(session, call, endless)
        await_start(session, "interrupt.spin")
        os.kill(session.workers[1].pid, signal.SIGKILL)
        time.sleep(chance.random() * 2)  # a random moment of the recovery
        end(session, endless, how)
        assert settled(endless) == ["Interrupted"] * 2
        assert settled(before) == [2, 2]
        session.sync_all()


def test_what_has_kept_its_limit_has_none_when_it_is_repeated(
    session, call, lose, settled, tmp_path
):
    """Other workers may be slower, and the program has seen the result."""
    with watched(60):
        with session.limit(2):
            ran = call("slow_again", str(tmp_path / "called"), 4)
        session.sync_all()
        lose(session)
        assert settled(ran) == [0, 1]
        session.sync_all()


@pytest.mark.parametrize("seed", range(4))
def test_cancels_at_any_moment_leave_what_is_right_after_a_loss(session, call, lose, settled, seed):
    """Other workers hold what those before held; what was not cancelled is right."""
    chance = random.Random(seed)
    with watched(120):
        for _ in range(3):
            kept, given_up = [session.broadcast(np.ones(3))], []
            for _ in range(chance.randrange(1, 20)):
                source = chance.choice(kept)
                with session.scope() as block:
                    given_up.append(call("add", source, 1, chance.random() * 0.005))
                    given_up.append(session.allreduce(given_up[-1]))
                kept.append(session.allreduce(source))
                if chance.random() < 0.5:
                    block.cancel()
            before = [settled(ref) for ref in (*kept, *given_up)]
            assert all("Interrupted" not in each for each in before[: len(kept)])
            lose(session)
            after = [settled(ref) for ref in (*kept, *given_up)]
            for then, now in zip(before, after, strict=True):
                assert now in (then, ["StaleReference"] * 2)
