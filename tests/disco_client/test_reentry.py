"""What threads wait for is whole after exceptions of signal handlers, at any bytecode."""

from __future__ import annotations

import sys
import threading
import time

import pytest
from reentry import Raising, in_thread, watched

from disco_client.reentry import Condition, Event
from disco_client.threads import call_undisturbed

pytestmark = pytest.mark.timeout(60, method="thread")

SOME = 300


def interrupted(step):
    """Does it again and again, until so many exceptions came out of it, in ``watched``."""
    with Raising("timer", interval=0.0005) as raising:
        while raising.caught < SOME:
            raising.during(step)


def in_another_thread(call):
    """Whether it comes to an end there."""
    thread = threading.Thread(target=call, daemon=True)
    thread.start()
    thread.join(10)
    return not thread.is_alive()


@watched()
def test_an_event_is_free_after_exceptions():
    """Others may set it and wait for it."""
    event = Event()

    def step():
        for _ in range(100):
            event.set()
            assert event.wait(1)
            event.clear()
            event.wait(0)

    interrupted(step)
    event.clear()
    waiting = threading.Thread(target=event.wait)
    waiting.start()
    assert in_another_thread(event.set)
    waiting.join()
    assert event.is_set()


@watched()
def test_a_condition_is_free_after_exceptions():
    """Others may enter it, wait and notify."""
    condition, told = Condition(), []

    def step():
        for _ in range(100):
            with condition:
                condition.notify_all()
                condition.wait(0)

    def tell():
        with condition:
            told.append(None)
            condition.notify_all()

    interrupted(step)
    with condition:
        threading.Thread(target=tell).start()
        assert condition.wait_for(lambda: told, 10)
    assert in_another_thread(tell)


@watched()
def test_a_call_in_a_thread_of_its_own_ends_where_its_caller_is_interrupted():
    """Also when the thread is over before the caller goes on, and is interrupted there."""
    over = threading.Event()

    def keep_busy():
        while not over.is_set():
            pass

    sys.setswitchinterval(1e-6)  # so that the caller is the last to go on
    busy = [in_thread(keep_busy) for _ in range(2)]
    try:
        interrupted(lambda: call_undisturbed(lambda: sum(range(2000))))
    finally:
        over.set()
    for thread in busy:
        thread.join()


def test_they_time_out():
    """As those of the standard library do."""
    event, condition = Event(), Condition()
    began = time.monotonic()
    assert not event.wait(0.01)
    with condition:
        assert not condition.wait(0.01)
        assert not condition.wait_for(lambda: False, 0.01)
    assert time.monotonic() - began >= 0.03
    with pytest.raises(RuntimeError):
        condition.wait(0)
