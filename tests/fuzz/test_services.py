"""Live daemons under whatever bytes arrive: they answer with a status, and nobody else notices."""

from __future__ import annotations

import contextlib
import random
import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
import psutil
import pytest
from fuzzing.mutating import mutate
from fuzzing.services import controller_seeds, split

from disco_client import ProcessSession, connect, errors
from disco_client.pb import controller_pb2, node_pb2
from disco_client.transport.channel import target
from disco_client.wire.arrays import encode_chunk
from disco_client.wire.codec import EnvelopeKind, envelope
from disco_client.wire.framing import frame

INPUTS = 12
STREAMS = ("SessionService/Open", "NodeService/Register")
ONES = (
    *("SessionService/List", "SessionService/Close", "SessionService/Inspect"),
    *("SessionService/Overview", "SessionService/Interrupt"),
)
TAKEN = ("ArrayService/Upload", "NodeService/Push")
GIVEN = ("ArrayService/Download", "NodeService/Fetch", "SessionService/Logs")
FAULTS = {grpc.StatusCode.INTERNAL, grpc.StatusCode.UNKNOWN}
"""Statuses of a service that did not foresee what came."""


@pytest.fixture(scope="module")
def cluster_of_two(shared_daemons):
    """A controller, a node with a gRPC door for arrays, and one with a door of memory."""
    controller = shared_daemons.controller()
    common = ("--slots", "2", "--allow-module", "os")
    far = shared_daemons.worker(
        controller.address, *common, "--name", "far", "--array-listen", "127.0.0.1:0"
    )
    near = shared_daemons.worker(controller.address, *common, "--name", "near")
    return controller, far, near


@pytest.fixture(scope="module")
def others(cluster_of_two):
    """A session of somebody else on both nodes, which has to work whatever happens."""
    with connect(cluster_of_two[0].address, num_workers=3, logs=False) as session:
        yield session


@pytest.fixture(autouse=True)
def nobody_notices(cluster_of_two, others):
    """After each test the daemons are the same processes, and the other session works."""
    before = [daemon.process.pid for daemon in cluster_of_two]
    yield
    others.sync_all()
    assert others.get_global_func("numpy.add")(1, 2).debug_get_from_remote(2) == 3
    assert [d.process.pid for d in cluster_of_two if d.process.poll() is None] == before


def garbage(name, seeds=()):
    """Bytes of all kinds: the same in each run."""
    chance = random.Random(name)
    corpus = [*seeds, b"", b"\xff\xff\xff", b"GET / HTTP/1.1\r\n\r\n", chance.randbytes(64)]
    return [mutate(chance, corpus) for _ in range(INPUTS)]


def status_of(call):
    """Reads all that a call answers; the status with which it ends."""
    try:
        for _ in call:
            pass
    except grpc.RpcError as error:
        return error.code()
    return grpc.StatusCode.OK


def ask_all(address):
    """Calls every method of every service with what it cannot expect; what came of each."""
    found = {}
    envelopes = [raw for seed in controller_seeds() for raw in split(seed)]
    chunk = controller_pb2.ArrayChunk(transfer=controller_pb2.Transfer(session=1, nbytes=8))
    chunks = [chunk.SerializeToString(), encode_chunk(memoryview(b"12345678"))]
    requests = [controller_pb2.CloseRequest(session=1, name="f").SerializeToString()]

    def ask(channel, method, data):
        path = f"/disco.v1.{method}"
        if method in STREAMS:
            return status_of(channel.stream_stream(path)(iter([data, *garbage(method)]), timeout=5))
        if method in GIVEN:
            return status_of(channel.unary_stream(path)(data, timeout=5))
        if method in TAKEN:
            return channel.stream_unary(path).future(iter([data, data]), timeout=5).code()
        return channel.unary_unary(path).future(data, timeout=5).code()

    with grpc.insecure_channel(target(address)) as channel, ThreadPoolExecutor(8) as pool:
        asked = []
        for method in (*STREAMS, *ONES, *TAKEN, *GIVEN):
            of_streams = envelopes if method in STREAMS else requests
            seeds = chunks if method in TAKEN else of_streams
            asked += [
                (method, pool.submit(ask, channel, method, data)) for data in garbage(method, seeds)
            ]
        for method, answer in asked:
            found.setdefault(method, set()).add(answer.result())
    return found


def test_the_controller_answers_every_method_with_a_status(cluster_of_two):
    """Whatever the message; none of them is a fault of the controller's own."""
    found = ask_all(cluster_of_two[0].address)
    assert len(found) == 12
    for method, statuses in found.items():
        assert not statuses & FAULTS, (method, statuses)
    assert "handler failed" not in cluster_of_two[0].stderr


def ports(daemon):
    listening = psutil.Process(daemon.process.pid).net_connections("tcp")
    return [c.laddr.port for c in listening if c.status == psutil.CONN_LISTEN]


def test_the_door_for_arrays_answers_with_a_status(cluster_of_two):
    """Of a worker daemon that has a port: bytes that are no gRPC, and messages that are none."""
    (port,) = ports(cluster_of_two[1])
    found = ask_all(f"127.0.0.1:{port}")
    for method in ("ArrayService/Upload", "ArrayService/Download"):
        assert not found[method] & FAULTS, (method, found[method])
        assert grpc.StatusCode.NOT_FOUND in found[method]


@pytest.mark.parametrize("which", [0, 1], ids=["controller", "door"])
def test_bytes_that_are_no_grpc_are_hung_up_on(cluster_of_two, which):
    """On the bare socket: the connection ends, at the latest when the stranger leaves."""
    daemon = cluster_of_two[which]
    for data in garbage("raw", [b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes(40)]):
        address = "127.0.0.1", ports(daemon)[0]
        with socket.create_connection(address, 5) as stranger, contextlib.suppress(OSError):
            stranger.sendall(data)


def test_the_door_of_memory_refuses_in_words(cluster_of_two):
    """On the Unix socket of a node whose clients are on its machine."""
    folders = psutil.Process(cluster_of_two[2].process.pid).net_connections("unix")
    (path,) = {c.laddr for c in folders if "disco-arrays-" in str(c.laddr)}
    for data in garbage("memory", [b"\x04\0\0\0\x12\x02\x08\x01", b"\xff\xff\xff\x7f"]):
        with socket.socket(socket.AF_UNIX) as stranger:
            stranger.connect(path)
            with contextlib.suppress(ConnectionError):
                stranger.sendall(data)
                stranger.shutdown(socket.SHUT_WR)
                stranger.settimeout(20)
                assert len(stranger.recv(1 << 16)) < 5000


@pytest.mark.parametrize(
    "data",
    [
        b"\xff\xff\xff\xff",
        frame(b"\xff\xff\xff"),
        *(
            frame(envelope(kind, b"\xff\xff"))
            for kind in (EnvelopeKind.ARRAY_OUT, EnvelopeKind.ARRAY_BACK, EnvelopeKind.ASSIGNED)
        ),
    ],
    ids=["length", "bytes", "array-out", "array-back", "assigned"],
)
def test_a_rank_that_sends_nonsense_ends_alone(cluster_of_two, data):
    """Its functions may write into its socket; the daemon says what it did, and goes on."""
    with connect(cluster_of_two[0].address, num_workers=1, logs=False) as session:
        pid = session.workers[0].pid
        fd = int(Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")[4])
        write = session.get_global_func("os.write")
        write(fd, data)
        with pytest.raises(errors.WorkerLost, match="sent what is no message"):
            session.sync_all()


def test_a_worker_daemon_survives_its_controller(daemons):
    """One that answers with anything: the daemon notes it and registers again."""
    seeds = [raw for seed in controller_seeds() for raw in split(seed)]
    seeds.append(
        envelope(EnvelopeKind.START_RANKS, node_pb2.StartRanks().SerializeToString(), session=1)
    )
    waiting, came = garbage("controller", seeds), threading.Event()

    def register(_stream, _context):
        yield envelope(
            EnvelopeKind.REGISTERED, node_pb2.NodeRegistered(version="0").SerializeToString()
        )
        if waiting:
            yield waiting.pop()
        else:
            came.set()

    handler = grpc.stream_stream_rpc_method_handler(register)
    service = grpc.method_handlers_generic_handler("disco.v1.NodeService", {"Register": handler})
    server = grpc.server(ThreadPoolExecutor(4))
    server.add_generic_rpc_handlers((service,))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        daemon = daemons.worker(f"127.0.0.1:{port}", "--slots", "1")
        assert came.wait(50)
        assert daemon.process.poll() is None
    finally:
        server.stop(None).wait()


@pytest.mark.parametrize(
    "data",
    [b"\xff\xff\xff\xff", frame(b"\xff\xff\xff"), frame(envelope(EnvelopeKind.ARRAY_OUT, b"\xff"))],
    ids=["length", "bytes", "array-out"],
)
def test_a_child_that_sends_nonsense_ends_its_session_in_words(data, eventually):
    """As a daemon's rank does; the program that started it goes on."""
    with ProcessSession(1, logs=False) as session:
        words = Path(f"/proc/{session.workers[0].pid}/cmdline").read_bytes().split(b"\0")
        session.get_global_func("os.write")(int(words[words.index(b"-m") + 5]), data)
        with pytest.raises(errors.WorkerLost, match="sent what is no message"):
            eventually(session.sync_all)  # what it writes is read when it has gone on already
