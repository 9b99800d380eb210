"""The client's side of a memory endpoint, against daemons of the test's making."""

from __future__ import annotations

import contextlib
import os
import socket
import tempfile
import threading

import pytest

from disco_client.arrays.mapped_memory import MappedMemory
from disco_client.arrays.memory_endpoint import MemoryEndpoint
from disco_client.arrays.memory_messages import READ_BYTES, pack, unpack
from disco_client.arrays.shared_memory import allocate, read_shared, write_shared
from disco_client.pb import memory_pb2
from disco_client.transport.base import EndpointLost, TransferFailed
from disco_client.wire.arrays import encode_head

HEAD = encode_head(5, b"key", 7, 10, 3)
DATA = b"0123456789"


class Daemon:
    """Serves one connection, in a thread, as a test tells it.

    Attributes:
        heard: What the client said.
        memory: What it is given.
    """

    def __init__(self, path, script):
        self.heard = []
        self.memory = allocate(len(DATA))
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(path)
        self._listener.listen()
        self._script = script
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self):
        sock, _ = self._listener.accept()
        with sock, contextlib.suppress(ConnectionError):
            self._script(self, sock)

    def hear(self, sock):
        data = b""
        while (raw := unpack(data)) is None:
            more = sock.recv(READ_BYTES)
            if not more:
                raise ConnectionResetError
            data += more
        self.heard.append(memory_pb2.MemoryRequest.FromString(raw))

    def grant(self, sock, nbytes=10, *, with_memory=True):
        reply = pack(memory_pb2.MemoryReply(granted=nbytes))
        socket.send_fds(sock, [reply], [self.memory.fileno()] if with_memory else [])

    def close(self):
        self._thread.join(10)
        assert not self._thread.is_alive()
        self._listener.close()
        self.memory.close()


@pytest.fixture
def folder():
    """Short, because the path of a socket must be."""
    with tempfile.TemporaryDirectory() as made:
        yield made


@pytest.fixture
def daemon(folder, no_memory_left):
    """Starts a daemon; whatever happens, the client keeps no descriptor."""
    started = []

    def start(script):
        started.append(Daemon(f"{folder}/socket", script))
        return started[-1]

    yield start
    for one in started:
        one.close()


@pytest.fixture
def endpoint(folder):
    made = MemoryEndpoint(f"{folder}/socket")
    yield made
    made.close()


def test_an_upload_is_written_where_the_daemon_says(daemon, endpoint):
    """The daemon hears what it is for, and of its end; no byte of it crosses the socket."""

    def script(self, sock):
        self.hear(sock)
        self.grant(sock)
        self.hear(sock)
        sock.sendall(pack(memory_pb2.MemoryReply(taken=True)))

    peer = daemon(script)
    endpoint.upload(HEAD, memoryview(DATA))
    assert peer.heard == [
        memory_pb2.MemoryRequest(upload=HEAD),
        memory_pb2.MemoryRequest(done=True),
    ]
    into = bytearray(len(DATA))
    read_shared(peer.memory.fileno(), memoryview(into))
    assert into == DATA


@pytest.mark.parametrize("size", [10, 9, 11])
def test_a_download_is_read_where_it_fits(daemon, endpoint, size):
    """Into a buffer of its size; another one stays as it is, and the size is told."""

    def script(self, sock):
        write_shared(self.memory.fileno(), memoryview(DATA))
        self.hear(sock)
        self.grant(sock)
        assert sock.recv(1) == b""  # closing is how a client says that it is done

    peer = daemon(script)
    into = bytearray(size)
    assert endpoint.download(HEAD, memoryview(into)) == len(DATA)
    assert into == (DATA if size == len(DATA) else bytes(size))
    assert peer.heard == [memory_pb2.MemoryRequest(download=HEAD)]


def transfers(endpoint):
    """Both kinds, each as a call."""
    return {
        "upload": lambda: endpoint.upload(HEAD, memoryview(DATA)),
        "download": lambda: endpoint.download(HEAD, memoryview(bytearray(len(DATA)))),
    }


@pytest.mark.parametrize("what", ["upload", "download"])
def test_a_refusal_is_an_error_with_the_daemon_s_words(daemon, endpoint, what):
    """It is no reason to try another way."""

    def script(self, sock):
        self.hear(sock)
        sock.sendall(pack(memory_pb2.MemoryReply(refused="no such thing")))

    daemon(script)
    with pytest.raises(TransferFailed, match="no such thing") as raised:
        transfers(endpoint)[what]()
    assert not isinstance(raised.value, EndpointLost)


def test_an_upload_that_is_not_taken_is_an_error(daemon, endpoint):
    """Although it was granted and written."""

    def script(self, sock):
        self.hear(sock)
        self.grant(sock)
        self.hear(sock)
        sock.sendall(pack(memory_pb2.MemoryReply(refused="too late")))

    daemon(script)
    with pytest.raises(TransferFailed, match="too late"):
        endpoint.upload(HEAD, memoryview(DATA))


@pytest.mark.parametrize("answer", [b"", b"HTTP/1.1 400 ", b"\x02\0\0\0\xff\xff"])
@pytest.mark.parametrize("what", ["upload", "download"])
def test_where_no_daemon_of_ours_answers_the_endpoint_is_lost(daemon, endpoint, what, answer):
    """Nothing was carried yet, so another way may be tried."""

    def script(self, sock):
        self.hear(sock)
        sock.sendall(answer)

    daemon(script)
    with pytest.raises(EndpointLost):
        transfers(endpoint)[what]()


@pytest.mark.parametrize("path", ["nobody", "none/socket", "long" * 30])
@pytest.mark.parametrize("what", ["upload", "download"])
def test_where_nobody_listens_the_door_is_shut(folder, what, path):
    """In a folder that is gone, too, and where a path could not even be one."""
    with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX) as left:
        left.bind(f"{folder}/nobody")
    with pytest.raises(EndpointLost, match="no daemon answers at"):
        transfers(MemoryEndpoint(f"{folder}/{path}"))[what]()


def test_a_daemon_that_leaves_in_the_middle_is_lost(daemon, endpoint):
    """What it was told can be told again by another way: its ticket says what came."""

    def script(self, sock):
        self.hear(sock)
        self.grant(sock)

    daemon(script)
    with pytest.raises(EndpointLost):
        endpoint.upload(HEAD, memoryview(DATA))


def test_memory_that_does_not_arrive_is_an_error(daemon, endpoint):
    """As where this process may open no more files."""

    def script(self, sock):
        self.hear(sock)
        self.grant(sock, with_memory=False)
        sock.recv(1)

    daemon(script)
    with pytest.raises(OSError, match="Too many open files"):
        endpoint.upload(HEAD, memoryview(DATA))


def test_less_memory_than_was_said_is_an_error(daemon, endpoint):
    """The rest of the buffer is not taken for an array's."""

    def script(self, sock):
        self.hear(sock)
        self.grant(sock, 20)
        sock.recv(1)

    daemon(script)
    with pytest.raises(OSError, match="expected 20 bytes of shared memory at 0, got 10"):
        endpoint.download(HEAD, memoryview(bytearray(20)))


@pytest.mark.parametrize("what", ["upload", "download"])
def test_closing_wakes_whoever_waits_for_a_daemon(daemon, endpoint, what):
    """A session that ended does not leave a thread with a daemon that says nothing."""
    asked = threading.Event()
    failed = []

    def script(self, sock):
        self.hear(sock)
        asked.set()
        sock.recv(1)

    def carry():
        try:
            transfers(endpoint)[what]()
        except TransferFailed as error:
            failed.append(error)

    daemon(script)
    thread = threading.Thread(target=carry)
    thread.start()
    assert asked.wait(10)
    endpoint.close()
    thread.join(10)
    assert failed
    with pytest.raises(TransferFailed, match="the session is over"):
        transfers(endpoint)[what]()
    endpoint.close()


def test_a_program_that_this_one_starts_keeps_no_array(daemon, endpoint, monkeypatch):
    """What was granted is not inherited, as no other descriptor is."""
    seen = []
    monkeypatch.setattr(
        MappedMemory, "write", lambda _, fd, data: seen.append(os.get_inheritable(fd))
    )

    def script(self, sock):
        self.hear(sock)
        self.grant(sock)
        self.hear(sock)
        sock.sendall(pack(memory_pb2.MemoryReply(taken=True)))

    daemon(script)
    endpoint.upload(HEAD, memoryview(DATA))
    assert seen == [False]
