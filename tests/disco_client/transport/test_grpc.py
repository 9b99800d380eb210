"""A session's line to a controller: what it raises when the other end misbehaves."""

from __future__ import annotations

import socket
import threading
from dataclasses import replace

import numpy as np
import pytest

from conversing import converse
from disco_client import connect, errors
from disco_client.transport.base import Wish
from disco_client.transport.grpc import GrpcTransport
from disco_client.wire.arrays import byte_view
from disco_client.wire.codec import PROTOCOL

WISH = Wish(num_workers=1, num_groups=1, ccl="", name="", owner="me", timeout=10.0)


def dial(address, patience=10.0, **wish):
    return GrpcTransport.create(
        address, replace(WISH, **wish), connect_timeout=patience, on_queued=lambda _: None
    )


def test_nobody_at_the_address_is_a_failed_connection_with_advice():
    """After the timeout, not before: the controller may be starting."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
        with pytest.raises(errors.ConnectionFailed, match="disco-controller --listen") as failed:
            dial(address, patience=0.3)
    assert address in str(failed.value)


def test_a_server_of_another_kind_is_a_failed_connection():
    """Something listens and answers nonsense: an error in time, not a hang."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        stop = threading.Event()

        def serve():
            server.settimeout(0.05)
            while not stop.is_set():
                try:
                    peer, _ = server.accept()
                except TimeoutError:
                    continue
                with peer:
                    peer.sendall(b"HTTP/1.1 200 OK\r\n\r\nhello")

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            with pytest.raises(errors.ConnectionFailed):
                dial(f"127.0.0.1:{server.getsockname()[1]}", patience=1.0)
        finally:
            stop.set()
            thread.join()


@pytest.mark.parametrize(
    ("wish", "text"),
    [
        ({"num_workers": 0}, "num_workers"),
        ({"num_groups": 2}, "num_groups"),
        ({"name": "x" * 129}, "128 characters"),
        ({"timeout": 0.0}, "timeout"),
    ],
)
def test_the_controller_refuses_what_it_cannot_serve(cluster, wish, text):
    """It checks for itself: not every client is this one."""
    with pytest.raises(errors.ConfigError, match=text):
        dial(cluster.address, **wish)


def test_another_protocol_is_a_failed_connection_that_names_both(cluster, monkeypatch):
    """So that a person knows which side to upgrade."""
    monkeypatch.setattr("disco_client.transport.session_stream.PROTOCOL", PROTOCOL + 1)
    monkeypatch.setattr("disco_client.transport.session_stream.__version__", "9.9")
    with pytest.raises(errors.ConnectionFailed) as failed:
        dial(cluster.address)
    assert f"protocol {PROTOCOL}," in str(failed.value)
    assert f"protocol {PROTOCOL + 1}" in str(failed.value)
    assert "9.9" in str(failed.value)


def silent(on_lost=lambda _error: None):
    """The end of a client that says nothing more."""
    made = converse(on_lost=on_lost)
    made.log.close(errors.SessionClosed("done"), drop=True)
    return made


def test_a_transport_is_closed_as_often_as_one_likes(cluster):
    """The first time says goodbye, so that its slots are free for the next one."""
    for _ in range(2):
        line = dial(cluster.address, num_workers=4)
        ended = []
        line.start(silent(ended.append))
        line.close(5)
        line.close(5)
        assert [type(error) for error in ended] == [errors.SessionClosed]


def test_no_thread_outlives_its_session(cluster):
    """Python may exit right after; one of gRPC's would be stopped with a lock in hand."""
    before = set(threading.enumerate())
    for _ in range(5):
        with connect(cluster.address, num_workers=1) as session:
            session.copy_to_worker_0(np.zeros(100_000)).numpy()
        assert set(threading.enumerate()) <= before


def test_an_array_for_nobody_is_an_error_and_not_a_wait(cluster):
    """A worker that the session does not have cannot take it."""
    line = dial(cluster.address)
    try:
        data = byte_view(np.zeros(10))
        with pytest.raises(errors.SessionError, match="no worker 7"):
            line.upload(1, 7, data)
    finally:
        line.start(silent())
        line.close(5)
