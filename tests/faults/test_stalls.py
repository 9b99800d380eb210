"""Processes that stand still, alone and together: row 34.

Leases are short here, and so are the stalls, which are longer than these all the same.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from own_ports import own_port

from disco_client import connect, errors
from fault_tools.processes import frozen

WORKER_MODULES = Path(__file__).parents[1] / "worker_modules"
LEASE_S = 3.0
"""That of nodes, and of sessions."""

STALL_S = 4.0
BRIEF_S = 1.5

PROGRAM = """
import json, sys
import disco_client
from disco_client import connect
{before}
with {session} as session:
    session.import_python_module("disco_test_functions")
    count = session.get_global_func("tests.count")
    session.sync_all()
    print("ready", flush=True)
    for _ in sys.stdin:
        counted = count()
        workers = range(session.num_workers)
        print(json.dumps([counted.debug_get_from_remote(each) for each in workers]), flush=True)
"""


def start(daemons, *names, slots=1, node_lease=LEASE_S, session_lease=60.0, **env):
    """A controller, and daemons by their names; variables are those of all."""
    leases = ("--node-lease", node_lease, "--session-lease", session_lease)
    controller = daemons.controller(*leases, DISCO_HEARTBEAT_S="0.5", **env)
    options = ("--slots", slots, "--name")
    nodes = [daemons.worker(controller.address, *options, name, **env) for name in names]
    return controller, *nodes


@pytest.fixture(scope="module")
def pair(shared_daemons):
    """A controller and two nodes, for all tests that leave them whole."""
    return start(shared_daemons, "a", "b", FAULT_TEST="shared")


@contextlib.contextmanager
def program(session, before=""):
    """A client in a process of its own; gives the process, and what makes it go on a step."""
    command = [sys.executable, "-c", PROGRAM.format(session=session, before=before)]
    pipe = subprocess.PIPE
    env = {**os.environ, "PYTHONPATH": os.pathsep.join((str(WORKER_MODULES), *sys.path))}
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, env=env) as client:

        def step():
            client.stdin.write("\n")
            client.stdin.flush()
            return json.loads(client.stdout.readline())

        try:
            yield client, step
            client.stdin.close()
            assert client.wait(30) == 0
        finally:
            client.kill()


def stand_still(*turns):
    """Stops processes together; each turn lets some go on after so many seconds more."""
    with contextlib.ExitStack() as stack:
        stopped = [stack.enter_context(frozen_until_told(*who)) for _, who in turns]
        for (seconds, _), go_on in zip(turns, stopped, strict=True):
            time.sleep(seconds)
            go_on()


@contextlib.contextmanager
def frozen_until_told(*pids):
    """Stops processes until what it gives is called, or the block ends."""
    with contextlib.ExitStack() as stack:
        stack.enter_context(frozen(*pids))
        yield stack.close


def pids(*daemons):
    return [daemon.process.pid for daemon in daemons]


@pytest.mark.parametrize(
    "who",
    ["controller", "controller, then daemons", "daemons, then controller"],
)
def test_a_controller_that_stood_still_counts_nobody_s_silence(pair, who):
    """Row 34: alone or with the daemons, whoever goes on first; each call runs once."""
    controller, *nodes = pair
    alone, nodes = pids(controller), pids(*nodes)
    turns = {
        "controller": [(STALL_S, alone)],
        "controller, then daemons": [(STALL_S, alone), (BRIEF_S, nodes)],
        "daemons, then controller": [(BRIEF_S, nodes), (STALL_S, alone)],
    }[who]
    with connect(controller.address, num_workers=2, logs=False) as session:
        session.import_python_module("disco_test_functions")
        count = session.get_global_func("tests.count")
        before = count()
        stand_still(*turns)
        for number, found in enumerate((before, count()), start=1):
            assert [found.debug_get_from_remote(worker) for worker in range(2)] == [number] * 2


def test_client_and_controller_that_stood_still_together_go_on(pair):
    """Row 34: the nodes worked on meanwhile."""
    controller, *_ = pair
    with program(f"connect({controller.address!r}, num_workers=2, logs=False)") as (client, step):
        assert client.stdout.readline() == "ready\n"
        assert step() == [1, 1]
        stand_still((STALL_S, [client.pid]), (BRIEF_S, pids(controller)))
        assert step() == [2, 2]


def test_what_a_peer_says_nothing_for_is_not_forgiven(pair):
    """Row 34: a node that stays silent when the controller runs again is lost after the lease."""
    controller, silent, _ = pair
    with connect(controller.address, num_workers=2, logs=False) as session:
        session.sync_all()
        with frozen(silent.process.pid):
            stand_still((STALL_S, pids(controller)))
            with pytest.raises(errors.NodeLost, match="silent for more than 3 s") as lost:
                session.sync_all()
        assert lost.value.node == "a"


@pytest.mark.parametrize("recover", [None, "replay"])
def test_a_daemon_s_stall_is_survived_below_the_lease_and_is_a_loss_above_it(daemons, recover):
    """Row 34: above it the session ends, or goes on with the workers of a daemon that is back."""
    controller, node = start(daemons, "a")
    session = connect(controller.address, num_workers=1, logs=False, recover=recover, timeout=60)
    with session:
        session.import_python_module("disco_test_functions")
        count = session.get_global_func("tests.count")
        found = count()
        stand_still((LEASE_S / 2, pids(node)))
        assert found.debug_get_from_remote(0) == 1
        assert not session.recoveries
        found = count()
        stand_still((STALL_S, pids(node)))
        if recover is None:
            with pytest.raises(errors.NodeLost, match="silent for more than"):
                session.sync_all()
        else:
            assert found.debug_get_from_remote(0) == 2
            assert len(session.recoveries) == 1


def test_node_and_client_that_stood_still_find_a_controller_that_was_away(daemons, eventually):
    """Row 34: its absence counts only while they run, or each would have given up."""
    controller, node = start(daemons, "a", session_lease=LEASE_S)
    one = f"connect({controller.address!r}, num_workers=1, logs=False)"
    with program(one) as (client, step):
        assert client.stdout.readline() == "ready\n"
        controller.send(signal.SIGKILL)
        controller.wait()
        eventually(lambda: "not connected" in node.stderr, what="the node to notice")
        with frozen(client.pid, node.process.pid):
            time.sleep(STALL_S)
            again = ("--session-lease", LEASE_S, "--listen", controller.address)
            daemons.controller(*again, DISCO_HEARTBEAT_S="0.5")
        assert step() == [1]
        assert step() == [2]


def test_a_daemon_that_stood_still_does_not_blame_its_ranks(daemons, eventually):
    """Row 34: what a rank said meanwhile is read before the time to start MPI is over."""
    limit = {"DISCO_INIT_TIMEOUT_S": str(LEASE_S)}
    controller, node = start(daemons, "a", slots=2, node_lease=60, **limit)
    with connect(controller.address, num_workers=2, logs=False) as session:
        session.import_python_module("disco_test_functions")
        session.get_global_func("tests.stop_when_pmi_begins")(1)
        session.sync_all()
        ones = session.get_global_func("tests.rank_array")([2], "int64")
        session.allreduce(ones, ones)
        rank = psutil.Process(session.workers[1].pid)
        eventually(lambda: rank.status() == psutil.STATUS_STOPPED, what="the start of MPI")
        with frozen(node.process.pid):
            rank.resume()
            time.sleep(STALL_S)
        assert ones.numpy(1).tolist() == [3, 3]


SOCKET = """
import disco_server.embedded.sockets
disco_server.embedded.sockets._NODE_LEASE_S = {lease}
"""


def test_a_program_with_a_socket_session_that_stood_still_counts_nobody_s_silence(daemons):
    """Row 34: its controller stands still with it, and the other node goes on."""
    port = own_port()
    worker = ("--slots", "1", "--name", "other")
    daemons.worker(f"localhost:{port}", *worker, ready=False)
    opening = f"disco_client.SocketSession(2, 1, 1, 'localhost', {port}, logs=False)"
    with program(opening, SOCKET.format(lease=2 * LEASE_S)) as (client, step):
        assert client.stdout.readline() == "ready\n"
        assert step() == [1, 1]
        stand_still((2 * STALL_S, [client.pid]))
        assert step() == [2, 2]
