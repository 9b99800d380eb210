"""A process that must not outlive its parent ends with it, however that dies."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import psutil
import pytest

from disco_server.observe.lifetime import PARENT_VARIABLE, die_with_parent_in

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux's kernel tells")

CHILD = """
import os, signal, sys
from disco_server.observe.lifetime import die_with
die_with(int(sys.argv[1]), signal.Signals(int(sys.argv[2])))
print(os.getpid(), flush=True)
signal.pause()
"""
PARENT = """
import os, signal, subprocess, sys
subprocess.Popen([sys.executable, "-c", sys.argv[1], str(os.getpid()), sys.argv[2]])
signal.pause()
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_child_gets_the_signal_when_its_parent_is_killed(number):
    """The parent has no chance to say anything, and yet the child ends."""
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT, CHILD, str(int(number))], stdout=subprocess.PIPE, text=True
    )
    with parent:
        child = psutil.Process(int(parent.stdout.readline()))
        parent.kill()
    gone, alive = psutil.wait_procs([child], timeout=20)
    assert gone
    assert not alive


def test_a_parent_that_died_before_is_noticed():
    """Where the parent is another process by now, the signal comes at once."""
    done = subprocess.run(
        [sys.executable, "-c", CHILD, "1", str(int(signal.SIGTERM))],
        capture_output=True,
        timeout=30,
        check=False,
    )
    assert done.returncode == -signal.SIGTERM
    assert done.stdout == b""


def test_the_wish_in_the_environment_is_not_handed_on():
    """A daemon forgets the variable, so that its own children do not take it for theirs."""
    program = (
        "import os\nfrom disco_server.observe.lifetime import die_with_parent_in\n"
        "die_with_parent_in(os.environ)\nprint(sorted(k for k in os.environ if 'PARENT_PID' in k))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, PARENT_VARIABLE: str(os.getpid())},
        capture_output=True,
        text=True,
        timeout=30,
        check=True,
    )
    assert done.stdout == "[]\n"


@pytest.mark.parametrize("environ", [{}, {PARENT_VARIABLE: ""}, {PARENT_VARIABLE: "-1"}])
def test_without_a_sound_wish_nothing_happens(environ):
    """No variable, or one that names no process, changes nothing but the variable."""
    die_with_parent_in(environ)
    assert environ == {}
