"""What a forked child does with what its parent has."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

COPIES = """
import os, sys
import numpy as np
import disco_client as di

with di.connect(sys.argv[1], num_workers=1, logs=False) as session:
    session.copy_to_worker_0(np.ones(1 << 20))
    session.sync_all()
    child = os.fork()
    if not child:
        try:
            session.sync_all()
        except di.SessionClosed:
            os._exit(0)
        os._exit(1)
    print(os.waitpid(child, 0)[1])
"""
HOLDS = """
import os
import sys
import numpy as np
import disco_client as di

def held():
    found = []
    for fd in os.listdir("/proc/self/fd"):
        try:
            found.append(os.readlink(f"/proc/self/fd/{fd}").partition("-")[0])
        except FileNotFoundError:
            pass  # what listed them
    mapped = [line for line in open("/proc/self/maps") if "memfd:" in line]
    return sorted(name for name in found if "/proc" not in name), len(mapped)

before = held()
with di.ProcessSession(2) as session:
    for _ in range(3):
        session.copy_to_worker_0(np.ones(1 << 20)).numpy()
    session.sync_all()  # no memory is on its way
    open_here, mapped_here = held()
    child = os.fork()
    if not child:
        print(len(open_here) > len(before[0]), mapped_here > 0, held() == before, flush=True)
        os._exit(0)
    os.waitpid(child, 0)
    print(session.copy_to_worker_0(np.ones(8)).numpy().sum())
"""
FAILS = """
import os
from disco_client.forks import leave_in_children

class Owned:
    def __init__(self, fails):
        self.fails, self.left = fails, False
        leave_in_children(self, Owned.leave)
    def leave(self):
        if self.fails:
            raise ValueError("no")
        self.left = True

owned = [Owned(fails) for fails in (False, True) * 10]
child = os.fork()
if not child:
    os._exit(sum(each.left for each in owned))
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


@pytest.mark.parametrize("debug", ["0", "1"])
def test_a_child_of_a_program_that_copies_has_nothing_of_its_session(cluster, debug):
    """Also where the order of locks is checked: leaving it all takes none in a wrong one."""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", COPIES, cluster.address],
        env={**os.environ, "DISCO_DEBUG": debug},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "0\n", "")


@pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="looks at /proc")
def test_a_child_has_nothing_open_or_mapped_of_its_parents_session():
    """Neither sockets, pipes and processes nor shared memory; the parent keeps all of it."""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", HOLDS], capture_output=True, text=True, check=False
    )
    assert (done.stdout, done.stderr) == ("True True True\n8.0\n", "")


def test_one_thing_that_cannot_be_left_does_not_keep_a_child_from_leaving_others():
    """Python says what it was."""
    done = subprocess.run(
        [sys.executable, "-c", FAILS], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (0, "10\n")
    assert "what a forked child could not leave to its parent (10 sub-exceptions)" in done.stderr
