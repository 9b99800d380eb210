"""The gRPC options of both ends, as they must agree."""

from __future__ import annotations

import pytest

from disco_client.transport.channel import target
from disco_client.transport.grpc_options import CHANNEL_OPTIONS, SERVER_OPTIONS


def test_each_option_is_given_once_and_by_a_name_that_grpc_knows():
    """The measured names; the documented ones beside them detect nothing."""
    for options in (CHANNEL_OPTIONS, SERVER_OPTIONS):
        names = [name for name, _ in options]
        assert len(set(names)) == len(names)
        assert all(name.startswith("grpc.") for name in names)
        assert "grpc.http2.ping_timeout_ms" in names
    assert ("grpc.so_reuseport", 0) in SERVER_OPTIONS


def test_a_server_forgives_the_pings_that_its_clients_send():
    """Otherwise it would drop them for asking too often."""
    client, server = dict(CHANNEL_OPTIONS), dict(SERVER_OPTIONS)
    every = client["grpc.keepalive_time_ms"]
    assert server["grpc.http2.min_ping_interval_without_data_ms"] < every
    assert client["grpc.http2.ping_timeout_ms"] <= every
    limit = "grpc.max_receive_message_length"
    assert client[limit] == server[limit] == client["grpc.max_send_message_length"]


@pytest.mark.parametrize(
    ("address", "expected"),
    [
        ("127.0.0.1:7600", "dns:///127.0.0.1:7600"),
        ("node.example:1", "dns:///node.example:1"),
        ("[::1]:7600", "dns:///[::1]:7600"),
        ("unix:/run/disco", "unix:/run/disco"),
    ],
)
def test_an_address_becomes_a_target(address, expected):
    """A Unix socket stays what it is; everything else is a name to resolve."""
    assert target(address) == expected
