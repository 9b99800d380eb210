"""Workers of several nodes, each with an environment of its own, hash texts alike."""

from __future__ import annotations

import os
import signal

import psutil

from disco_client import connect


def hashes(session):
    """How each worker hashes a text."""
    session.import_python_module("disco_test_functions")
    return session.get_global_func("tests.hash_of")("x").get_all()


def test_workers_hash_alike_whatever_their_daemons_environments_say(daemons, all_end):
    """Over 2 x 2 workers; also those that another process forks after the first one was lost."""
    controller = daemons.controller()
    first = daemons.worker(controller.address, "--slots", 2, PYTHONHASHSEED="7", DISCO_NAME="one")
    daemons.worker(controller.address, "--slots", 2, PYTHONHASHSEED="random", DISCO_NAME="two")
    with connect(controller.address, num_workers=4) as session:
        assert {place.node for place in session.workers} == {"one", "two"}
        before = hashes(session)
    assert before == [before[0]] * 4
    (server,) = psutil.Process(first.process.pid).children()
    os.kill(server.pid, signal.SIGKILL)
    all_end([server])
    with connect(controller.address, num_workers=4, timeout=30) as session:
        assert hashes(session) == before
