"""A thread that has a lock does not wait for others, and takes further ones in one order."""

from __future__ import annotations

import gc
import subprocess
import sys

import pytest

import disco_client
from disco_client.errors import Reentered
from disco_client.locks import ORDER, check_free, check_no_lock_held, make_lock, unordered


@pytest.mark.parametrize("waits", ["sync", "get", "room"])
def test_a_wait_of_a_thread_that_has_a_lock_is_refused_after_a_moment(waits):
    """A finalizer may run in the middle of anything, and what it waits for may need the lock."""
    with disco_client.ThreadedSession(1) as session:
        add = session.get_global_func("numpy.add")
        session.sync_all()
        session.get_global_func("time.sleep")(3.0)
        session._core.log.window.commands = 1 if waits == "room" else 1000
        wait = {
            "sync": session.sync_all,
            "get": lambda: add(1, 2).debug_get_from_remote(0),
            "room": lambda: add(1, 2),
        }[waits]
        with make_lock(), pytest.raises(Reentered):
            wait()
        session._core.log.window.commands = 1000
        assert add(1, 2).debug_get_from_remote(0) == 3


def test_locks_may_be_collected_while_a_thread_looks_which_it_has():
    """The collector runs in the middle of anything; a look is complete all the same."""
    many, before = [make_lock() for _ in range(100)], gc.get_threshold()
    try:
        for later in range(60):  # one of these is in the middle of the look
            gc.disable()
            gc.collect(0)
            for _ in range(50):
                dropped = [make_lock()]
                dropped.append(dropped)
            gc.set_threshold(gc.get_count()[0] + later)
            gc.enable()
            check_no_lock_held()
    finally:
        gc.enable()
        gc.set_threshold(*before)
    assert many


@pytest.mark.parametrize(
    ("first", "then"),
    [(first, then) for at, then in enumerate(ORDER) for first in ORDER[at:]],
)
def test_a_lock_taken_out_of_order_is_an_error_where_that_is_checked(first, then):
    """Before the thread waits, so that it shows without the other thread; the lock stays free."""
    one, other = make_lock(first), make_lock(then)
    with one, pytest.raises(AssertionError, match=f"{first!r} takes one of place {then!r}"), other:
        pass
    with other:
        pass


def test_a_lock_that_a_thread_has_is_taken_again_in_any_order():
    """It waits for nobody; and so does one that is only tried."""
    outer, inner, other = make_lock("stream"), make_lock("session"), make_lock("connection")
    with outer, inner, outer:
        assert other.acquire(blocking=False)
        other.release()


def test_a_program_with_disco_debug_checks_the_order(monkeypatch):
    """All locks of the process are checked then; without it, they are Python's own."""
    program = (
        "from disco_client.locks import make_lock\n"
        "with make_lock('session'), make_lock('sent'): print('taken')"
    )
    for debug, code, out in (("1", 1, ""), ("", 0, "taken\n")):
        monkeypatch.setenv("DISCO_DEBUG", debug)
        done = subprocess.run(
            [sys.executable, "-c", program], capture_output=True, text=True, check=False
        )
        assert (done.returncode, done.stdout) == (code, out)
        assert ("the order is object, connection" in done.stderr) == bool(code)


def test_a_function_of_the_program_is_called_without_a_lock():
    """Where that is checked, as here: it might wait for a thread that needs the lock."""
    check_free()
    with make_lock(), pytest.raises(AssertionError, match="function of the program"):
        check_free()


def test_what_comes_between_two_steps_takes_locks_in_any_order():
    """A finalizer that the collector calls, and a handler that says so."""
    outer, inner, taken = make_lock("sent"), make_lock("session"), []

    class Taking:
        def __init__(self):
            self.cycle = self

        def __del__(self):
            with outer:
                taken.append("by the collector")

    Taking()
    with inner:
        while not taken:  # a collection by another thread may be under way
            gc.collect()
        with unordered(), outer:
            taken.append("by a handler")
        with pytest.raises(AssertionError), outer:
            pass
    assert taken == ["by the collector", "by a handler"]
