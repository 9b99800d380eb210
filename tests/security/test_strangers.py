"""Those who have not said who they are: what they cost a daemon, and that others are served."""

from __future__ import annotations

import contextlib
import http.client
import re
import socket
import threading
import time

import grpc
import numpy as np
import psutil
import pytest

from disco_client.transport.admin import ask_for_sessions
from disco_client.transport.channel import ReloadingChannel, target
from disco_client.transport.credentials import Credentials
from fault_tools.http2 import PREFACE, UnfinishedCalls

MIB = 1 << 20
SERVED_S = 8.0
"""Less than a stranger's ten seconds, so that who is served does not owe it to their end."""


@pytest.fixture(scope="module")
def carrier():
    """Frames, where a test says nothing else: these tests are about what comes before."""
    return "frames"


@pytest.fixture(scope="module")
def controller(shared_daemons, tokens):
    """One for the tests that leave it as it was."""
    options = ("--auth-token-file", tokens.path, "--http", "127.0.0.1:0")
    return shared_daemons.controller(*options)


@pytest.fixture
def guarded(daemons, tokens):
    """Starts controllers that ask for tokens, with a node of one slot."""

    def start(*options):
        controller = daemons.controller("--auth-token-file", tokens.path, *options)
        daemons.worker(
            controller.address,
            *("--slots", "1", "--auth-token-file", tokens.of("pool"), "--http", "127.0.0.1:0"),
        )
        return controller

    return start


@pytest.fixture
def alice(connect, tokens):
    """Opens a session of hers that does something."""

    def work(controller, timeout=SERVED_S):
        opened = connect(controller.address, token_file=tokens.of("alice"), timeout=timeout)
        assert opened.get_global_func("numpy.add")(2, 3).debug_get_from_remote(0) == 5
        return opened

    return work


@contextlib.contextmanager
def strangers(where, count, say=b""):
    """Connections that say something, perhaps, and then nothing."""
    with contextlib.ExitStack() as stack:
        for _ in range(count):
            sock = stack.enter_context(socket.create_connection(where, 10))
            sock.sendall(say)
        yield


def http_of(daemon):
    """Where a daemon serves HTTP."""
    return "127.0.0.1", int(re.search(r"metrics at http://127.0.0.1:(\d+)/", daemon.stderr)[1])


def health_of(daemon):
    """What the HTTP port says of the daemon's health."""
    asked = http.client.HTTPConnection(*http_of(daemon), timeout=SERVED_S)
    with contextlib.closing(asked):
        asked.request("GET", "/healthz")
        return asked.getresponse().read()


def few_descriptors(daemons, count):
    """Lets the daemons that are started from now on have so many."""
    daemons.prefix = ["sh", "-c", f'ulimit -n {count} && exec "$@"', "sh"]


@pytest.mark.parametrize("say", [b"", b"GET /metrics HTTP/1.1\r\nHost:"], ids=["silent", "half"])
def test_strangers_at_the_http_ports_take_a_sixth_of_the_descriptors(daemons, guarded, alice, say):
    """Clients and nodes are served, and so is whoever asks for health; the log stays short."""
    few_descriptors(daemons, 300)
    controller = guarded("--http", "127.0.0.1:0")
    first = alice(controller)
    first.shutdown()
    for daemon in daemons.started:
        process = psutil.Process(daemon.process.pid)
        before = process.num_fds()
        with strangers(http_of(daemon), 400, say):
            assert health_of(daemon) == b"ok\n"
            assert process.num_fds() <= before + 100
            alice(controller).shutdown()
            assert health_of(daemon) == b"ok\n"
        assert "Traceback" not in daemon.stderr
        assert daemon.stderr.count("waited for longest") <= 40
        assert "out of system resource" not in daemon.stderr


def test_whoever_makes_no_call_leaves_room_for_others(guarded, alice):
    """Sixty connections of HTTP/2 where forty are taken: they are closed after some seconds."""
    controller = guarded("--max-connections", "40")
    host, _, port = controller.address.rpartition(":")
    with strangers((host, int(port)), 60, PREFACE):
        alice(controller, timeout=15).sync_all()


@pytest.mark.parametrize("frames", ["on", "off"])
def test_a_client_that_made_no_call_for_long_makes_its_next_one(
    guarded, alice, tokens, capfd, eventually, frames
):
    """Its connection is closed meanwhile, of which nothing is printed; its streams go on."""
    controller = guarded("--frames", frames)
    session = alice(controller)
    process = psutil.Process(controller.process.pid)
    port = int(controller.address.rpartition(":")[2])

    def connections():
        there = process.net_connections("tcp")
        return sum(each.laddr.port == port and each.status == "ESTABLISHED" for each in there)

    line = ReloadingChannel(controller.address, Credentials.read(token_file=tokens.of("alice")))
    streams = 0 if frames == "on" else 2  # the client's, the node's
    for _ in range(2):
        assert [name for _, name in ask_for_sessions(line)] == [session.name]
        found = session._core.transport.inspect(stacks=True, flights=False)
        assert [rank.worker for rank in found.ranks] == [0]
        assert connections() > streams
        eventually(lambda: connections() == streams, 30.0, "silent connections to end")
    session.sync_all()
    line.close()
    assert capfd.readouterr().err == ""


@contextlib.contextmanager
def watched(process):
    """How much memory a process has at most in the block, in MiB beyond what it had."""
    before, most, over = process.memory_info().rss, [0.0], threading.Event()

    def look():
        while not over.wait(0.01):
            most.append((process.memory_info().rss - before) / MIB)

    thread = threading.Thread(target=look)
    thread.start()
    try:
        yield most
    finally:
        over.set()
        thread.join()


@pytest.mark.parametrize(
    "method",
    [
        "/disco.v1.SessionService/List",
        "/disco.v1.SessionService/Logs",
        "/disco.v1.NodeService/Fetch",
        "/grpc.health.v1.Health/Check",
        "/grpc.health.v1.Health/List",
        "/grpc.health.v1.Health/Watch",
        "/disco.v1.SessionService/Open",
        "/no.such/Method",
    ],
)
def test_what_strangers_begin_to_ask_is_not_read(controller, method):
    """Eight calls of 60 MiB each that never end: they are answered, and cost almost nothing."""
    process = psutil.Process(controller.process.pid)
    with watched(process) as more:
        calls = UnfinishedCalls(controller.address, method, 8, 60 * MIB)
        calls.push()
        calls.close()
    assert calls.refused >= 8
    assert max(more) < 64
    assert "Traceback" not in controller.stderr


@pytest.mark.parametrize("method", ["Upload", "Download"])
def test_what_strangers_bring_to_a_port_for_arrays_is_not_read(daemons, tokens, alice, method):
    """Calls without the secret of a session there are ended, and a client's arrays arrive."""
    controller = daemons.controller("--auth-token-file", tokens.path)
    options = ("--slots", "1", "--array-listen", "127.0.0.1:0")
    worker = daemons.worker(controller.address, *options, "--auth-token-file", tokens.of("pool"))
    session = alice(controller)
    address = session._core.transport._arrays._addresses[0]
    with watched(psutil.Process(worker.process.pid)) as more:
        calls = UnfinishedCalls(address, f"/disco.v1.ArrayService/{method}", 100, 4 * MIB)
        calls.push()
        array = np.arange(1 << 20)
        assert (session.copy_to_worker_0(array).numpy() == array).all()
        calls.close()
    assert calls.refused >= 100
    assert max(more) < 64


def test_health_is_told_to_strangers_unread_and_to_others_by_name(controller, tokens):
    """A stranger learns whether the daemon serves; who watches says who it is."""
    bearer = [("authorization", f"Bearer {tokens.tokens['alice']}")]
    name = b"\x0a\x02no"
    with grpc.insecure_channel(target(controller.address)) as channel:
        check = channel.unary_unary("/grpc.health.v1.Health/Check")
        assert check(b"", timeout=20) == check(name, timeout=20) == b"\x08\x01"
        with pytest.raises(grpc.RpcError) as failed:
            check(name, timeout=20, metadata=bearer)
        assert failed.value.code() is grpc.StatusCode.NOT_FOUND
        with pytest.raises(grpc.RpcError) as failed:
            check(b"\xff", timeout=20, metadata=bearer)
        assert failed.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        watch = channel.unary_stream("/grpc.health.v1.Health/Watch")
        with pytest.raises(grpc.RpcError) as failed:
            next(watch(b"", timeout=20))
        assert failed.value.code() is grpc.StatusCode.UNAUTHENTICATED
        assert next(watch(b"", timeout=20, metadata=bearer)) == b"\x08\x01"


def test_a_request_that_is_too_long_or_missing_is_refused_by_its_size(controller, tokens):
    """Also of who has said who it is: what is long comes in streams."""
    bearer = [("authorization", f"Bearer {tokens.tokens['alice']}")]
    method = "/disco.v1.SessionService/List"
    expected = "expected a request of at most 1048576 bytes in 10 s, got "
    with grpc.insecure_channel(target(controller.address)) as channel:
        for requests, came in (([bytes(MIB + 1)], f"one of {MIB + 1} bytes"), ([], "none")):
            with pytest.raises(grpc.RpcError) as failed:
                channel.stream_unary(method)(iter(requests), timeout=20, metadata=bearer)
            assert failed.value.code() is grpc.StatusCode.INVALID_ARGUMENT
            assert failed.value.details() == expected + came


def test_malformed_http_requests_are_a_few_lines_of_the_log(controller):
    """Hundreds of them are 20 lines a second at most, and no traceback."""
    began = time.monotonic()
    for say in (b"GET\r\n\r\n", b"GET /\x00 HTTP/1.1\r\n\r\n", b"GET / HTTP/1.1\r\nno\r\n\r\n"):
        for _ in range(60):
            with socket.create_connection(http_of(controller), 10) as sock:
                sock.sendall(say)
                while sock.recv(1 << 16):
                    pass
    assert health_of(controller) == b"ok\n"
    seconds = time.monotonic() - began
    assert 0 < controller.stderr.count("malformed") <= 20 * (seconds + 2)
    assert "Traceback" not in controller.stderr
