"""What a forked child does with what its parent has."""

from __future__ import annotations

import os
import subprocess
import sys

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


def test_one_thing_that_cannot_be_left_does_not_keep_a_child_from_leaving_others():
    """Python says what it was."""
    done = subprocess.run(
        [sys.executable, "-c", FAILS], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (0, "10\n")
    assert "what a forked child could not leave to its parent (10 sub-exceptions)" in done.stderr
