"""Yardsticks in processes of their own."""

from __future__ import annotations

import time

import psutil
import pytest
from disco_bench.child import Child, ChildFailed

ECHO = "import sys; [print(line.strip().upper(), flush=True) for line in sys.stdin]"
STUCK = "import sys, time; print('ready', flush=True); time.sleep(600)"
DEAD = "import sys; sys.exit('out of luck')"


def test_a_child_answers_line_by_line():
    """Each line has its answer, in order."""
    with Child(["-c", ECHO]) as child:
        assert [child.ask(word, 20) for word in ("one", "two")] == ["ONE", "TWO"]


def test_a_child_that_hangs_is_given_up(all_end):
    """After its time it is an error, and leaving ends the process."""
    started = time.monotonic()
    with Child(["-c", STUCK]) as child:
        assert child.read_line(20) == "ready"
        with pytest.raises(ChildFailed, match="no answer within 0 s"):
            child.ask("anything", 0.1)
        (process,) = (
            found for found in psutil.Process().children() if "600" in str(found.cmdline())
        )
    all_end([process])
    assert time.monotonic() - started < 20


def test_a_child_that_ends_says_why():
    """The error has the exit status and its last words."""
    with Child(["-c", DEAD]) as child, pytest.raises(ChildFailed, match=r"status 1: out of luck"):
        child.read_line(20)
