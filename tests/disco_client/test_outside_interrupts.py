"""What Ctrl-C in a call that waits ends, as the program wants it."""

from __future__ import annotations

import threading
import time

import pytest
from interrupting import await_start, pressed
from reentry import in_thread, watched

import disco_client as di
import disco_server

LONG = 600.0


@disco_server.register_func("outside.spin")
def _spin(seconds):
    """Runs Python for so long; returns the number of the worker."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        time.sleep(0.001)  # so that workers which are threads take turns
    return disco_server.current_worker().worker_id


def test_a_session_may_be_interrupted_by_the_first_ctrl_c():
    """Other scopes are told of their commands; who has pressed it is not."""
    issued = threading.Event()
    with watched(60), di.ThreadedSession(2, on_interrupt="session") as session:
        spin = session.get_global_func("outside.spin")

        def wait():
            spin(LONG)
            issued.set()
            session.sync_all()

        mine = spin(LONG)
        other = in_thread(wait)
        issued.wait()
        await_start(session, "outside.spin")
        assert "was interrupted" in pressed(session.sync_all)
        with pytest.raises(di.Interrupted):
            other.join()
        session.sync_all()
        assert spin(0).get_all() == [0, 1]
        with pytest.raises(di.Interrupted):
            mine.get()


def test_a_call_that_waits_for_room_is_a_wait():
    """As many commands are under way as may be, and Ctrl-C ends the call that issues one more."""
    with watched(60), di.ThreadedSession(1, on_interrupt="session") as session:
        spin = session.get_global_func("outside.spin")
        spin(LONG)

        def fill():
            while True:
                spin(LONG)

        assert "was interrupted" in pressed(fill)
        session.sync_all()
        assert spin(0).get() == 0


def test_the_end_of_a_session_leaves_ctrl_c_as_it_is():
    """A session that is over has nothing to interrupt."""
    session = di.ThreadedSession(1, on_interrupt="session")
    waits = session._core.log.window.long_waits
    session.shutdown()
    error = KeyboardInterrupt()
    waits.on_interrupt(error)
    assert not hasattr(error, "__notes__")
    del session
    waits.on_interrupt(error)
    assert not hasattr(error, "__notes__")


@pytest.mark.parametrize(
    "open_session",
    [
        lambda **how: di.connect(num_workers=1, **how),
        lambda **how: di.attach("any", **how),
        lambda **how: di.ThreadedSession(1, **how),
        lambda **how: di.ProcessSession(1, **how),
        lambda **how: di.SocketSession(1, 1, 1, "127.0.0.1", 0, **how),
    ],
    ids=["connect", "attach", "threads", "processes", "sockets"],
)
def test_another_word_is_refused(open_session):
    """Before anything is opened."""
    with pytest.raises(di.ConfigError, match="expected on_interrupt to be 'wait' or 'session'"):
        open_session(on_interrupt="twice")
