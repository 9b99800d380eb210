"""Programs for which the system starts too few threads: row 40."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import numpy as np
import pytest

from disco_client import connect, errors
from disco_client.transport.calls import ask
from disco_client.transport.channel import ReloadingChannel
from fault_tools.few_threads import refusing

QUICK_S = 15
ADVICE = "ulimit -u"
CANNOT = 77

# Each limit in a process of its own, forked before any of them has used gRPC.
PROGRAM = """
import os, signal, sys, threading, time
import numpy as np
import disco_client
import disco_client.transport.grpc
import disco_server.embedded.processes, disco_server.embedded.threads
from fault_tools.few_threads import NotPermitted, become_poor

kind, address, limits = sys.argv[1:]
OPEN = {
    "connect": lambda: disco_client.connect(address, num_workers=1, timeout=15, logs=False),
    "process": lambda: disco_client.ProcessSession(2, logs=False),
    "threaded": lambda: disco_client.ThreadedSession(4, logs=False),
}

def use(session):
    array = np.arange(1 << 18)
    there, called = session.copy_to_worker_0(array), threading.Event()
    future = there.future()
    future.add_done_callback(lambda _done: called.set())
    assert future.result(timeout=60)[-1] == array[-1]
    assert called.wait(60)
    session.sync_all()

ENDLESS = "disco-abandon", "disco-liveness"  # the latter looks each second whether all is over

def left():
    others = [each.name for each in threading.enumerate() if each.name != "MainThread"]
    with open(f"/proc/self/task/{os.getpid()}/children") as children:
        return [each for each in others if each not in ENDLESS] + children.read().split()

def attempt(limit):
    try:
        become_poor(limit, 400_000 + os.getppid() % 100_000)
    except NotPermitted as error:
        print(error, file=sys.stderr)
        os._exit(77)
    began = time.monotonic()
    try:
        with OPEN[kind]() as session:
            use(session)
        said = "works"
    except disco_client.DiscoError as error:
        said = f"{type(error).__name__}: {error}"
    took, until = time.monotonic() - began, time.monotonic() + 10
    while left() and time.monotonic() < until:
        time.sleep(0.02)
    print(limit, f"{took:.1f}", left(), said.partition("\\n")[0], sep="|", flush=True)

for limit in map(int, limits.split(",")):
    child = os.fork()
    if not child:
        signal.alarm(30)  # whoever hangs, also at the end of the interpreter, is killed
        attempt(limit)
        break
    _, status = os.waitpid(child, 0)
    status = os.waitstatus_to_exitcode(status)
    if status:
        sys.exit(77 if status == 77 else f"with {limit} threads: ended with {status}")
"""


@pytest.mark.timeout(180)
@pytest.mark.parametrize(("kind", "most"), [("connect", 20), ("process", 8), ("threaded", 8)])
def test_however_few_threads_there_are_it_works_or_says_so(kind, most, shared_node):
    """Row 40: a typed error in time that names the limit, nothing left, and a quick exit."""
    limits = [*range(1, most + 1), 80]
    given = ",".join(map(str, limits))
    command = [sys.executable, "-c", PROGRAM, kind, shared_node.address, given]
    path = os.pathsep.join(sys.path)
    env = {**os.environ, "PYTHONPATH": path, "OPENBLAS_NUM_THREADS": "1"}
    done = subprocess.run(command, check=False, capture_output=True, text=True, env=env)
    if done.returncode == CANNOT:
        pytest.skip(done.stderr.strip())
    assert not done.returncode, done.stderr + done.stdout
    said = [line.split("|") for line in done.stdout.splitlines()]
    assert [int(limit) for limit, *_ in said] == limits
    for limit, seconds, left, outcome in said:
        assert outcome == "works" or ADVICE in outcome, (limit, outcome)
        assert float(seconds) < QUICK_S, (limit, seconds, outcome)
        assert left == "[]", (limit, outcome)
    assert ADVICE in said[0][3]
    assert said[-1][3] == "works"


def test_a_session_comes_back_when_there_are_threads_again(shared_node):
    """Row 40: a connection that breaks meanwhile is tried again, as where nobody answers."""
    with connect(shared_node.address, num_workers=1, logs=False) as session:
        session.sync_all()
        with refusing(lambda _name: True) as refused:
            session._core.transport._stream._at._streams[-1].close()
            while refused.total() < 3:
                with pytest.raises(errors.DiscoTimeout):
                    session.sync_all(timeout=0.1)
        session.sync_all(timeout=60)


def test_workers_that_no_thread_can_replace_are_lost(shared_node):
    """Row 40: a session that would recover says why it cannot, and waits for nothing."""
    session = connect(shared_node.address, num_workers=1, logs=False, recover="replay")
    with session, refusing(lambda name: name == "disco-recovery"):
        os.kill(session.workers[0].pid, signal.SIGKILL)
        with pytest.raises(errors.WorkerLost, match=rf"could not go on.*\n?.*{ADVICE}"):
            session.sync_all(timeout=60)


def test_a_channel_serves_on_after_a_call_without_a_thread(shared_node):
    """Row 40: gRPC would never serve a channel again whose thread did not begin, nor close it."""
    line = ReloadingChannel(shared_node.address)
    listing = line.unary_unary("/disco.v1.SessionService/List")
    for _ in range(2):
        with (
            refusing(lambda name: "channel_spin" in name or name.startswith("Thread")),
            pytest.raises(errors.SessionError, match=ADVICE),
        ):
            ask(listing, b"", timeout=20)
        assert ask(listing, b"", timeout=20)
    line.close()


def test_a_copy_that_lacks_a_thread_fails_alone(shared_node):
    """Row 40: the next one works, over the controller too, where gRPC needs threads for it."""
    with connect(shared_node.address, num_workers=1, logs=False) as session:
        session._core.transport._arrays._addresses.clear()
        array = np.arange(1 << 18)
        there = session.copy_to_worker_0(array)
        with refusing(lambda _name: True), pytest.raises(errors.SessionError, match=ADVICE):
            there.numpy()
        np.testing.assert_array_equal(there.numpy(), array)
