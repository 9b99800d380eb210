"""Who hangs while ranks open their communicator, and when that may be said at all."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

from disco_client.errors import ConfigError
from disco_server.collectives.startup import CommunicatorStartup
from disco_server.settings import INIT_TIMEOUT_S


def opening(num_workers, *, waiting=(), pids=None):
    """One whose ranks are this process, unless told otherwise."""
    return CommunicatorStartup(
        num_workers,
        5.0,
        waiting=lambda: waiting,
        pid=lambda worker: (pids or {}).get(worker, os.getpid()),
    )


def test_the_limit_begins_when_the_last_rank_has_begun():
    """A rank may come as late as its program lets it; then the clock starts, once."""
    ranks = opening(3)
    assert ranks.begins(0) is None
    assert ranks.begins(2) is None
    assert ranks.begins(1) == 1


def test_a_second_attempt_has_a_limit_of_its_own():
    """After another library was wanted, all begin again, and are counted again."""
    ranks = opening(2)
    assert [ranks.begins(0), ranks.begins(1)] == [None, 1]
    ranks.ends(0)
    ranks.ends(1)
    assert [ranks.begins(1), ranks.begins(0)] == [None, 2]
    assert ranks.blame(1, [0, 1]) == ([], "")
    assert ranks.blame(2, [0, 1])[0] == [0, 1]


def test_what_others_count_begins_a_limit_once():
    """A node counts its own ranks; whether those of others have begun it is told, perhaps again."""
    ranks = opening(4)
    assert [ranks.begins_here(0), ranks.begins_here(1), ranks.begins_here(0)] == [1, 1, 2]
    assert ranks.begun_here == {0: 2, 1: 1}
    assert [ranks.all_begin(times) for times in (0, 1, 1, 3)] == [None, 1, None, 3]


def test_who_waits_for_others_is_not_blamed():
    """Only those that are neither done nor in a barrier; they are named."""
    ranks = opening(4, waiting=(0, 3))
    ranks.ends(1)
    blamed, why = ranks.blame(1, [0, 1, 2, 3])
    assert blamed == [2]
    assert why == (
        "was ended because the ranks did not meet within 5 s (DISCO_INIT_TIMEOUT_S) to open "
        "their communicator: not there is worker 2"
    )


def test_nobody_is_blamed_where_all_wait_for_another_node():
    """That node's daemon knows who it is."""
    assert opening(4, waiting=(0, 1)).blame(1, [0, 1]) == ([], "")


def test_a_stopped_process_is_blamed_before_those_that_run():
    """Others may spin inside MPI for it, and cannot be told from it otherwise."""
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"]) as child:
        try:
            child.send_signal(signal.SIGSTOP)
            os.waitid(os.P_PID, child.pid, os.WSTOPPED)
            blamed, why = opening(3, pids={1: child.pid}).blame(1, [0, 1, 2])
        finally:
            child.kill()
    assert blamed == [1]
    assert "not there are workers 0, 1 and 2; worker 1 did not run at all (stopped)" in why


def test_without_a_limit_nobody_is_watched():
    """0 is for ever."""
    assert INIT_TIMEOUT_S.value({"DISCO_INIT_TIMEOUT_S": "0"}) == 0
    endless = CommunicatorStartup(1, 0.0, waiting=lambda: (), pid=lambda _worker: 0)
    assert endless.begins(0) is None


def test_a_malformed_limit_is_refused():
    """With its name and what was expected."""
    assert INIT_TIMEOUT_S.value({}) == 120.0
    with pytest.raises(ConfigError, match="DISCO_INIT_TIMEOUT_S"):
        INIT_TIMEOUT_S.value({"DISCO_INIT_TIMEOUT_S": "soon"})
