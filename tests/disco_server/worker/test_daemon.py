"""The worker daemon as a whole: its spare interpreters and its ranks' environment."""

from __future__ import annotations

from disco_client import connect


def test_warm_interpreters_are_ready_before_the_daemon_is(daemons, eventually, all_end):
    """A session gets them, and others take their place when it runs."""
    controller = daemons.controller()
    worker = daemons.worker(controller.address, "--slots", "2", "--warm", "2")
    idle = {child.pid for child in worker.family()}
    assert len(idle) == 2
    with connect(controller.address, num_workers=2) as session:
        assert {rank.pid for rank in session.workers} == idle
        eventually(lambda: len(worker.family()) == 4, what="the pool to be filled again")
    eventually(lambda: len(worker.family()) == 2, what="the session's ranks to end")
    all_end(idle)


def test_ranks_have_that_environment(open_session):
    """In a real rank the thread count is there, and PMI says which rank it is."""
    session = open_session(4)
    environment = session.get_global_func("tests.environment")
    threads = environment("OMP_NUM_THREADS").debug_get_from_remote(0)
    assert int(threads) >= 1
    ranks = environment("PMI_RANK")
    assert [ranks.debug_get_from_remote(worker) for worker in range(4)] == list("0123")
