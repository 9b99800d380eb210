"""Sessions for which the system starts not every thread that they need."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import threading
from pathlib import Path

import numpy as np
import psutil
import pytest

import disco_client as di
from fault_tools.few_threads import refusing

LARGE = 1 << 18
"""Elements of an array that travels beside the commands."""

OURS = ("disco-", "threads-", "processes-")
SLOW_TO_END = {"disco-liveness", "disco-abandon"}
"""One looks once a second whether its session is over, the other is left for good."""


@pytest.fixture
def traces(tmp_path):
    """Names of files."""
    return (tmp_path / f"trace-{number}.json" for number in range(100))


def use(session, traces):
    """What needs threads in a session that is open, each of those that stay later than the others.

    So one that is refused has not been started by what was refused before.
    """
    with session.trace(next(traces)):
        large = asyncio.run(session.put(np.arange(LARGE)))
        assert called_back(large).result(timeout=60)[-1] == LARGE - 1
    session.sync_all()


def called_back(ref):
    """A future whose function had to wait for it, which therefore was called by a thread for it."""
    while True:
        future, called = ref.future(), concurrent.futures.Future()
        future.add_done_callback(lambda _, called=called: called.set_result(threading.get_ident()))
        if called.result(timeout=60) != threading.get_ident():
            return future


def threads():
    """The threads of sessions that live, but for those that may last a second longer."""
    return {
        each
        for each in threading.enumerate()
        if each.name.startswith(OURS) and each.name not in SLOW_TO_END
    }


def children():
    return {each.pid for each in psutil.Process().children()}


def epolls():
    """How many descriptors like those of a keeper are open; gRPC has some too, now and then."""
    found = 0
    for fd in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):
            found += "eventpoll" in str(fd.readlink())
    return found


def is_no_more_than(before):
    """Whether nothing is there that was not: what a former session left may still go."""
    processes, descriptors = before
    return children() <= processes and epolls() <= descriptors


@pytest.mark.layouts((1, 1))
@pytest.mark.timeout(180)  # several sessions begin, on a machine that has much else to do
def test_a_thread_that_the_system_refuses_is_a_typed_error(program, traces, eventually):
    """Each in turn, at the start and later; nothing is left of what could not begin."""
    open_one, others = eval(f"lambda: {program(1)}", {"di": di}), threads()
    with refusing(lambda _name: False) as seen:
        with open_one() as session:
            first = [name for name in seen if name.startswith(OURS)]
            use(session, traces)
        later = [name for name in seen if name.startswith(OURS) and name not in first]
    assert {"disco-callbacks", "disco-liveness", "disco-results", "disco-trace"} <= set(later)
    eventually(lambda: threads() <= others)
    before, refused = (children(), epolls()), []
    for name in first:
        with refusing(lambda asked, name=name: asked == name):
            refused += refusals(lambda: open_one().shutdown(), name)
        eventually(lambda: threads() <= others, what=f"the end of all threads after {name}")
        eventually(lambda: is_no_more_than(before), what=f"the end of all that {name} left")
    with open_one() as session:
        for name in later:
            with refusing(lambda asked, name=name: asked == name):
                refused += refusals(lambda: use(session, traces), name)
        use(session, traces)
    # Without the clock a wait counts fewer seconds than pass.
    assert {*first, *later}.difference(refused) <= {"disco-clock"}


def refusals(call, name):
    """The name of a thread without which a call raises the error that says so, in a list."""
    try:
        call()
    except di.SessionError as error:
        return [name] if "ulimit -u" in str(error) else [f"{name}: {error}"]
    return []
