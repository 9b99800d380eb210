"""A controller that is started again where its name leads only later: row 41."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys

import pytest

from fault_tools.certificates import Pki
from fault_tools.namespaces import Names, NoNamespaces
from fault_tools.proxy import Proxy

CLIENTS, NODES = "clients.test", "nodes.test"
"""The controller's names; each leads to the next address at a time of its own."""

FORMER, NEXT = "127.0.0.1", "127.0.0.2"
LEASES = ("--node-lease", "10", "--session-lease", "20")
"""A session that does not find the next address in time is lost."""

PROGRAM = """
import sys
import numpy as np
import disco_client

with disco_client.connect(sys.argv[1], num_workers=1, logs=False) as session:
    session.import_python_module("disco_test_functions")
    session._core.transport._arrays._addresses.clear()  # arrays go through the controller
    count = session.get_global_func("tests.count")
    array = np.arange(1 << 16)
    for _ in sys.stdin:
        came = session.copy_to_worker_0(array).numpy()
        print(count().debug_get_from_remote(0), (came == array).all(), flush=True)
"""


class Program:
    """A client, which does one round of its work for each line that it gets."""

    def __init__(self, prefix, address, folder, env, text=PROGRAM):
        self._said = folder / "program"
        command = [*prefix, sys.executable, "-c", text, address]
        with self._said.open("wb") as err:
            self.process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=err,
                text=True,
                env={**os.environ, **env},
            )

    @property
    def stderr(self):
        return self._said.read_text()

    def begin(self):
        self.process.stdin.write("\n")
        self.process.stdin.flush()

    def result(self):
        return self.process.stdout.readline().split() or self.stderr


@pytest.fixture
def known(tmp_path):
    """Lets both names lead to an address."""

    def lead(address):
        try:
            return Names(tmp_path / "hosts", dict.fromkeys((CLIENTS, NODES), address))
        except NoNamespaces as error:
            pytest.skip(str(error))

    return lead


@pytest.fixture
def program():
    """Starts a client; it ends with the test."""
    started = []

    def start(*arguments):
        started.append(Program(*arguments))
        return started[-1]

    yield start
    for each in started:
        each.process.kill()
        each.process.communicate()


@pytest.mark.parametrize(
    ("frames", "encrypted", "order"),
    [
        ("on", False, (CLIENTS, NODES)),
        ("off", False, (NODES, CLIENTS)),
        ("on", True, (NODES, CLIENTS)),
        ("off", True, (CLIENTS, NODES)),
    ],
    ids=["frames", "grpc", "frames, TLS", "grpc, TLS"],
)
def test_a_controller_is_found_where_its_name_leads_now(
    daemons, program, known, tmp_path, eventually, frames, encrypted, order
):
    """Row 41: after both sides have looked in vain where it was, and one before the other."""
    pki = Pki.make(tmp_path / "pki", (CLIENTS, NODES)) if encrypted else None
    flags = {who: pki.flags(who) if pki else ["--insecure"] for who in ("controller", "worker")}
    names = known(FORMER)
    options = (*LEASES, "--frames", frames, *flags["controller"])
    first = daemons.controller(*options)
    port = first.address.rpartition(":")[2]
    daemons.prefix = names.prefix
    node = daemons.worker(f"{NODES}:{port}", "--slots", "1", *flags["worker"])
    client = program(
        names.prefix, f"{CLIENTS}:{port}", tmp_path, pki.variables("client") if pki else {}
    )
    client.begin()
    assert client.result() == ["1", "True"]
    first.send(signal.SIGKILL)
    first.wait()
    client.begin()
    eventually(lambda: "trying again for" in client.stderr, what="the client to notice")
    eventually(lambda: "trying again" in node.stderr, what="the node to notice")
    daemons.prefix = []
    second = daemons.controller(*options, "--listen", f"{NEXT}:{port}")
    for name in order:
        names.move(name, NEXT)
    assert client.result() == ["2", "True"]
    assert second.process.poll() is None


RENEWED = """
import sys
import grpc
from disco_client.transport.calls import ask
from disco_client.transport.channel import ReloadingChannel

line = ReloadingChannel(sys.argv[1])
for turn in range(2):
    try:
        ask(line.unary_unary("/disco.v1.SessionService/List"), b"", timeout=20)
    except grpc.RpcError as error:
        print(error.code().name, flush=True)
        sys.stdin.readline()
        line.renew()
    else:
        print("OK", flush=True)
line.close()
"""


def test_a_renewed_channel_finds_a_name_that_was_missing(daemons, program, known, tmp_path):
    """Row 41: at once, whereas gRPC waits longer each time before it looks for it again."""
    names = known(FORMER)
    names.move(CLIENTS, "#")
    port = daemons.controller().address.rpartition(":")[2]
    client = program(names.prefix, f"{CLIENTS}:{port}", tmp_path, {}, RENEWED)
    assert client.result() == ["UNAVAILABLE"]
    names.move(CLIENTS, FORMER)
    client.begin()
    assert client.result() == ["OK"]


@contextlib.contextmanager
def taking_nothing(address, port):
    """A port whose queue is full, so that the system takes no more connections."""
    with contextlib.ExitStack() as stack:
        stack.enter_context(socket.create_server((address, port), backlog=0))
        for _ in range(4):
            waiting = stack.enter_context(socket.socket())
            waiting.setblocking(False)
            waiting.connect_ex((address, port))
        yield


def test_frames_reach_a_controller_again_where_its_name_leads_now(
    daemons, program, known, tmp_path
):
    """Row 41: that the port for frames did not answer counts for the former address alone."""
    names = known(NEXT)
    controller = daemons.controller(*LEASES)
    port = controller.address.rpartition(":")[2]
    daemons.prefix = names.prefix
    with (
        taking_nothing(NEXT, controller.frames),
        Proxy(controller.address, host=NEXT, port=int(port)) as proxy,
    ):
        daemons.worker(f"{NODES}:{port}", "--slots", "1", "--insecure")
        client = program(names.prefix, f"{CLIENTS}:{port}", tmp_path, {})
        client.begin()
        assert client.result() == ["1", "True"]
        assert carriers_at(controller.address) == ["grpc", "grpc"]
        for name in (CLIENTS, NODES):
            names.move(name, FORMER)
        proxy.cut()
        client.begin()
        assert client.result() == ["2", "True"]
        assert carriers_at(controller.address) == ["frames", "frames"]


def carriers_at(address):
    """What carries the streams of the node and of the session, as ``disco status`` says."""
    command = [sys.executable, "-m", "disco_server.cli.main", "status", "--json"]
    told = subprocess.run([*command, "--address", address], capture_output=True, check=True)
    found = json.loads(told.stdout)
    return [each["carrier"] for what in ("nodes", "sessions") for each in found[what]]
