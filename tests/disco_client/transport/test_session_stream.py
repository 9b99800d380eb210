"""A session goes on over another stream: nothing is lost, nothing is executed twice."""

from __future__ import annotations

import contextlib
import logging
import threading

import numpy as np
import pytest

from disco_client import connect, errors
from fault_tools.streams import injected

COUNT = "tests.count"
FUNCTIONS = "disco_test_functions"


def broken(session):
    """Breaks the stream of a session off, as a failing connection does."""
    session._core.transport._stream._at._streams[-1].close()


@pytest.fixture
def counting(session):
    """A session, and a function that counts its calls on each worker."""
    session.import_python_module(FUNCTIONS)
    return session, session.get_global_func(COUNT)


def counts(session, count):
    return session._core.get_all(count(), range(session.num_workers))


def test_a_call_in_flight_returns_as_if_nothing_had_happened(counting):
    """Whatever is under way when the stream breaks: commands, answers, errors, arrays."""
    session, count = counting
    issued = 0
    for step in range(20):
        for _ in range(step * 7):
            count()
        broken(session)
        for _ in range(5):
            count()
        issued += step * 7 + 5 + 1
        assert counts(session, count) == [issued] * session.num_workers
        array = np.full(step + 1, float(step))
        broken(session)
        ref = session.broadcast(array)
        broken(session)
        np.testing.assert_array_equal(ref.debug_get_from_remote(3), array)
    session.get_global_func("tests.no_such_function")
    broken(session)
    with pytest.raises(errors.FunctionNotFound, match="no_such_function"):
        session.sync_all()
    session.sync_all()


def test_a_wait_goes_on_over_the_next_stream(counting):
    """A thread that waits hears the answer, wherever the stream broke meanwhile."""
    session, count = counting
    waiter = session.get_global_func("tests.sleep")
    waiter(1.0)
    waiting = threading.Thread(target=session.sync_all)
    waiting.start()
    for _ in range(3):
        broken(session)
    waiting.join(20)
    assert not waiting.is_alive()
    assert counts(session, count) == [1] * session.num_workers


@pytest.mark.parametrize(
    "faults",
    [
        "client.send[BATCH]:drop=3",
        "client.receive[REPLY]:drop=6",
        "client.send[BATCH]:duplicate=1-1000",
        "client.send[BATCH]:swap=4-6",
        "client.receive[REPLY]:swap=5-7",
        "client.send:cut=9;client.receive:cut=11",
    ],
)
def test_messages_that_are_lost_doubled_or_late_change_nothing(cluster, monkeypatch, faults):
    """Each command runs once and in order, and each answer is heard."""
    monkeypatch.setattr("disco_client.transport.session_stream._ASK_AGAIN_S", 0.5)
    with (
        injected(faults),
        connect(cluster.address, num_workers=2, logs=False) as session,
    ):
        session.import_python_module(FUNCTIONS)
        count = session.get_global_func(COUNT)
        for step in range(1, 25):
            assert counts(session, count) == [step, step]


def test_what_nobody_needs_is_let_go(counting):
    """The nodes keep no reply that has come, and the client no command that all executed."""
    session, count = counting
    for _ in range(300):
        counts(session, count)
    stream = session._core.transport._stream
    assert sum(stream._replies.numbers) >= 300 * session.num_workers
    assert max(stream._replies._unconfirmed.values(), default=0) < 256
    session.sync_all()
    count()
    session.sync_all()
    assert len(stream._client._sent._in_flight) < 10


def test_a_controller_that_stays_away_is_lost_after_the_lease(daemons, caplog):
    """The person is told that it is tried again, and at last for how long it was."""
    controller = daemons.controller("--session-lease", "5")
    daemons.worker(controller.address, "--slots", "1")
    session = connect(controller.address, num_workers=1, logs=False)
    session.sync_all()
    with caplog.at_level(logging.WARNING, "disco_client"):
        controller.process.kill()
        with pytest.raises(errors.ControllerLost, match="did not come back within 5 s"):
            session.sync_all()
    assert "trying again for 5 s" in caplog.text
    session.shutdown()


def test_shutting_down_does_not_wait_for_a_controller_that_is_away(daemons, caplog):
    """A program may end while its connection is broken."""
    controller = daemons.controller()
    daemons.worker(controller.address, "--slots", "1")
    session = connect(controller.address, num_workers=1, logs=False)
    session.sync_all()
    controller.process.kill()
    controller.process.wait()
    ended = threading.Thread(target=session.shutdown)
    ended.start()
    ended.join(9)
    assert not ended.is_alive()
    with contextlib.suppress(errors.SessionError):
        session.sync_all()
