"""Connections that break, stall or lie: rows 6 and 8 to 13, and how fast gRPC sees it."""

from __future__ import annotations

import contextlib
import json
import signal
import subprocess
import sys
import time

import grpc
import numpy as np
import pytest

from disco_client import connect, errors
from disco_client.transport.channel import target
from disco_client.transport.grpc_options import CHANNEL_OPTIONS, SERVER_OPTIONS
from fault_tools.processes import frozen
from fault_tools.proxy import Proxy

CALLS = 40
PATIENT = ("--session-lease", "60")
"""However long a loaded machine takes to start a daemon again."""


@pytest.fixture(params=["frames", "grpc"])
def patient(request):
    """The options of a controller whose streams one of the carriers has."""
    return (*PATIENT, "--frames", "on" if request.param == "frames" else "off")


@pytest.fixture
def path_to(daemons):
    """Leads to daemons through a bad network."""
    with contextlib.ExitStack() as stack:
        yield lambda daemon: stack.enter_context(Proxy(daemon.address, daemon.frames))


def counter(session):
    """A function of the workers that counts its calls."""
    session.import_python_module("disco_test_functions")
    count = session.get_global_func("tests.count")
    session.sync_all()
    return count


def call_all(count, workers, calls=CALLS, between=lambda _number: None):
    """Calls it so many times; what each worker answered, call by call."""
    answers = []
    for number in range(calls):
        between(number)
        answers.append(count())
    return [[each.debug_get_from_remote(worker) for each in answers] for worker in workers]


def once_each(answers, calls=CALLS):
    """Whether every call ran once on every worker, in order."""
    return all(mine == list(range(1, calls + 1)) for mine in answers)


# Row 6: the controller --------------------------------------------------------------------


def test_a_controller_that_is_killed_and_started_again_loses_no_session(daemons, patient):
    """Row 6: on the same port; the session goes on where it was, each call runs once."""
    first = daemons.controller(*patient)
    daemons.worker(first.address, "--slots", "2")
    with connect(first.address, num_workers=2, logs=False) as session:
        count = counter(session)

        def kill(number):
            if number == CALLS // 2:
                first.send(signal.SIGKILL)
                first.wait()
                daemons.controller(*patient, "--listen", first.address)

        assert once_each(call_all(count, [0, 1], between=kill))


# Rows 8 to 11: the network ----------------------------------------------------------------


@pytest.mark.parametrize("where", ["client", "node"])
def test_a_link_that_is_cut_and_healed_loses_nothing(daemons, patient, path_to, where):
    """Row 8: between client and controller, and controller and node; each call runs once."""
    controller = daemons.controller(*patient)
    proxy = path_to(controller)
    clients_way = proxy.address if where == "client" else controller.address
    nodes_way = proxy.address if where == "node" else controller.address
    daemons.worker(nodes_way, "--slots", "1")
    with connect(clients_way, num_workers=1, logs=False) as session:
        count = counter(session)

        def cut(number):
            if number % (CALLS // 3) == CALLS // 6:
                proxy.cut()
                proxy.heal()

        assert once_each(call_all(count, [0], between=cut))


def test_a_node_that_is_cut_off_beyond_its_lease_is_fenced(daemons, path_to, eventually, all_end):
    """Row 9: its session ends by the node's name, its ranks end, and it joins again clean."""
    controller = daemons.controller("--node-lease", "3", DISCO_HEARTBEAT_S="0.5")
    proxy = path_to(controller)
    cut_off = daemons.worker(proxy.address, "--slots", "1", "--name", "far")
    session = connect(controller.address, num_workers=1, logs=False)
    session.sync_all()
    proxy.cut()
    with pytest.raises(errors.NodeLost) as raised:
        session.sync_all()
    assert raised.value.node == "far"
    proxy.heal()
    all_end(rank.pid for rank in session.workers)
    session.shutdown()
    with connect(controller.address, num_workers=1, logs=False, timeout=20) as another:
        another.sync_all()
    assert cut_off.process.poll() is None


def test_one_way_loss_is_a_loss_for_both_sides(daemons, path_to):
    """Row 10: the node hears the controller but is not heard; both give the session up."""
    controller = daemons.controller("--node-lease", "3", DISCO_HEARTBEAT_S="0.5")
    proxy = path_to(controller)
    daemons.worker(proxy.address, "--slots", "1", "--name", "mute")
    session = connect(controller.address, num_workers=1, logs=False)
    session.sync_all()
    began = time.monotonic()
    with proxy.black_hole(proxy.there):
        with pytest.raises(errors.NodeLost) as raised:
            session.sync_all()
        assert time.monotonic() - began < 15
    assert raised.value.node == "mute"
    session.shutdown()
    # Heard again, it takes sessions; of the old one nothing is left.
    with connect(controller.address, num_workers=1, logs=False, timeout=20) as another:
        another.sync_all()


def test_a_slow_and_lossy_network_is_slow_and_nothing_else(daemons, patient, path_to):
    """Row 11: 200 ms there and back, 1 Mbit/s, stalls as lost packets make; default figures."""
    controller = daemons.controller(*patient)
    proxy = path_to(controller)
    for way in proxy.ways:
        way.delay, way.rate, way.stalls = 0.1, 125_000.0, (0.3, 60_000)
    daemons.worker(proxy.address, "--slots", "1")
    with connect(proxy.address, num_workers=1, logs=False, timeout=50) as session:
        count = counter(session)
        assert once_each(call_all(count, [0], 2), 2)
        array = np.arange(10_000) % 256
        there = session.get_global_func("tests.echo")(array.astype("u1"))
        np.testing.assert_array_equal(there.numpy(), array)


# Rows 12 and 13: messages -----------------------------------------------------------------


@pytest.mark.parametrize(
    ("daemon", "faults"),
    [
        ("controller", "controller.to_client[REPLY]:cut=5"),
        ("worker", "node.send[REPLY]:cut=7"),
    ],
)
def test_a_reply_lost_after_its_command_ran_is_sent_again(daemons, patient, daemon, faults):
    """Row 12: the command ran once, though its answer was lost with the connection."""
    here, there = (faults, "") if daemon == "controller" else ("", faults)
    controller = daemons.controller(*patient, faults=here)
    worker = daemons.worker(controller.address, "--slots", "1", faults=there)
    with connect(controller.address, num_workers=1, logs=False) as session:
        count = counter(session)
        # Each is asked for before the next one is sent, so the cut meets a waiting call.
        got = [count().debug_get_from_remote(0) for _ in range(10)]
    assert got == list(range(1, 11))
    hit = controller if daemon == "controller" else worker
    assert f"{faults.partition('[')[0]}: cut of message" in hit.stderr


@pytest.mark.parametrize(
    "faults",
    [
        "controller.to_node[BATCH]:duplicate=2-20",
        "controller.to_node[BATCH]:swap=4",
        "controller.to_node[BATCH]:drop=20%;controller.to_client[REPLY]:duplicate=20%;seed=3",
    ],
)
def test_commands_that_come_twice_or_not_in_order_run_once_and_in_order(daemons, patient, faults):
    """Row 13: what is doubled is dropped, what is missing is asked for again."""
    controller = daemons.controller(*patient, faults=faults)
    daemons.worker(controller.address, "--slots", "1")
    with connect(controller.address, num_workers=1, logs=False) as session:
        count = counter(session)
        answers = []
        for _ in range(12):
            answers.append(count())
            time.sleep(0.005)  # so that most of them are batches of their own
        got = [each.debug_get_from_remote(0) for each in answers]
    assert got == list(range(1, 13))
    assert "of message" in controller.stderr


# How fast gRPC sees it ----------------------------------------------------------------------

SCALE = 10
SERVER = """
import json, sys, grpc
from concurrent.futures import ThreadPoolExecutor

def beat(stream, context):
    for raw in stream:
        yield raw

server = grpc.server(ThreadPoolExecutor(4), options=json.loads(sys.argv[1]))
handler = grpc.stream_stream_rpc_method_handler(beat)
server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("t", {"Beat": handler}),))
print(server.add_insecure_port("127.0.0.1:0"), flush=True)
server.start()
server.wait_for_termination()
"""


def scaled(options):
    """Our options with their times a tenth, so that a test need not wait as long."""
    times = {"grpc.keepalive_time_ms", "grpc.keepalive_timeout_ms", "grpc.http2.ping_timeout_ms"}
    times |= {
        "grpc.http2.min_ping_interval_without_data_ms",
        "grpc.http2.min_time_between_pings_ms",
    }
    assert times <= {name for name, _ in (*CHANNEL_OPTIONS, *SERVER_OPTIONS)}
    return [(name, value // SCALE if name in times else value) for name, value in options]


@pytest.fixture
def grpc_server():
    """A server with our options in a process of its own, and where it listens."""
    command = [sys.executable, "-c", SERVER, json.dumps(scaled(SERVER_OPTIONS))]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        try:
            yield server, f"127.0.0.1:{int(server.stdout.readline())}"
        finally:
            server.kill()


@pytest.mark.parametrize("how", ["frozen", "black hole", "back only"])
def test_our_options_detect_a_silent_peer(grpc_server, how):
    """A stopped process, a cut link, and a link whose way back is: within three times the sum."""
    server, address = grpc_server
    with Proxy(address) as proxy:
        options = scaled(CHANNEL_OPTIONS)
        with grpc.insecure_channel(target(proxy.address), options=options) as channel:
            wait = []

            def say():
                yield b"hello"
                while not wait:
                    time.sleep(0.05)

            call = channel.stream_stream("/t/Beat")(say(), timeout=40)
            assert next(call) == b"hello"
            # Alive while nobody speaks: pings are answered, and allowed.
            time.sleep(2.0)
            assert call.is_active()
            faults = {
                "frozen": lambda: frozen(server.pid),
                "black hole": proxy.black_hole,
                "back only": lambda: proxy.black_hole(proxy.back),
            }
            began = time.monotonic()
            with faults[how](), pytest.raises(grpc.RpcError) as raised:
                next(call)
            wait.append(True)
            took = time.monotonic() - began
            assert raised.value.code() is grpc.StatusCode.UNAVAILABLE
            assert took < 3 * (10 + 10) / SCALE + 2
