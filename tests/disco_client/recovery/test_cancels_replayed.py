"""What was cancelled, or took too long, stays so where workers are lost, then or later."""

from __future__ import annotations

import os
import random
import signal
import time

import numpy as np
import pytest
from interrupting import await_start
from reentry import watched

from disco_client import errors

LIMIT_S = 30.0


@pytest.fixture
def session(open_session):
    """A session of two workers that recovers."""
    session = open_session(2, recover="replay", logs=False)
    session.import_python_module("disco_interrupt_functions")
    session.sync_all()
    return session


@pytest.fixture
def call(session):
    """Calls a function by its name."""

    def by_name(name, *args):
        return session.get_global_func(f"interrupt.{name}")(*args)

    return by_name


def holds(ref, session):
    """What each worker has, or what is raised, once it is missing on all or on none."""
    limit = time.monotonic() + LIMIT_S
    while True:
        found = []
        for worker in range(session.num_workers):
            try:
                got = ref.debug_get_from_remote(worker)
            except (errors.Interrupted, errors.StaleReference) as error:
                found.append(type(error).__name__)
            else:
                found.append(np.asarray(got).tolist())
        if found.count("Interrupted") in (0, len(found)):
            return found
        assert time.monotonic() < limit, found


def test_a_replay_leaves_out_what_was_cancelled(session, call, lose):
    """And nothing else; arguments that may have changed meanwhile are stale."""
    with watched(60):
        array, other = session.broadcast(np.ones(2)), session.broadcast(np.ones(2))
        with session.scope() as block:
            ran, waited = call("spin", 600, array), call("add", other, 1, 0)
        beside = call("add", other, 2, 0)
        await_start(session, "interrupt.spin")
        block.cancel()
        before = [holds(ref, session) for ref in (other, ran, waited, beside)]
        assert before[1:] == [["Interrupted"] * 2, ["Interrupted"] * 2, [[3.0, 3.0]] * 2]
        lose(session)
        assert holds(array, session) == ["StaleReference"] * 2
        assert [holds(ref, session) for ref in (other, ran, waited, beside)] == before
        session.sync_all()
        assert len(session.recoveries) == 1


def test_what_is_cancelled_is_not_begun_again_by_other_workers(session, call):
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
        assert holds(beside, session) == [[2.0, 2.0]] * 2
        assert holds(ran, session) == holds(waited, session) == ["Interrupted"] * 2
        session.sync_all()
        assert len(session.recoveries) == 1


def test_what_took_too_long_is_not_done_again(session, call, lose):
    """Other workers might be faster; what has followed stays as it was."""
    with watched(60):
        with session.limit(0.1):
            ran = call("spin", 600)
        beside, reads = call("add", 1, 1, 0), call("add", ran, 1, 0)
        with pytest.raises(errors.TimeLimit):
            session.sync_all()
        lose(session)
        assert holds(beside, session) == [2, 2]
        assert holds(ran, session) == holds(reads, session) == ["Interrupted"] * 2


@pytest.mark.parametrize("seed", range(4))
def test_what_is_right_before_a_loss_is_right_after_it(session, call, lose, seed):
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
            before = [holds(ref, session) for ref in (*kept, *given_up)]
            assert all("Interrupted" not in each for each in before[: len(kept)])
            lose(session)
            after = [holds(ref, session) for ref in (*kept, *given_up)]
            for then, now in zip(before, after, strict=True):
                assert now in (then, ["StaleReference"] * 2)
