"""Who is waited for is said once, by one of those who wait."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from disco_client import ProcessSession, ThreadedSession
from disco_client.errors import ConfigError
from disco_server.collectives.collective_watch import CollectiveWatch, WaitingRank
from disco_server.collectives.validation import Op
from disco_server.settings import SLOW_S


class Rows:
    """A channel in which the ranks at some places are absent."""

    def __init__(self, *places):
        self.places = list(places)

    def absent(self):
        return self.places


def waiting(*absent):
    """Ranks 4 to 7 in a barrier."""
    return WaitingRank(int(Op.BARRIER), 12, (4, 5, 6, 7), Rows(*absent))


def watch(me, look):
    """A watch that looks a thousand times a second, and what it says."""
    said = []
    return CollectiveWatch(me, look, 0.008, said.append), said


def test_a_long_wait_is_said_once_with_who_is_missing(eventually):
    """Its command and collective, who waits, and for whom."""
    one = waiting(1, 3)
    found, said = watch(4, lambda: one)
    eventually(lambda: said, what="a message")
    found.close()
    assert len(said) == 1
    assert "workers 4 and 6 have waited 0.008 s in barrier of command #12" in said[0]
    assert "for workers 5 and 7, which did not enter it yet" in said[0]


def test_only_one_of_those_who_wait_says_it(eventually):
    """The first of them."""
    one = waiting(3)
    first, said_first = watch(4, lambda: one)
    second, said_second = watch(5, lambda: one)
    eventually(lambda: said_first, what="a message")
    first.close()
    second.close()
    assert not said_second


def test_many_short_waits_are_none(eventually):
    """However long they take together; nor is something said where all have come."""
    looks = []

    def look():
        looks.append(waiting(1))
        return looks[-1]

    found, said = watch(4, look)
    complete = waiting()
    all_there, said_there = watch(4, lambda: looks.append(None) or complete)
    eventually(lambda: len(looks) > 100, what="looks")
    found.close()
    all_there.close()
    assert not said
    assert not said_there


def test_the_time_is_the_environments(monkeypatch):
    """30 seconds, or what it says, which must be a number."""
    monkeypatch.delenv("DISCO_SLOW_S", raising=False)
    assert SLOW_S.value() == 30
    monkeypatch.setenv("DISCO_SLOW_S", "2.5")
    assert SLOW_S.value() == 2.5
    monkeypatch.setenv("DISCO_SLOW_S", "soon")
    with pytest.raises(ConfigError, match=r"DISCO_SLOW_S.*'soon'"):
        SLOW_S.value()


@pytest.mark.parametrize("kind", [ThreadedSession, ProcessSession])
def test_a_session_names_the_worker_that_does_not_come(kind):
    """On the program's own standard error, while it goes on waiting; then all is well."""
    program = f"""
        import numpy as np
        import disco_client as di
        with di.{kind.__name__}(3) as session:
            session.import_python_module("disco_test_functions")
            ones = session.get_global_func("tests.rank_array")([2], "float32")
            session.allreduce(ones, ones)
            session.get_global_func("tests.sleep_on")(2, 1.5)
            session.allreduce(ones, ones)
            print(ones.numpy().tolist())
    """
    modules = str(Path(__file__).parents[2] / "worker_modules")
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)],
        env={**os.environ, "DISCO_SLOW_S": "0.4", "PYTHONPATH": modules},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert done.stdout == "[18.0, 18.0]\n"
    told = [line for line in done.stderr.splitlines() if "did not enter it yet" in line]
    assert len(told) == 1
    assert "workers 0 and 1 have waited 0.4 s in allreduce(sum) of command #" in told[0]
    assert "for worker 2" in told[0]
