"""Host arrays by either way: the daemon's own door, or the controller where that is shut."""

from __future__ import annotations

import socket
from concurrent import futures

import grpc
import numpy as np
import pytest

from disco_client import connect
from disco_client.transport.array_client import ArrayClient
from disco_client.transport.options import CHANNEL_OPTIONS, target

ARRAY = np.arange(300_000, dtype="float64")


@pytest.fixture(scope="module")
def session(cluster):
    """Two workers on one node, shared by the tests of this file."""
    with connect(cluster.address, num_workers=2) as shared:
        shared.import_python_module("disco_test_functions")
        yield shared


@pytest.fixture
def arrays(session, cluster):
    """Makes another client of the session's arrays, with doors as a test likes them."""
    inner = session._transport._arrays
    channels = []

    def make(doors):
        channel = grpc.insecure_channel(target(cluster.address), options=CHANNEL_OPTIONS)
        made = ArrayClient(channel, inner._session, inner._key, doors)
        channels.append((made, channel))
        return made

    yield make
    for made, channel in channels:
        made.close()
        made.close()
        channel.close()


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
    before, session._transport._arrays = session._transport._arrays, client
    return before


def test_a_session_uses_its_daemons_own_door(session):
    """Both ways, once the first array has shown that it can be reached."""
    assert session.copy_to_worker_0(ARRAY).numpy()[-1] == ARRAY[-1]
    inner = session._transport._arrays
    door = inner._doors[0]
    assert inner._direct[door] is not None


@pytest.mark.parametrize("door", ["", "nobody"], ids=["no-door", "shut"])
def test_without_a_door_arrays_go_through_the_controller(session, arrays, door):
    """Found out once; the arrays are the same."""
    where = closed_port() if door else ""
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
    client._direct[gone] = grpc.insecure_channel(target(gone), options=CHANNEL_OPTIONS)
    before = swap(session, client)
    try:
        np.testing.assert_array_equal(session.copy_to_worker_0(ARRAY).numpy(), ARRAY)
    finally:
        swap(session, before)
    assert client._direct[gone] is None


def test_an_array_that_nobody_offers_is_an_error(session, arrays):
    """By the door and by the controller: what is not there is not waited for."""
    inner = session._transport._arrays
    client = arrays(dict(inner._doors))
    with pytest.raises(grpc.RpcError) as refused:
        client.download(987_654, 0, memoryview(bytearray(8)))
    assert refused.value.code() is grpc.StatusCode.NOT_FOUND


def test_a_wrong_key_opens_no_door(session, cluster):
    """Neither the daemon's nor the controller's, to put or to take."""
    inner = session._transport._arrays
    for doors in (dict(inner._doors), {}):
        with grpc.insecure_channel(target(cluster.address), options=CHANNEL_OPTIONS) as channel:
            thief = ArrayClient(channel, inner._session, b"wrong" * 3, doors)
            for attempt in (
                lambda thief=thief: thief.upload(1, 0, memoryview(b"12345678")),
                lambda thief=thief: thief.download(1, 0, memoryview(bytearray(8))),
            ):
                with pytest.raises(grpc.RpcError) as refused:
                    attempt()
                assert refused.value.code() is grpc.StatusCode.NOT_FOUND
            thief.close()
