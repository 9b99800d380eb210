"""The worker daemon as a whole: its spare interpreters and its ranks' environment."""

from __future__ import annotations

import pytest

from disco_client import connect
from disco_server.config import WorkerConfig
from disco_server.worker.daemon import rank_environment


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


def test_ranks_share_the_cores(monkeypatch):
    """A rank's numerical libraries get as many threads as the setting says."""
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"):
        monkeypatch.delenv(name, raising=False)
    environ = rank_environment(WorkerConfig(slots=4, rank_threads=3))
    assert environ["OMP_NUM_THREADS"] == environ["MKL_NUM_THREADS"] == "3"


def test_what_a_person_set_stands(monkeypatch):
    """A thread count in the daemon's environment is not overruled."""
    monkeypatch.setenv("OPENBLAS_NUM_THREADS", "7")
    assert rank_environment(WorkerConfig(slots=4))["OPENBLAS_NUM_THREADS"] == "7"


@pytest.mark.parametrize("name", ["PMI_FD", "PMI_RANK", "DISCO_AUTH_TOKEN", "DISCO_TLS_KEY"])
def test_secrets_and_other_launchers_stay_outside(monkeypatch, name):
    """What a rank must not know, or would mistake for its own, is left out."""
    monkeypatch.setenv(name, "something")
    monkeypatch.setenv("AN_ORDINARY_ONE", "kept")
    environ = rank_environment(WorkerConfig(slots=1))
    assert name not in environ
    assert environ["AN_ORDINARY_ONE"] == "kept"


def test_ranks_have_that_environment(open_session):
    """In a real rank the thread count is there, and PMI says which rank it is."""
    session = open_session(4)
    environment = session.get_global_func("tests.environment")
    threads = environment("OMP_NUM_THREADS").debug_get_from_remote(0)
    assert int(threads) >= 1
    ranks = environment("PMI_RANK")
    assert [ranks.debug_get_from_remote(worker) for worker in range(4)] == list("0123")
