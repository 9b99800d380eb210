"""What a program does to its own process, apart from its session, which goes on as before."""

from __future__ import annotations

import math
import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest

import disco_client as di

WORKER_MODULES = Path(__file__).parents[1] / "worker_modules"
LIMIT_S = 60
MANY_FILES, FILES_LIMIT = 1100, 4096

# `works` uses what moves in each way: commands, collectives, arrays inside commands and beside
# them, errors, and a wait that is longer than the default timeout of sockets below.
PROGRAM = """
import faulthandler, resource, socket, threading, time

import numpy as np

import disco_client as di
from disco_frozen_time import frozen_time

faulthandler.dump_traceback_later({limit} - 10, exit=True)
large = np.arange(300_000.0)


def opened():
    session = {expression}
    session.import_python_module("disco_conformance_functions")
    return session


def works(session):
    assert session.allreduce(session.broadcast(np.ones(3))).numpy().tolist() == [2] * 3
    assert np.array_equal(session.broadcast(large).numpy(worker_id=1), large)
    session.get_global_func("conformance.nap")(0.2)
    session.sync_all()
    failing = session.get_global_func("conformance.fail_on")([1], "told to fail")
    try:
        session.sync_all()
    except di.RemoteException:
        return
    raise AssertionError(failing)


{body}
"""

FREEZE = """
YEAR = 365 * 86_400.0

with opened() as session:
    works(session)
    with frozen_time(time.time() + 30 * YEAR) as clock:
        works(session)
        for years in (20, -50):
            clock.now += years * YEAR
            works(session)
        nap = session.get_global_func("conformance.nap")(1.5)
        used = time.process_time()
        try:
            nap.get(0, timeout=0.2)
        except di.DiscoTimeout:
            pass
        else:
            raise AssertionError("the timeout did not end the wait")
        session.sync_all(timeout=1e15)
        assert time.process_time() - used < 0.7, "a thread spins"
    works(session)
"""

FREEZE_FIRST = """
with frozen_time({now}):
    with opened() as session:
        works(session)
        with frozen_time({now} + 1e9):
            works(session)
"""

DEFAULT_TIMEOUT = """
socket.setdefaulttimeout(0.1)
with opened() as session:
    session.get_global_func("conformance.set_default_timeout")(0.05)
    works(session)
    works(session)
"""

MANY = """
limit = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, ({files_limit}, limit[1]))
files = [open("/dev/null") for _ in range({many_files})]
with opened() as session:
    works(session)
    ones = session.broadcast(np.ones(3))
    failing = session.get_global_func("conformance.fail_before_allreduce")(ones, 1)
    try:
        session.sync_all()
    except di.RemoteException as error:
        assert error.worker == 1
    else:
        raise AssertionError(failing)
    works(session)
"""


def run(expression: str, body: str) -> None:
    path = os.pathsep.join((str(WORKER_MODULES), os.environ.get("PYTHONPATH", "")))
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM.format(expression=expression, body=body, limit=LIMIT_S)],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        timeout=LIMIT_S,
        env={**os.environ, "PYTHONPATH": path},
    )
    assert done.returncode == 0, done.stderr


def test_clocks_that_a_program_freezes_and_moves_are_not_those_of_its_session(program):
    """By years, there and back, as freezegun does: what runs goes on, and timeouts still end."""
    run(program(2), FREEZE)


@pytest.mark.parametrize("now", [1e9, 4e9], ids=["past", "future"])
def test_a_session_is_opened_where_the_time_is_frozen(program, now):
    """And shut down there."""
    run(program(2), FREEZE_FIRST.format(now=now))


def test_the_default_timeout_of_sockets_is_for_those_of_the_program(program):
    """Set before the session is opened, and by functions on workers at any time."""
    run(program(2), DEFAULT_TIMEOUT)


def test_a_program_with_many_open_files_gets_the_errors_of_its_workers(program):
    """Where descriptors have numbers that `select` does not take."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    if hard != resource.RLIM_INFINITY and hard < FILES_LIMIT:
        pytest.skip(f"needs {FILES_LIMIT} descriptors, this process may have {hard}")
    run(program(2), MANY.format(files_limit=FILES_LIMIT, many_files=MANY_FILES))


@pytest.mark.parametrize("seconds", [3e6, 1e12, 1e300, math.inf])
def test_a_timeout_may_be_longer_than_the_system_waits(session, tools, seconds):
    """In each way to wait: poll takes 25 days at most, a lock 292 years."""
    ref = tools.call("nap", 0.01)
    assert ref.get(0, timeout=seconds) is None
    session.sync_all(timeout=seconds)
    session.sync_worker(1, timeout=seconds)
    future = tools.call("nap", 0.01).future()
    assert future.result(timeout=seconds) is None
    futures = [tools.call("nap", 0.01).future(worker) for worker in tools.workers]
    assert {id(each) for each in di.as_completed(futures, timeout=seconds)} == set(map(id, futures))
