"""Sessions whose controller and node 0 are this process; other nodes are real daemons."""

from __future__ import annotations

import gc
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

import numpy as np
import psutil
import pytest
from own_ports import own_port

import disco_client as di

WORKER_MODULES = Path(__file__).parents[2] / "worker_modules"
FUNCTIONS = "disco_test_functions"


@pytest.fixture(autouse=True)
def functions(monkeypatch):
    """Lets the workers of this process find the tests' functions, as they find all it can."""
    monkeypatch.syspath_prepend(str(WORKER_MODULES))


@pytest.fixture
def open_socket_session():
    """Opens sessions that end with the test."""
    opened = []

    def open_one(*args, **options):
        session = di.SocketSession(*args, **options)
        opened.append(session)
        return session

    yield open_one
    for session in opened:
        session.shutdown()


def start_node(daemons, address, slots, *options):
    """A worker daemon that will find its controller when there is one."""
    return daemons.worker(address, "--slots", str(slots), *options, ready=False)


def rank_pids(session):
    return [rank.pid for rank in session.workers]


def gone(pids):
    return not any(psutil.pid_exists(pid) for pid in pids)


def sum_of_ranks(session):
    """What a global allreduce of each worker's number plus one gives on every worker."""
    session.import_python_module(FUNCTIONS)
    ref = session.get_global_func("tests.rank_array")([3], "int64")
    session.allreduce(ref, ref, in_group=False)
    return [ref.numpy(worker).tolist() for worker in range(session.num_workers)]


# One node --------------------------------------------------------------------------


def test_a_session_of_one_node_needs_nobody_else(open_socket_session, eventually):
    """Its workers descend from this process, and nothing is left after it."""
    before = set(threading.enumerate())
    session = open_socket_session(1, 2, 2, "localhost", 0)
    assert isinstance(session, di.Session)
    assert (session.num_workers, session.num_groups) == (2, 2)
    host, _, port = session.address.rpartition(":")
    assert host == "localhost"
    assert 0 < int(port) < 65536
    pids = rank_pids(session)
    assert set(pids) <= {child.pid for child in psutil.Process().children(recursive=True)}
    assert [(rank.worker, rank.node) for rank in session.workers] == [(0, "node-0"), (1, "node-0")]
    assert sum_of_ranks(session) == [[3, 3, 3]] * 2
    large = np.arange(1 << 16, dtype="float64")
    assert (session.copy_to_worker_0(large).numpy() == large).all()
    session.shutdown()
    session.shutdown()
    assert gone(pids)
    with socket.create_server(("127.0.0.1", int(port))):
        pass  # the port is free again
    new = set(threading.enumerate()) - before
    assert "disco-node-0" not in {thread.name for thread in new}


def test_several_sessions_live_side_by_side(open_socket_session):
    """Each with a port and workers of its own."""
    first = open_socket_session(1, 1, 1, "127.0.0.1", 0)
    second = open_socket_session(1, 1, 1, "127.0.0.1", 0)
    assert first.address != second.address
    first.shutdown()
    assert sum_of_ranks(second) == [[1, 1, 1]]


def test_its_workers_outlive_the_thread_that_opened_it(open_socket_session):
    """They end with the session, whoever made it."""
    opened = []
    thread = threading.Thread(
        target=lambda: opened.append(open_socket_session(1, 1, 1, "localhost", 0))
    )
    thread.start()
    thread.join()
    (session,) = opened
    assert sum_of_ranks(session) == [[1, 1, 1]]


def test_a_forgotten_session_ends_its_workers(eventually):
    """When its last reference goes, without a shutdown."""
    session = di.SocketSession(1, 1, 1, "localhost", 0)
    session.sync_all()
    pids = rank_pids(session)
    del session
    gc.collect()
    eventually(lambda: gone(pids), what="the ranks to end")


# Several nodes ---------------------------------------------------------------------


def test_it_waits_for_its_nodes_and_says_how_to_start_them(daemons, printed, eventually):
    """The printed command brings a node, whose surplus slots stay unused."""
    opened = []
    opening = threading.Thread(
        target=lambda: opened.append(di.SocketSession(2, 2, 2, "localhost", 0, timeout=50))
    )
    opening.start()
    eventually(lambda: printed().endswith("\n"), what="a line about the wait")
    said = printed()
    begin = "disco: waiting for 1 other node, 0 came; on each: disco-worker --controller "
    assert said.startswith(begin)
    address, option, slots = said.removeprefix(begin).split()
    assert (option, slots) == ("--slots", "2")
    small = start_node(daemons, address, 1, "--name", "small")
    eventually(
        lambda: "expected a node with at least 2 slots, got 1" in small.stderr,
        what="the refusal of a small node",
    )
    large = start_node(daemons, address, 3, "--name", "large")
    opening.join(50)
    (session,) = opened
    with session:
        assert session.address == address
        nodes = [rank.node for rank in session.workers]
        assert nodes == ["node-0", "node-0", "large", "large"]
        assert sum_of_ranks(session) == [[10, 10, 10]] * 4
    assert large.process.poll() is None


def test_nodes_wait_for_the_next_session_at_the_same_address(daemons, eventually):
    """They hear that one is over, end what ran there, and serve the next program."""
    port = own_port()
    worker = start_node(daemons, f"localhost:{port}", 1, "--name", "a")
    for _ in range(2):
        with di.SocketSession(2, 1, 1, "localhost", port, timeout=50) as session:
            pids = rank_pids(session)
            session.sync_all()
        assert gone(pids)
        eventually(lambda: "its session is over" in worker.stderr, what="the goodbye")
    assert worker.process.poll() is None


def test_a_node_that_goes_away_ends_the_session(daemons):
    """The error names it; node 0 ends with the session."""
    port = own_port()
    worker = daemons.worker(
        f"localhost:{port}",
        "--slots",
        "1",
        "--name",
        "frail",
        "--allow-module",
        "time",
        ready=False,
    )
    with di.SocketSession(2, 1, 1, "localhost", port, timeout=50) as session:
        session.sync_all()
        worker.send(signal.SIGKILL)
        sleep = session.get_global_func("time.sleep")
        with pytest.raises(di.NodeLost, match="frail") as lost:
            sleep(600).debug_get_from_remote(1)
        assert lost.value.node == "frail"


def test_too_few_nodes_are_an_error_that_says_what_to_run():
    """How many came, and the very command; nothing stays behind."""
    before = {child.pid for child in psutil.Process().children()}
    with pytest.raises(di.NoSlots) as missing:
        di.SocketSession(3, 2, 1, "localhost", 0, timeout=0.2)
    assert "0 of 2 other nodes joined" in str(missing.value)
    assert "disco-worker --controller localhost:" in str(missing.value)
    assert "--slots 2" in str(missing.value)
    assert isinstance(missing.value, TimeoutError)
    assert {child.pid for child in psutil.Process().children()} <= before


def test_nobody_can_open_a_session_at_the_address(open_socket_session):
    """It is for nodes; the workers serve this program alone."""
    session = open_socket_session(1, 1, 1, "localhost", 0)
    with pytest.raises(di.ConnectionFailed):
        di.connect(session.address, num_workers=1, timeout=5)
    session.sync_all()


# What is refused -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("args", "text"),
    [
        ((0, 1, 1, "localhost", 0), "num_nodes"),
        (("2", 1, 1, "localhost", 0), "num_nodes"),
        ((1, 0, 1, "localhost", 0), "num_workers_per_node"),
        ((1, 2.0, 1, "localhost", 0), "num_workers_per_node"),
        ((1, 2, 3, "localhost", 0), "num_groups to divide the 2 workers"),
        ((2, 1, 0, "localhost", 0), "num_groups"),
        ((5000, 1, 1, "localhost", 0), "num_workers from 1 to 4096"),
        ((1, 1, 1, "", 0), "host"),
        ((1, 1, 1, None, 0), "host"),
        ((1, 1, 1, "no such host", 0), "host"),
        ((1, 1, 1, "localhost", -1), "port"),
        ((1, 1, 1, "localhost", 65536), "port"),
        ((1, 1, 1, "localhost", "7600"), "port"),
        ((1, 1, 1, "192.0.2.1", 0), "host: 192.0.2.1:0 can be reached from other machines"),
    ],
)
def test_wrong_arguments_are_refused_at_once(args, text):
    """Before anything is started or waited for."""
    with pytest.raises(di.ConfigError, match=text):
        di.SocketSession(*args)


def test_an_address_of_another_machine_is_refused():
    """Also where a person takes the risk of an open door."""
    with pytest.raises(di.ConfigError, match=r"cannot listen on 203\.0\.113\.1:0"):
        di.SocketSession(1, 1, 1, "203.0.113.1", 0, insecure=True)


def test_a_temporary_folder_with_too_long_a_name_is_refused(tmp_path, monkeypatch):
    """The variable and both lengths are named, and nothing stays in the folder."""
    folder = tmp_path / ("x" * 100)
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    with pytest.raises(di.ConfigError, match=r"TMPDIR: expected a path of at most 100 bytes.* got"):
        di.SocketSession(1, 1, 1, "localhost", 0)
    assert not list(folder.iterdir())


def test_a_port_in_use_is_refused():
    """With the address, and what to do."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(di.ConfigError, match=f"cannot listen on 127.0.0.1:{port}.*port 0"):
            di.SocketSession(1, 1, 1, "localhost", port)


# However it ends -------------------------------------------------------------------

PROGRAM = """
import sys
import time
import disco_client as di

session = di.SocketSession({nodes}, 2, 1, "localhost", {port}, timeout=50)
session.get_global_func("numpy.zeros")(3)
session.sync_all()
print(*(rank.pid for rank in session.workers), flush=True)
{then}
"""


def run_program(nodes, port, then):
    return subprocess.Popen(
        [sys.executable, "-c", PROGRAM.format(nodes=nodes, port=port, then=then)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def pids_of(program):
    return [int(word) for word in program.stdout.readline().split()]


def test_killing_the_program_ends_every_worker(daemons, eventually):
    """Node 0's by the kernel, the others' by their daemon, which waits for the next one."""
    port = own_port()
    worker = start_node(daemons, f"localhost:{port}", 2, "--name", "b")
    with run_program(2, port, "time.sleep(600)") as program:
        pids = pids_of(program)
        assert len(pids) == 4
        program.kill()
    eventually(lambda: gone(pids), what="the ranks to end")
    assert worker.process.poll() is None


@pytest.mark.parametrize("then", ["", "sys.exit(0)", "session.shutdown()"])
def test_a_program_may_end_as_it_likes(eventually, then):
    """With or without a shutdown: no error, and no process is left."""
    with run_program(1, 0, then) as program:
        pids = pids_of(program)
        _, stderr = program.communicate(timeout=30)
    assert (program.returncode, stderr) == (0, "")
    eventually(lambda: gone(pids), what="the ranks to end")


def test_the_wait_for_nodes_can_be_interrupted(eventually):
    """Ctrl-C ends it at once, and nothing is left."""
    with run_program(2, 0, "") as program:
        assert "waiting for 1 other node" in program.stderr.readline()
        program.send_signal(signal.SIGINT)
        _, stderr = program.communicate(timeout=30)
    assert "KeyboardInterrupt" in stderr
