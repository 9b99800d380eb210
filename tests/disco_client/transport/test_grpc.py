"""A session's line to a controller: what it raises when the other end misbehaves."""

from __future__ import annotations

import socket
import threading

import numpy as np
import pytest

from disco_client import errors
from disco_client.pb import controller_pb2
from disco_client.transport.grpc import GrpcTransport
from disco_client.wire.arrays import byte_view
from disco_client.wire.protocol import PROTOCOL

ENDED = {
    controller_pb2.END_REASON_CLOSED: errors.SessionClosed,
    controller_pb2.END_REASON_RANK_LOST: errors.WorkerLost,
    controller_pb2.END_REASON_START_FAILED: errors.WorkerLost,
    controller_pb2.END_REASON_NODE_LOST: errors.NodeLost,
    controller_pb2.END_REASON_DRAINED: errors.ControllerLost,
    controller_pb2.END_REASON_STOPPED: errors.SessionLost,
    99: errors.SessionLost,
}


def create(**fields):
    asked = {"protocol": PROTOCOL, "num_workers": 1, "num_groups": 1, "timeout_s": 10.0}
    return controller_pb2.CreateSession(**{**asked, **fields})


def dial(address, request=None, timeout=10.0):
    return GrpcTransport(
        address, request or create(), connect_timeout=timeout, on_queued=lambda _: None
    )


@pytest.mark.parametrize(("reason", "kind"), ENDED.items())
def test_each_end_of_a_session_is_an_error_of_its_own(reason, kind):
    """Also an end whose reason this client does not know yet."""
    from disco_client.transport.grpc import _lost_error

    ended = controller_pb2.SessionEnded(
        reason=reason, message="it ended", worker=3, node="n", exit_status=-9, output=["words"]
    )
    error = _lost_error(ended, "mine")
    assert type(error) is kind
    if kind is errors.WorkerLost:
        assert (error.worker, error.node, error.exit_status) == (3, "n", -9)
        assert "words" in str(error)


def test_nobody_at_the_address_is_a_failed_connection_with_advice():
    """After the timeout, not before: the controller may be starting."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
        with pytest.raises(errors.ConnectionFailed, match="disco-controller --listen") as failed:
            dial(address, timeout=0.3)
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
                dial(f"127.0.0.1:{server.getsockname()[1]}", timeout=1.0)
        finally:
            stop.set()
            thread.join()


@pytest.mark.parametrize(
    ("fields", "error", "text"),
    [
        ({"protocol": PROTOCOL + 1}, errors.DiscoError, f"protocol {PROTOCOL + 1}"),
        ({"num_workers": 0}, errors.ConfigError, "num_workers"),
        ({"num_groups": 2}, errors.ConfigError, "num_groups"),
        ({"name": "x" * 129}, errors.ConfigError, "128 characters"),
        ({"timeout_s": 0.0}, errors.ConfigError, "timeout"),
    ],
)
def test_the_controller_refuses_what_it_cannot_serve(cluster, fields, error, text):
    """It checks for itself: not every client is this one."""
    with pytest.raises(error, match=text):
        dial(cluster.address, create(**fields))


def test_another_protocol_is_a_failed_connection_that_names_both(cluster):
    """So that a person knows which side to upgrade."""
    with pytest.raises(errors.ConnectionFailed) as failed:
        dial(cluster.address, create(protocol=PROTOCOL + 1, version="9.9"))
    assert f"protocol {PROTOCOL}," in str(failed.value)
    assert f"protocol {PROTOCOL + 1}" in str(failed.value)
    assert "9.9" in str(failed.value)


def test_a_transport_is_closed_twice_and_before_it_started(cluster):
    """Closing is idempotent, and a session that never ran frees its slots."""
    line = dial(cluster.address, create(num_workers=4))
    line.close(5)
    line.close(5)
    dial(cluster.address, create(num_workers=4)).close(5)


def test_an_array_for_nobody_is_an_error_and_not_a_wait(cluster):
    """A worker that the session does not have cannot take it."""
    line = dial(cluster.address)
    try:
        data = byte_view(np.zeros(10))
        with pytest.raises(errors.SessionError, match="no worker 7"):
            line.upload(1, 7, data)
    finally:
        line.close(5)
