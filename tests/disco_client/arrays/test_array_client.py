"""Host arrays by either way: the daemon's own endpoint, or the controller where it is lost."""

from __future__ import annotations

import socket
import threading
from concurrent import futures

import grpc
import numpy as np
import pytest

from disco_client import connect, errors
from disco_client.arrays import client as client_module
from disco_client.arrays.client import ArrayClient, GrpcEndpoint
from disco_client.arrays.memory_endpoint import MemoryEndpoint
from disco_client.transport import channel as channel_module
from disco_client.transport.base import TransferFailed
from disco_client.transport.channel import ReloadingChannel, target
from disco_client.transport.grpc_options import CHANNEL_OPTIONS

ARRAY = np.arange(300_000, dtype="float64")


@pytest.fixture(scope="module", params=["memory", "grpc"])
def cluster(request, shared_daemons):
    """A controller, and a daemon with one of the two kinds of endpoint."""
    controller = shared_daemons.controller()
    listen = () if request.param == "memory" else ("--array-listen", "127.0.0.1:0")
    shared_daemons.worker(controller.address, "--slots", "2", *listen)
    return controller


@pytest.fixture(scope="module")
def session(cluster):
    """Two workers on one node, shared by the tests of this file."""
    with connect(cluster.address, num_workers=2) as shared:
        shared.import_python_module("disco_test_functions")
        yield shared


@pytest.fixture
def arrays(session, cluster):
    """Makes another client of the session's arrays, with addresses as a test likes them."""
    inner = session._core.transport._arrays
    opened = []

    def make(addresses, relay=cluster.address, connected=lambda: False):
        made = ArrayClient(
            ReloadingChannel(relay),
            inner._session,
            inner._key,
            addresses,
            connected=connected,
        )
        opened.append(made)
        return made

    yield make
    for made in opened:
        made.close()
        made.close()


def closed_port():
    """An address where nobody listens."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{free.getsockname()[1]}"


@pytest.fixture
def stranger():
    """A gRPC server that knows nothing of arrays."""
    server = grpc.server(futures.ThreadPoolExecutor(1))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    yield f"127.0.0.1:{port}"
    server.stop(None)


def swap(session, client):
    """Lets a session's arrays go through another client; returns the first one."""
    before, session._core.transport._arrays = session._core.transport._arrays, client
    return before


def test_a_session_uses_its_daemons_own_endpoint(session):
    """Both ways, once the first array has shown that it can be reached."""
    assert session.copy_to_worker_0(ARRAY).numpy()[-1] == ARRAY[-1]
    inner = session._core.transport._arrays
    address = inner._addresses[0]
    kind = MemoryEndpoint if address.startswith("memory:") else GrpcEndpoint
    assert isinstance(inner._direct[address], kind)


@pytest.mark.parametrize("address", ["", "nobody", "memory:/nowhere/socket", "pigeon:/roof"])
def test_without_an_endpoint_arrays_go_through_the_controller(session, arrays, address):
    """Found out once; the arrays are the same. A kind of address not known here is none."""
    where = closed_port() if address == "nobody" else address
    client = arrays({0: where, 1: where})
    before = swap(session, client)
    try:
        for _ in range(2):
            remote = session.copy_to_worker_0(ARRAY)
            np.testing.assert_array_equal(remote.numpy(), ARRAY)
            echoed = session.get_global_func("tests.echo")(ARRAY)
            np.testing.assert_array_equal(echoed.numpy(1), ARRAY)
    finally:
        swap(session, before)
    assert client._direct == ({where: None} if where else {})


def test_a_door_that_breaks_later_is_given_up(session, arrays):
    """The array that was on its way takes the other one."""
    gone = closed_port()
    client = arrays({0: gone, 1: gone})
    client._direct[gone] = GrpcEndpoint(
        grpc.insecure_channel(target(gone), options=CHANNEL_OPTIONS)
    )
    before = swap(session, client)
    try:
        np.testing.assert_array_equal(session.copy_to_worker_0(ARRAY).numpy(), ARRAY)
    finally:
        swap(session, before)
    assert client._direct[gone] is None


def test_a_controller_that_only_frames_reach_is_not_tried_for_ever(session, arrays, monkeypatch):
    """The upload ends with what to do, and its command with that; the session goes on."""
    monkeypatch.setattr(client_module, "_UNREACHED_S", 0.5)
    stream = session._core.transport._stream
    client = arrays({}, closed_port(), lambda: stream.connected)
    before = swap(session, client)
    try:
        with pytest.raises(errors.SessionError, match="reach the controller's gRPC port"):
            session.copy_to_worker_0(ARRAY)
        with pytest.raises(errors.RemoteException, match="reach the controller's gRPC port"):
            session.sync_worker(0)
    finally:
        swap(session, before)
    np.testing.assert_array_equal(session.copy_to_worker_0(ARRAY).numpy(), ARRAY)


def test_a_controller_that_is_away_is_waited_for(arrays, monkeypatch):
    """While the session's stream is broken too, its lease decides, and nothing else."""
    monkeypatch.setattr(client_module, "_UNREACHED_S", 0.05)
    client = arrays({}, closed_port())
    asked = threading.Event()
    client._connected = lambda: asked.set() or False
    with futures.ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(client.upload, 1, 0, memoryview(bytearray(8)))
        for _ in range(4):
            assert asked.wait(20)
            asked.clear()
        assert not waiting.done()
        client.close()
        with pytest.raises(TransferFailed, match="the session is over"):
            waiting.result(20)


def test_a_silent_daemon_keeps_only_its_own_transfers_waiting(session, arrays, monkeypatch):
    """Those with another worker are made meanwhile; the end of the session ends its wait."""
    monkeypatch.setattr(client_module, "_REACH_S", 3600.0)
    patient = [("grpc.min_reconnect_backoff_ms", 3_600_000)]
    monkeypatch.setattr(channel_module, "CHANNEL_OPTIONS", [*CHANNEL_OPTIONS, *patient])
    healthy = session._core.transport._arrays._addresses[1]
    with socket.create_server(("127.0.0.1", 0)) as silent, futures.ThreadPoolExecutor(2) as pool:
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        client = arrays({0: address, 1: healthy})
        waiting = pool.submit(client.upload, 1, 0, memoryview(bytearray(8)))
        silent.settimeout(20)
        connection, _ = silent.accept()  # and nothing more
        before = swap(session, client)
        try:
            ref = session.empty(ARRAY.shape, "float64")
            pool.submit(ref.debug_copy_from, 1, ARRAY).result(20)
            np.testing.assert_array_equal(pool.submit(ref.numpy, 1).result(20), ARRAY)
            assert not waiting.done()
            assert not client._opening[address].known.is_set()
        finally:
            swap(session, before)
            client.close()
            connection.close()
        with pytest.raises(TransferFailed, match="the session is over"):
            waiting.result(20)


@pytest.mark.parametrize("way", ["direct", "relay"])
def test_an_array_that_nobody_offers_is_an_error(session, arrays, way):
    """Straight and by the controller: what is not there is not waited for."""
    client = arrays(dict(session._core.transport._arrays._addresses) if way == "direct" else {})
    with pytest.raises(TransferFailed, match="the worker offers no such array"):
        client.download(987_654, 0, memoryview(bytearray(8)))


def test_a_wrong_key_opens_nothing(session, cluster):
    """Neither the daemon's nor the controller's, to put or to take."""
    inner = session._core.transport._arrays
    for addresses in (dict(inner._addresses), {}):
        relay = ReloadingChannel(cluster.address)
        thief = ArrayClient(relay, inner._session, b"wrong" * 3, addresses)
        for attempt in (
            lambda thief=thief: thief.upload(1, 0, memoryview(b"12345678")),
            lambda thief=thief: thief.download(1, 0, memoryview(bytearray(8))),
        ):
            with pytest.raises(TransferFailed, match=r"session.* key"):
                attempt()
        thief.close()


@pytest.mark.parametrize("size", [ARRAY.nbytes - 8, ARRAY.nbytes + 8])
def test_an_array_of_another_size_than_the_buffer_is_an_error(session, arrays, monkeypatch, size):
    """Straight and by the controller; the session goes on."""
    transport = session._core.transport
    ref = session.copy_to_worker_0(ARRAY)
    for addresses in (transport._arrays._addresses, {}):
        before = swap(session, arrays(dict(addresses)))
        with monkeypatch.context() as patched:
            fetch = transport.download
            patched.setattr(
                transport,
                "download",
                lambda ticket, worker, _, fetch=fetch: fetch(
                    ticket, worker, memoryview(bytearray(size))
                ),
            )
            with pytest.raises(errors.SessionError, match=f"of {size} bytes.*got {ARRAY.nbytes}"):
                ref.numpy()
        np.testing.assert_array_equal(ref.numpy(), ARRAY)
        swap(session, before)


def test_a_closed_client_carries_nothing(arrays, session):
    """Nor does it reach an endpoint again."""
    inner = session._core.transport._arrays
    client = arrays(dict(inner._addresses))
    client.close()
    with pytest.raises(TransferFailed):
        client.download(1, 0, memoryview(bytearray(8)))
    assert client._direct == {}
