"""The controller and the node inside this process, without a session."""

from __future__ import annotations

import socket
import sys
import threading
from pathlib import Path

import grpc
import pytest

from disco_client.errors import ConfigError
from disco_client.pb import controller_pb2
from disco_server.config import Address
from disco_server.embedded.sockets import EmbeddedNode, import_path

LOOPBACK = Address("127.0.0.1", 0)


def listed(address):
    """What a controller says of itself to clients."""
    with grpc.insecure_channel(str(address)) as channel:
        call = channel.unary_unary(
            "/disco.v1.SessionService/List",
            request_serializer=controller_pb2.ListRequest.SerializeToString,
            response_deserializer=controller_pb2.ListResult.FromString,
        )
        return call(controller_pb2.ListRequest(), timeout=10, wait_for_ready=True)


def test_it_has_two_doors_and_the_public_one_is_for_nodes():
    """Clients are served on a socket that only this user can reach."""
    node = EmbeddedNode(LOOPBACK, nodes=1, per_node=2)
    try:
        assert [(n.name, n.slots) for n in listed(node.private).nodes] == [("node-0", 2)]
        assert Path(node.private.path).parent.stat().st_mode & 0o077 == 0
        with pytest.raises(grpc.RpcError) as refused:
            listed(node.address)
        assert refused.value.code() is grpc.StatusCode.UNIMPLEMENTED
    finally:
        node.stop()
    assert not Path(node.private.path).parent.exists()


def test_it_tells_who_has_come_and_waits_for_the_rest():
    """Node 0 is there from the beginning and is nobody to wait for."""
    node = EmbeddedNode(LOOPBACK, nodes=1, per_node=1)
    try:
        assert node.wait_for_nodes(10.0, lambda: None)
        assert node.joined == ()
        assert not node.is_current
    finally:
        node.stop()
    node.stop()
    asked = []
    with_one_missing = EmbeddedNode(LOOPBACK, nodes=2, per_node=1)
    try:
        assert not with_one_missing.wait_for_nodes(0.3, lambda: asked.append(1))
        assert asked
    finally:
        with_one_missing.stop()


def test_a_start_that_fails_leaves_nothing():
    """Its thread ends with it."""
    before = set(threading.enumerate())
    with (
        socket.create_server(("127.0.0.1", 0)) as taken,
        pytest.raises(ConfigError, match="cannot listen"),
    ):
        EmbeddedNode(Address(*taken.getsockname()), nodes=1, per_node=1)
    new = set(threading.enumerate()) - before
    assert "disco-node-0" not in {thread.name for thread in new}


def test_workers_search_where_this_program_does(monkeypatch, tmp_path):
    """In the same order, with what is relative made absolute."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", ["", "sub", "/somewhere"])
    assert import_path() == [str(tmp_path), str(tmp_path / "sub"), "/somewhere"]
