"""Programs that may open few more descriptors: row 43."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys

import pytest

from disco_client.transport.admin import list_cluster
from disco_client.transport.channel import ReloadingChannel

QUICK_S = 15
ADVICE = "ulimit -n"
LEFT = (0, 1, 2, 3, 4, 8, 19, 60)

# Each number of descriptors in a process of its own, forked before any of them has used gRPC.
PROGRAM = """
import itertools, os, resource, signal, sys, threading, time
import numpy as np
from disco_client import DiscoError, ProcessSession, SocketSession, ThreadedSession
from disco_client import attach, connect

kind, address, numbers = sys.argv[1:]
NOFILE = resource.RLIMIT_NOFILE

def detached():
    return connect(address, num_workers=1, name=f"left-{os.getpid()}", logs=False).detach()

OPEN = {
    "connect": lambda: connect(address, num_workers=1, logs=False),
    "again": lambda: connect(address, num_workers=1, logs=False),
    "attach": lambda: attach(f"left-{os.getpid()}", address=address, logs=False),
    "process": lambda: ProcessSession(1, logs=False),
    "threaded": lambda: ThreadedSession(2, logs=False),
    "socket": lambda: SocketSession(1, 1, 1, "127.0.0.1", 0, logs=False),
}
FIRST = {"attach": detached, "again": lambda: OPEN["connect"]().shutdown()}

def use(session):
    array = np.arange(1 << 18)
    assert session.copy_to_worker_0(array).numpy()[-1] == array[-1]
    session.sync_all()

def descriptors():
    listed = set(map(int, os.listdir("/proc/self/fd")))
    return {fd for fd in listed if os.path.exists(f"/proc/self/fd/{fd}")}

def limit_of(left):
    free = itertools.filterfalse(descriptors().__contains__, itertools.count())
    return next(itertools.islice(free, left, None))

def outcome():
    try:
        with OPEN[kind]() as session:
            try:
                use(session)
            except DiscoError:
                return "works"  # the opening did; see test_resources.py for the rest
        return "works"
    except DiscoError as error:
        return f"{type(error).__name__}: {error}"

ENDLESS = "disco-abandon", "disco-liveness"  # the latter looks each second whether all is over

def others():
    threads = [each.name for each in threading.enumerate() if each.name != "MainThread"]
    with open(f"/proc/self/task/{os.getpid()}/children") as children:
        return [each for each in threads if each not in ENDLESS] + children.read().split()

def settled(before):
    until = time.monotonic() + 10
    while (left := (descriptors() - before, others())) != (set(), []):
        if time.monotonic() > until:
            return str(left)
        time.sleep(0.02)
    return ""

def attempt(left):
    FIRST.get(kind, bool)()
    soft, hard = resource.getrlimit(NOFILE)
    limit, began, before = limit_of(left), time.monotonic(), descriptors()
    resource.setrlimit(NOFILE, (limit, hard))
    said = outcome()
    took = time.monotonic() - began
    resource.setrlimit(NOFILE, (soft, hard))
    remains = "" if said == "works" else settled(before)  # gRPC keeps what it has made
    if said == "works" and kind == "attach":
        then = said
    else:
        then = outcome()
    print(left, f"{took:.1f}", said.partition("\\n")[0], remains, then, sep="|", flush=True)

for left in map(int, numbers.split(",")):
    child = os.fork()
    if not child:
        signal.alarm(40)  # whoever hangs, also at the end of the interpreter, is killed
        attempt(left)
        break
    _, status = os.waitpid(child, 0)
    if status:
        ended = os.waitstatus_to_exitcode(status)
        sys.exit(f"with {left} descriptors: ended with {ended}")
"""


@pytest.mark.timeout(300)
@pytest.mark.parametrize("kind", ["connect", "again", "attach", "process", "threaded", "socket"])
def test_however_few_descriptors_there_are_a_session_opens_or_says_so(
    kind, shared_node, eventually
):
    """Row 43: a typed error in time that names the limit, nothing left, and the next one works."""
    # There, one is taken by the import of a module, before any code of ours.
    numbers = [left for left in LEFT if left or kind in ("again", "attach")]
    given = ",".join(map(str, numbers))
    command = [sys.executable, "-c", PROGRAM, kind, shared_node.address, given]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "OPENBLAS_NUM_THREADS": "1"}
    done = subprocess.run(command, check=False, capture_output=True, text=True, env=env)
    assert not done.returncode, done.stderr + done.stdout
    said = [line.split("|") for line in done.stdout.splitlines()]
    assert [int(left) for left, *_ in said] == numbers
    for left, seconds, outcome, remains, then in said:
        assert outcome == "works" or ADVICE in outcome, (left, outcome)
        assert float(seconds) < QUICK_S, (left, seconds, outcome)
        assert not remains, (left, outcome, remains)
        assert then == "works", (left, outcome, then)
    assert said[-1][2] == "works"
    with contextlib.closing(ReloadingChannel(shared_node.address)) as line:
        eventually(lambda: not list_cluster(line).sessions, what="the end of all sessions")


def test_a_command_says_that_it_may_open_too_few_descriptors(shared_node):
    """Row 43: gRPC would abort it."""
    listed = "exec disco status --address " + shared_node.address
    path = os.pathsep.join([os.path.dirname(sys.executable), os.environ["PATH"]])  # noqa: PTH120
    for limit in (9, 12, 16):
        done = subprocess.run(
            ["sh", "-c", f"ulimit -n {limit}; {listed}"],
            check=False,
            capture_output=True,
            text=True,
            env={**os.environ, "PATH": path},
        )
        assert done.returncode == 1, (limit, done)
        assert ADVICE in done.stderr, (limit, done)
