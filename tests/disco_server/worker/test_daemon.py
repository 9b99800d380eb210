"""The worker daemon as a whole: what forks its ranks, and their environment."""

from __future__ import annotations

import os
import signal

import pytest

from disco_client import connect, errors


def test_the_fork_server_is_ready_before_the_daemon_is(daemons, eventually):
    """A session has its ranks and their keeper, and afterwards the server is left."""
    controller = daemons.controller()
    worker = daemons.worker(controller.address, "--slots", "2")
    (server,) = worker.family()
    assert worker.ranks() == []
    with connect(controller.address, num_workers=2) as session:
        assert {child.pid for child in worker.ranks()} == {rank.pid for rank in session.workers}
        (keeper,) = server.children()
        assert {rank.ppid() for rank in worker.ranks()} == {keeper.pid}
    eventually(lambda: worker.family() == [server], what="the session's processes to end")


def test_ranks_have_that_environment(open_session):
    """In a real rank the thread count is there, and PMI says which rank it is."""
    session = open_session(4)
    environment = session.get_global_func("tests.environment")
    threads = environment("OMP_NUM_THREADS").debug_get_from_remote(0)
    assert int(threads) >= 1
    ranks = environment("PMI_RANK")
    assert [ranks.debug_get_from_remote(worker) for worker in range(4)] == list("0123")


@pytest.mark.parametrize("killed", [False, True], ids=["shut down", "lost"])
def test_a_daemon_for_one_session_leaves_with_it(daemons, killed):
    """However that ends, its exit status is 0; meanwhile it takes no other one."""
    controller = daemons.controller()
    worker = daemons.worker(controller.address, "--slots", "2", "--once")
    with connect(controller.address, num_workers=1) as session:
        with pytest.raises(errors.NoSlots):
            connect(controller.address, num_workers=1, timeout=2.0)
        if killed:
            os.kill(session.workers[0].pid, signal.SIGKILL)
            with pytest.raises(errors.WorkerLost):
                session.sync_all()
    assert worker.wait() == 0
