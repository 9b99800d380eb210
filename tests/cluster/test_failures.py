"""What a program sees when a function, a worker, a daemon or a client goes wrong."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import psutil
import pytest

from disco_client import connect, errors
from disco_server.collectives.mpich_memory import _hash_name, kvsname

QUICK_S = 5.0
"""The promise is 2 s on a machine that does nothing else."""

CLIENT = """
import sys, time
import disco_client
session = disco_client.connect(sys.argv[1], num_workers=2, name="doomed")
print(*(rank.pid for rank in session.workers), flush=True)
time.sleep(600)
"""


def files_of_mpi(session):
    """What MPI has in the file system for a session."""
    mark = _hash_name(kvsname(int(session.session_id, 16)))
    return list(Path("/dev/shm").glob(f"mpich_*_{mark:x}_*"))


def use_until_lost(session):
    """Uses a session until a call says that it is lost."""
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        session.sync_all()


def test_a_function_that_raises_on_one_rank_is_reported_and_the_session_works_on(session):
    """The error names rank, node, function and both lines; later commands run as ever."""
    fail_on = session.get_global_func("tests.fail_on")
    result = fail_on(2, "no such luck")  # the issuing line
    with pytest.raises(errors.RemoteException) as raised:
        session.sync_all()
    error = raised.value
    assert (error.worker, error.node) == (2, session.workers[2].node)
    assert error.function == "tests.fail_on"
    assert error.exception == "ValueError"
    assert "raise ValueError(text)" in error.remote_traceback
    assert error.issued_at.filename == __file__
    assert "the issuing line" in Path(__file__).read_text().splitlines()[error.issued_at.line - 1]
    assert [failure.worker for failure in error.failures] == [2]
    # The others have their result, and the first cause stays where there is none.
    assert [result.debug_get_from_remote(worker) for worker in (0, 1, 3)] == [0, 1, 3]
    with pytest.raises(errors.RemoteException, match="no such luck"):
        result.debug_get_from_remote(2)
    total = session.empty((3,), "float64")
    session.allreduce(session.broadcast(np.ones(3)), total)
    np.testing.assert_array_equal(total.numpy(1), [4, 4, 4])


def test_what_a_worker_started_ends_with_its_session(session, all_end):
    """A process that a function left behind does not outlive the session."""
    leave = session.get_global_func("tests.leave_child")()
    children = [leave.debug_get_from_remote(worker) for worker in range(4)]
    assert all(psutil.pid_exists(pid) for pid in children)
    session.shutdown()
    all_end(children)


def test_a_killed_client_s_slots_are_free_after_the_lease(daemons, all_end):
    """Its session ends by itself, its processes too, and another client gets the slots."""
    controller = daemons.controller("--session-lease", "0.5")
    daemons.worker(controller.address, "--slots", "2")
    client = subprocess.Popen(
        [sys.executable, "-c", CLIENT, controller.address], stdout=subprocess.PIPE, text=True
    )
    with client:
        ranks = [int(word) for word in client.stdout.readline().split()]
        assert all(map(psutil.pid_exists, ranks))
        client.kill()
    with connect(controller.address, num_workers=2, timeout=20) as session:
        assert not {rank.pid for rank in session.workers} & set(ranks)
    all_end(ranks)


def test_a_killed_worker_daemon_leaves_no_process(daemons, all_end):
    """Its ranks and what forks them end with it, and the session says NodeLost."""
    controller = daemons.controller()
    doomed = daemons.worker(controller.address, "--slots", "2", "--name", "doomed")
    survivor = daemons.worker(controller.address, "--slots", "2", "--name", "survivor")
    session = connect(controller.address, num_workers=4, logs=False)
    total = session.empty((8,), "float64")
    session.allreduce(session.broadcast(np.ones(8)), total)
    session.sync_all()
    family = doomed.family()
    ranks = [rank.pid for rank in session.workers]
    assert {rank.pid for rank in session.workers if rank.node == "doomed"} <= {
        child.pid for child in family
    }
    began = time.monotonic()
    doomed.send(signal.SIGKILL)
    with pytest.raises(errors.NodeLost) as raised:
        use_until_lost(session)
    assert time.monotonic() - began < QUICK_S
    assert raised.value.node == "doomed"
    session.shutdown()
    all_end(family)
    with connect(controller.address, num_workers=2, logs=False) as another:
        assert {rank.node for rank in another.workers} == {"survivor"}
    all_end(ranks)
    assert survivor.process.poll() is None
    assert not files_of_mpi(session)


def test_a_stopped_worker_daemon_is_lost_after_the_lease(daemons):
    """One that is silent but connected counts as gone once its lease is over."""
    controller = daemons.controller("--node-lease", "3", DISCO_HEARTBEAT_S="1")
    frozen = daemons.worker(controller.address, "--slots", "1", "--name", "frozen")
    session = connect(controller.address, num_workers=1, logs=False)
    session.sync_all()
    frozen.send(signal.SIGSTOP)
    with pytest.raises(errors.NodeLost, match="silent for more than 3 s") as raised:
        session.sync_all()
    assert raised.value.node == "frozen"
    session.shutdown()
    # It may come back, and then takes sessions again.
    frozen.send(signal.SIGCONT)
    with connect(controller.address, num_workers=1, logs=False) as another:
        another.sync_all()


def test_a_killed_controller_that_stays_away_is_reported_to_its_clients(daemons):
    """When the lease is over the session's next call says ControllerLost, and the ranks end."""
    controller = daemons.controller()
    worker = daemons.worker(controller.address, "--slots", "2")
    session = connect(controller.address, num_workers=2, logs=False)
    ranks = {psutil.Process(rank.pid) for rank in session.workers}
    assert ranks <= set(worker.family())
    controller.send(signal.SIGKILL)
    with pytest.raises(errors.ControllerLost):
        use_until_lost(session)
    session.shutdown()
    gone, alive = psutil.wait_procs(ranks, timeout=20)
    assert len(gone) == 2
    assert not alive


def test_a_session_that_nobody_closed_ends_with_its_client(cluster, all_end):
    """A program that simply returns leaves no session and no process."""
    program = (
        "import sys, disco_client\n"
        "s = disco_client.connect(sys.argv[1], num_workers=2)\n"
        "s.sync_all()\n"
        "print(*(rank.pid for rank in s.workers))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, cluster.address],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PYTHONWARNINGS": "error"},
    )
    assert done.stderr == ""
    pids = [int(word) for word in done.stdout.split()]
    assert len(pids) == 2
    all_end(pids)
