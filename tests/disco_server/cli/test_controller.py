"""``disco-controller`` as a process: its promises on the port, its signals, its refusals."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys

import grpc
import pytest
from click.testing import CliRunner
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from disco_client import connect, errors
from disco_client.transport.channel import target
from disco_server.cli.controller import main
from disco_server.controller.service import SERVICE_NAMES

SERVING = health_pb2.HealthCheckResponse.SERVING


@pytest.fixture(scope="module")
def controller(shared_daemons):
    """A controller that writes JSON logs and a port file."""
    return shared_daemons.controller(
        "--port-file", "port", "--log-format", "json", "--log-level", "debug"
    )


@pytest.fixture
def channel(controller):
    with grpc.insecure_channel(target(controller.address)) as opened:
        yield opened


def health(address, service=""):
    with grpc.insecure_channel(target(address)) as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        return stub.Check(health_pb2.HealthCheckRequest(service=service), timeout=10).status


def test_it_prints_one_line_and_writes_its_port(controller):
    """The ready line ends with the address, the file holds the port, and no more is printed."""
    assert re.fullmatch(r"disco-controller ready at 127\.0\.0\.1:[0-9]+\n", controller.stdout)
    port = controller.address.rpartition(":")[2]
    assert (controller.folder / "port").read_text() == f"{port}\n"
    assert [path.name for path in controller.folder.glob("port*")] == ["port"]


def test_health_answers_for_the_whole_and_for_each_service(controller):
    """What asks gRPC's own health service hears that everything serves."""
    assert {health(controller.address, name) for name in ("", *SERVICE_NAMES)} == {SERVING}


def test_reflection_lists_the_services(channel):
    """Tools that know nothing of Disco can find out what it offers."""
    stub = reflection_pb2_grpc.ServerReflectionStub(channel)
    asked = reflection_pb2.ServerReflectionRequest(list_services="")
    (answer,) = stub.ServerReflectionInfo(iter([asked]), timeout=10)
    names = {service.name for service in answer.list_services_response.service}
    assert {*SERVICE_NAMES, "grpc.health.v1.Health"} <= names
    asked = reflection_pb2.ServerReflectionRequest(file_containing_symbol=SERVICE_NAMES[0])
    (answer,) = stub.ServerReflectionInfo(iter([asked]), timeout=10)
    assert answer.file_descriptor_response.file_descriptor_proto


@pytest.mark.parametrize(
    "said",
    [
        bytes(range(256)) * 64,
        b"GET /metrics HTTP/1.1\r\nHost: here\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\xff" * 4096,
        b"",
    ],
    ids=["garbage", "http1", "broken-http2", "nothing"],
)
def test_a_peer_that_speaks_something_else_is_only_its_own_problem(controller, said):
    """Its connection is closed, and the controller serves on."""
    host, _, port = controller.address.rpartition(":")
    with (
        contextlib.suppress(OSError),  # it may be closed before all was said
        socket.create_connection((host, int(port)), timeout=10) as peer,
    ):
        peer.sendall(said)
        peer.shutdown(socket.SHUT_WR)
        while peer.recv(65536):
            pass
    assert health(controller.address) == SERVING
    assert controller.process.poll() is None


@pytest.mark.parametrize(
    ("service", "method"), [("SessionService", "Open"), ("NodeService", "Register")]
)
def test_messages_of_another_kind_are_refused_without_a_traceback(channel, service, method):
    """Bytes that are no envelope give INVALID_ARGUMENT and a sentence."""
    call = channel.stream_stream(f"/disco.v1.{service}/{method}")
    with pytest.raises(grpc.RpcError) as raised:
        list(call(iter([b"\xff\xff\xff\xff"]), timeout=10))
    assert raised.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert raised.value.details() == "expected a disco.v1 message"


def test_every_log_line_is_a_json_object(controller):
    """With --log-format json each line parses and has time, level, logger and message."""
    with pytest.raises(errors.NoSlots):
        connect(controller.address, num_workers=1, name="logged", timeout=2.0)
    entries = [json.loads(line) for line in controller.stderr.splitlines()]
    assert all({"time", "level", "logger", "message"} <= set(entry) for entry in entries)
    (ended,) = [
        entry
        for entry in entries
        if entry.get("session") == "logged" and entry["logger"] == "disco.controller"
    ]
    assert "no_slots" in ended["message"]


def test_a_second_controller_on_the_port_is_refused(controller, daemons):
    """One sentence on standard error, the exit code 2, and the first serves on."""
    second = daemons.controller("--listen", controller.address, ready=False)
    assert second.wait() == 2
    assert second.stdout == ""
    (line,) = second.stderr.splitlines()
    assert f"cannot listen on {controller.address}" in line
    assert "--listen" in line
    assert health(controller.address) == SERVING


@pytest.mark.parametrize("fault", ["missing folder", "full disk", "short of space"])
def test_a_port_file_that_cannot_be_written_is_one_sentence(tmp_path, fault):
    """With the file and the reason, after which nothing is left of the file or the daemon."""
    path, prefix = tmp_path / "port", []
    if fault == "missing folder":
        path = tmp_path / "none" / "port"
    elif fault == "full disk":
        path.symlink_to("/dev/full")
    else:
        prefix = ["prlimit", "--fsize=0"] if shutil.which("prlimit") else []
        if not prefix:
            pytest.skip("needs prlimit, of util-linux")
    command = [*prefix, sys.executable, "-m", "disco_server.cli.controller", "--http", "off"]
    options = ["--listen", "127.0.0.1:0", "--log-level", "error", "--port-file", str(path)]
    done = subprocess.run([*command, *options], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    (line,) = done.stderr.splitlines()
    assert f"controller: port_file: {path} cannot be written: " in line
    assert line.endswith(("No such file or directory", "No space left on device", "File too large"))
    assert [each.name for each in tmp_path.iterdir()] == ["port"] * path.is_symlink()


def test_a_port_file_may_be_a_pipe(tmp_path):
    """It is written as it is: whoever waits at its other end reads the port."""
    os.mkfifo(tmp_path / "port")
    command = [sys.executable, "-m", "disco_server.cli.controller", "--http", "off"]
    options = ["--listen", "127.0.0.1:0", "--port-file", str(tmp_path / "port")]
    started = subprocess.Popen([*command, *options], stdout=subprocess.PIPE, text=True)
    try:
        port = int((tmp_path / "port").read_text())
        assert started.stdout.readline().endswith(f":{port}\n")
    finally:
        started.terminate()
        started.communicate()


def test_a_taken_http_port_is_one_sentence(daemons):
    """Also where calls are taken already."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        where = f"127.0.0.1:{taken.getsockname()[1]}"
        second = daemons.controller("--http", where, "--log-level", "error", ready=False)
        assert second.wait() == 2
    (line,) = second.stderr.splitlines()
    assert where in line


def test_flags_come_before_the_environment_before_the_file(daemons, tmp_path):
    """The same setting in all three places is taken from the first that has it."""
    file = tmp_path / "disco.toml"
    file.write_text(
        '[controller]\nlisten = "127.0.0.1:0"\nport_file = "from-file"\nlog_format = "json"\n'
    )
    started = [
        daemons.controller("--config", file, "--port-file", "from-flag", ready=False),
        daemons.controller("--config", file, ready=False),
        daemons.controller(ready=False, DISCO_CONFIG=str(file), DISCO_LISTEN="127.0.0.1:0"),
    ]
    environ = {"DISCO_PORT_FILE": "from-environment"}
    started.insert(1, daemons.controller("--config", file, ready=False, **environ))
    written = []
    for daemon in started:
        daemon.await_ready()
        written.append([path.name for path in daemon.folder.glob("from-*")])
        daemon.send(signal.SIGTERM)
    assert written == [["from-flag"], ["from-environment"], ["from-file"], ["from-file"]]
    for daemon in started:
        assert daemon.wait() == 0
        assert json.loads(daemon.stderr.splitlines()[-1])["message"].startswith("draining")


@pytest.mark.parametrize(
    ("arguments", "environ", "named"),
    [
        (["--listen", "nowhere"], {}, "--listen"),
        ([], {"DISCO_SESSION_LEASE_S": "soon"}, "DISCO_SESSION_LEASE_S"),
        (["--config", "missing.toml"], {}, "missing.toml"),
        (["--node-lease", "1"], {"DISCO_HEARTBEAT_S": "2"}, "node_lease_s"),
    ],
)
def test_a_wrong_setting_is_refused_by_the_name_under_which_it_was_given(arguments, environ, named):
    """Exit code 2, and one line that names the place and what was expected."""
    shown = CliRunner().invoke(main, arguments, env=environ)
    assert shown.exit_code == 2
    (line,) = shown.output.splitlines()
    assert named in line
    assert "expected" in line


def test_a_first_signal_tells_sessions_and_leaves(daemons):
    """SIGTERM ends running sessions with ControllerLost, then the exit code is 0."""
    controller = daemons.controller()
    worker = daemons.worker(controller.address, "--slots", "1")
    session = connect(controller.address, num_workers=1)
    session.sync_all()
    controller.send(signal.SIGTERM)
    assert controller.wait() == 0
    with pytest.raises(errors.ControllerLost, match="shutting down"):
        session.sync_all()
    session.shutdown()
    assert "draining: 1 session" in controller.stderr
    # The daemon stays, and waits for the next controller.
    assert worker.process.poll() is None


def test_a_second_signal_leaves_at_once(daemons, eventually):
    """While a node does not answer, draining goes on, takes no session, and can be cut short."""
    controller = daemons.controller("--node-lease", "60")
    worker = daemons.worker(controller.address, "--slots", "1")
    session = connect(controller.address, num_workers=1)
    worker.send(signal.SIGSTOP)
    controller.send(signal.SIGTERM)
    eventually(lambda: "draining" in controller.stderr, what="the drain to begin")
    assert health(controller.address) == health_pb2.HealthCheckResponse.NOT_SERVING
    with pytest.raises(errors.ControllerLost, match="takes no new sessions"):
        connect(controller.address, num_workers=1, timeout=10)
    assert controller.process.poll() is None
    controller.send(signal.SIGINT)
    assert controller.wait(10) == 0
    session.shutdown()
