"""What a node does for the sessions that run on it."""

from __future__ import annotations

import os
import signal

import numpy as np
import psutil
import pytest

from disco_client import connect, errors

REFUSE_TO_START = """
import os, sys
if "disco_server.rank.fork_server" in sys.orig_argv:
    print("this interpreter is broken", file=sys.stderr, flush=True)
    os._exit(41)
"""


def test_workers_output_arrives_with_its_rank(session, printed, eventually):
    """Each line that a worker prints is on the client's standard error, named."""
    session.get_global_func("tests.say")("a line\nand another")
    session.sync_all()
    eventually(lambda: printed().count("and another") == 4, what="every worker's output")
    for rank in session.workers:
        for text in ("a line", "and another"):
            assert f"[worker {rank.worker} {rank.node}] {text}\n" in printed()


def test_a_crash_stays_inside_its_session(open_session):
    """A second session on the same nodes does not notice."""
    doomed, other = open_session(2), open_session(2)
    total = other.empty((4,), "float64")
    doomed.get_global_func("tests.kill_on")(0)
    with pytest.raises(errors.WorkerLost):
        doomed.sync_all()
    other.allreduce(other.broadcast(np.ones(4)), total)
    np.testing.assert_array_equal(total.numpy(1), [2, 2, 2, 2])


def test_a_worker_that_dies_while_idle_is_noticed(session, eventually):
    """No command is needed: its end is known at once, whoever killed it."""
    os.kill(session.workers[2].pid, signal.SIGKILL)
    eventually(lambda: session._core.log.closed is not None, what="the session's end")
    with pytest.raises(errors.WorkerLost) as raised:
        session.sync_all()
    assert (raised.value.worker, raised.value.exit_status) == (2, -signal.SIGKILL)


def test_a_death_is_noticed_though_a_child_of_the_worker_lives(open_session, eventually):
    """What the worker started holds its pipes open, and yet WorkerLost comes at once."""
    session = open_session(1)
    child = session.get_global_func("tests.leave_child")().debug_get_from_remote(0)
    os.kill(session.workers[0].pid, signal.SIGKILL)
    eventually(lambda: session._core.log.closed is not None, what="the session's end")
    with pytest.raises(errors.WorkerLost):
        session.sync_all()
    eventually(lambda: not psutil.pid_exists(child), what="the child's end")


def test_a_worker_that_cannot_start_is_reported_with_its_output(daemons, tmp_path):
    """WorkerLost says where, how and with which last words; the slots are free again."""
    (tmp_path / "sitecustomize.py").write_text(REFUSE_TO_START)
    controller = daemons.controller()
    path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    daemons.worker(controller.address, "--slots", "1", "--name", "broken", PYTHONPATH=path)
    for _ in range(2):
        with pytest.raises(errors.WorkerLost, match="could not be started on node") as raised:
            connect(controller.address, num_workers=1, timeout=10)
        error = raised.value
        assert (error.worker, error.node, error.exit_status) == (0, "broken", 41)
        assert "this interpreter is broken" in error.output


def test_only_what_the_daemon_allows_is_imported(daemons):
    """Numpy and the patterns of --allow-module, and nothing else."""
    controller = daemons.controller()
    daemons.worker(controller.address, "--slots", "1")
    with connect(controller.address, num_workers=1) as session:
        session.import_python_module("disco_test_functions")
        session.get_global_func("numpy.linalg.norm")
        session.sync_all()
        session.import_python_module("subprocess")
        with pytest.raises(errors.NotAllowed, match="subprocess"):
            session.sync_all()
        session.get_global_func("os.system")
        with pytest.raises(errors.FunctionNotFound, match="'os' is not on its allow-list"):
            session.sync_all()


def test_a_name_that_a_refused_module_registers_shows_that_first(daemons):
    """By whatever call it is noticed; and says so when the refusal has been seen."""
    controller = daemons.controller()
    daemons.worker(controller.address, "--slots", "1")
    with connect(controller.address, num_workers=1) as session:
        for noticed in (lambda f: f(1).debug_get_from_remote(0), lambda _: session.sync_all()):
            session.import_python_module("scaling")
            scale = session.get_global_func("my.scale")
            with pytest.raises(errors.NotAllowed, match="--allow-module scaling"):
                noticed(scale)
        with pytest.raises(errors.FunctionNotFound) as later:
            scale(1).debug_get_from_remote(0)
    said = str(later.value)
    assert "no function named 'my.scale' was registered on this worker" in said
    assert "import_python_module('scaling') was refused on this worker" in said
    assert "--allow-module scaling" in said
    assert "'my' is not on" not in said


def test_an_ordinary_end_is_no_warning(daemons, eventually):
    """A session that is closed ends its ranks in order, and the log has no complaint."""
    controller = daemons.controller()
    worker = daemons.worker(controller.address, "--slots", "2")
    with connect(controller.address, num_workers=2) as session:
        total = session.empty((2,), "float32")
        session.allreduce(session.broadcast(np.ones(2, "float32")), total)
        session.sync_all()
    eventually(lambda: "session ended on" in worker.stderr, what="the end of the session")
    assert "WARNING" not in worker.stderr
    assert "ERROR" not in worker.stderr
    assert worker.ranks() == []
