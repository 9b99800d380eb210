"""Daemons that stand still, are told to leave, lack something, or lose the time."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from disco_client import connect, errors
from fault_tools.clock import Clock, NoClock

WORKER_MODULES = Path(__file__).parents[1] / "worker_modules"

HOLDS_THE_LOCK = """
import ctypes, signal
def hold(*_):
    ctypes.PyDLL(None).sleep(6)  # and never lets another thread of Python run
signal.signal(signal.SIGUSR2, hold)
"""


@pytest.fixture
def in_own_mounts(tmp_path):
    """Makes a prefix for a daemon that sees a small file system at a place of its own."""

    def prefix(place, size):
        Path(place).mkdir(exist_ok=True)
        mount = f"mount -t tmpfs -o size={size} small {place}"
        tried = subprocess.run(
            ["unshare", "-m", "sh", "-c", mount], capture_output=True, text=True, check=False
        )
        if tried.returncode:
            pytest.skip(f"this machine lets us mount nothing: {tried.stderr.strip()}")
        return ["unshare", "-m", "sh", "-c", f'{mount} && exec "$@"', "sh"]

    if shutil.which("unshare") is None or shutil.which("nsenter") is None:
        pytest.skip("this machine has no unshare and nsenter")
    return prefix


NO_ROOM = "/dev/shm has too little room"
HOW_MUCH = "MPI needs 27 MiB there to start the workers of this session, 2 on this machine"

POOR_PROGRAM = """
import numpy as np
import disco_client

if __name__ == "__main__":
    with disco_client.ProcessSession(2) as session:
        ones = session.copy_to_worker_0(np.ones(4))
        assert session.get_global_func("numpy.sum")(ones).get() == 4
        try:
            session.allreduce(session.empty((4,), "float64"), session.empty((4,), "float64"))
            session.sync_all()
        except disco_client.WorkerLost as lost:
            print(lost)
"""


def inside(daemon, command):
    """Runs a command with a daemon's view of file systems."""
    within = ["nsenter", "-t", str(daemon.process.pid), "-m", "sh", "-c", command]
    subprocess.run(within, check=True)


def reduces(session):
    """Whether a collective of a session works."""
    total = session.empty((4,), "float64")
    session.allreduce(session.broadcast(np.ones(4)), total)
    return total.numpy().tolist() == [session.num_workers] * 4


# Row 5 -------------------------------------------------------------------------------------


def test_a_daemon_whose_python_is_stuck_is_lost_though_its_connection_lives(daemons, tmp_path):
    """Row 5: gRPC answers pings meanwhile; the missing heartbeat tells, and it comes back."""
    (tmp_path / "sitecustomize.py").write_text(HOLDS_THE_LOCK)
    path = os.pathsep.join([str(tmp_path), str(WORKER_MODULES)])
    controller = daemons.controller("--node-lease", "3", DISCO_HEARTBEAT_S="0.5")
    options = ("--slots", "1", "--name", "stuck")
    daemon = daemons.worker(controller.address, *options, PYTHONPATH=path)
    session = connect(controller.address, num_workers=1, logs=False)
    session.sync_all()
    daemon.send(signal.SIGUSR2)
    with pytest.raises(errors.NodeLost, match="silent for more than 3 s") as raised:
        # The worker itself is well, and its daemon does not relay.
        session.sync_all()
    assert raised.value.node == "stuck"
    session.shutdown()
    with connect(controller.address, num_workers=1, logs=False, timeout=20) as another:
        another.sync_all()


# Row 22 ------------------------------------------------------------------------------------


@pytest.mark.parametrize("times", [1, 2])
def test_a_worker_daemon_that_is_told_to_leave_does(daemons, all_end, times):
    """Row 22: with work running it ends its session by its name and exits with 0, in grace."""
    controller = daemons.controller()
    daemon = daemons.worker(controller.address, "--slots", "1", "--name", "leaving")
    session = connect(controller.address, num_workers=1, logs=False)
    session.import_python_module("disco_test_functions")
    session.get_global_func("tests.stuck")()
    for _ in range(times):
        daemon.send(signal.SIGTERM)
    with pytest.raises(errors.NodeLost) as raised:
        session.sync_all()
    assert raised.value.node == "leaving"
    assert daemon.wait(10) == 0
    all_end(rank.pid for rank in session.workers)
    session.shutdown()


# Row 23 ------------------------------------------------------------------------------------


def test_a_node_without_shared_memory_says_so_and_recovers(daemons, in_own_mounts):
    """Row 23: MPI cannot start in a full /dev/shm; the daemon lives, and starts it when freed."""
    controller = daemons.controller()
    daemons.prefix = in_own_mounts("/dev/shm", "64k")
    daemon = daemons.worker(controller.address, "--slots", "2")
    poor = connect(controller.address, num_workers=2, logs=False)
    with poor, pytest.raises(errors.WorkerLost, match=NO_ROOM) as raised:
        reduces(poor)
    assert "of its 0.1 MiB" in str(raised.value)
    assert HOW_MUCH in str(raised.value)
    inside(daemon, "mount -o remount,size=256m /dev/shm")
    with connect(controller.address, num_workers=2, logs=False, timeout=20) as session:
        assert reduces(session)
    assert daemon.process.poll() is None


def test_a_program_without_shared_memory_is_told_before_and_after(in_own_mounts):
    """Row 23: its workers do all but collectives; their death says what /dev/shm lacks."""
    command = [*in_own_mounts("/dev/shm", "1m"), sys.executable, "-c", POOR_PROGRAM]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    assert not done.returncode, done.stderr
    warned = [line for line in done.stderr.splitlines() if NO_ROOM in line]
    assert len(warned) == 1
    assert "collectives of this session may end it" in warned[0]
    for part in (NO_ROOM, "1.0 MiB", HOW_MUCH, "--shm-size", "SIGBUS"):
        assert part in done.stdout, part


def test_a_session_that_does_not_fit_beside_others_says_so_at_its_start(
    daemons, in_own_mounts, printed, eventually
):
    """Row 23: before a collective fails, and only where there is too little room for it."""
    controller = daemons.controller()
    daemons.prefix = in_own_mounts("/dev/shm", "32m")
    daemon = daemons.worker(controller.address, "--slots", "4")
    with connect(controller.address, num_workers=2) as first:
        assert reduces(first)
        assert NO_ROOM not in printed()
        with connect(controller.address, num_workers=2) as second:
            assert eventually(lambda: HOW_MUCH in printed(), what="the warning")
            second.sync_all()
            inside(daemon, "mount -o remount,size=256m /dev/shm")
            assert reduces(second)


def test_a_node_without_processes_says_so_and_recovers(node, limit):
    """Row 23: no fork, no rank: WorkerLost names why; when there is room again it starts."""
    controller, daemon = node(1)
    group = limit("pids", 1)
    for process in (daemon.process, *daemon.family()):
        group.take(process.pid)
    with pytest.raises(errors.WorkerLost, match="no process could be started"):
        connect(controller.address, num_workers=1, logs=False)
    (group.procs.parent / "pids.max").write_text("100")
    with connect(controller.address, num_workers=1, logs=False, timeout=20) as session:
        session.sync_all()
    assert daemon.process.poll() is None


def test_a_full_disk_fails_the_checkpoint_and_not_the_session(daemons, in_own_mounts, tmp_path):
    """Row 23: BadFile says why and the session goes on; with room it saves."""
    folder = tmp_path / "disk"
    controller = daemons.controller()
    daemons.prefix = in_own_mounts(folder, "1m")
    options = ("--slots", "1", "--allow-save", str(folder))
    daemon = daemons.worker(controller.address, *options)
    with connect(controller.address, num_workers=1, logs=False) as session:
        mesh = session.mesh((1,), ("x",))
        tensor = session.distribute(np.ones(1 << 20, "float32"), mesh, "S[0]")
        with pytest.raises(errors.RemoteError, match="no space left on device"):
            session.save(str(folder / "checkpoint"), {"weights": tensor})
        assert tensor.numpy()[-1] == 1
        inside(daemon, f"mount -o remount,size=64m {folder}")
        session.save(str(folder / "checkpoint"), {"weights": tensor})


# Row 26 ------------------------------------------------------------------------------------


def test_a_wall_clock_that_jumps_kills_nobody(daemons, tmp_path):
    """Row 26: an hour ahead and an hour back, leases of seconds: nothing is lost or late."""
    try:
        clock = Clock(tmp_path)
    except NoClock as error:
        pytest.skip(str(error))
    controller = daemons.controller(
        *("--node-lease", "3", "--session-lease", "3"), DISCO_HEARTBEAT_S="0.5", **clock.env
    )
    daemons.worker(controller.address, "--slots", "1", **clock.env)
    with connect(controller.address, num_workers=1, logs=False) as session:
        session.import_python_module("disco_test_functions")
        now = session.get_global_func("tests.now")
        for hours in (1, -1, 0):
            clock.jump(hours * 3600)
            seen = now().debug_get_from_remote(0) - time.time()
            assert abs(seen - hours * 3600) < 600
            time.sleep(0.7)  # what would take the jump for silence gets the time to do so
            assert reduces(session)
