"""The interceptor that every call to a controller passes."""

from __future__ import annotations

import asyncio
import os
from types import SimpleNamespace

import grpc
import pytest
from google.protobuf.descriptor_pool import Default

from disco_client.errors import ConfigError
from disco_client.pb import controller_pb2, node_pb2
from disco_server.controller.auth import AuthInterceptor, TokenBook, peer_of
from disco_server.controller.daemon import ControllerListener
from disco_server.controller.hub import Hub
from disco_server.core.access import METHODS
from disco_server.ipc.grpc_server import add_port
from disco_server.security import Guard
from disco_server.settings import Address

REFLECTION = "grpc.reflection.v1alpha.ServerReflection"


def test_every_method_of_every_service_is_in_the_table():
    """A new one cannot be forgotten, and none is listed that is not there."""
    pool = Default()
    services = [
        *controller_pb2.DESCRIPTOR.services_by_name.values(),
        *node_pb2.DESCRIPTOR.services_by_name.values(),
        pool.FindServiceByName("grpc.health.v1.Health"),
        pool.FindServiceByName(REFLECTION),
    ]
    offered = {f"/{each.full_name}/{method.name}" for each in services for method in each.methods}
    assert offered == set(METHODS)


def test_every_listener_of_a_controller_authenticates(monkeypatch):
    """Also one that asks nobody who he is."""
    made = []
    original = grpc.aio.server

    def server(*args, **options):
        made.append(options["interceptors"])
        return original(*args, **options)

    monkeypatch.setattr(grpc.aio, "server", server)

    async def opened():
        door = ControllerListener(Hub(10.0, 5.0, 2.0), Address("127.0.0.1", 0))
        await door.close(None)

    asyncio.run(opened())
    ((interceptor,),) = made
    assert isinstance(interceptor, AuthInterceptor)


def test_a_method_that_is_not_in_the_table_is_refused_even_where_nobody_is_asked():
    """Deny is the default: a handler that nobody thought of is out of reach."""

    async def answer(_request, _context):
        return b"reached"

    async def scenario():
        server = grpc.aio.server(interceptors=(AuthInterceptor(Guard()),))
        handlers = {"Hidden": grpc.unary_unary_rpc_method_handler(answer)}
        service = grpc.method_handlers_generic_handler("disco.v1.Other", handlers)
        server.add_generic_rpc_handlers((service,))
        port = add_port(server, "127.0.0.1:0", Guard())
        await server.start()
        try:
            async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
                with pytest.raises(grpc.aio.AioRpcError) as refused:
                    await channel.unary_unary("/disco.v1.Other/Hidden")(b"", timeout=20)
        finally:
            await server.stop(None)
        return refused.value

    error = asyncio.run(scenario())
    assert error.code() is grpc.StatusCode.PERMISSION_DENIED
    assert "it is for nobody" in error.details()


def test_a_token_file_that_is_not_one_stops_the_daemon(tmp_path):
    """At the start; while it runs the tokens before serve on."""
    with pytest.raises(ConfigError, match="cannot be read"):
        TokenBook(tmp_path / "none")
    file = tmp_path / "tokens"
    file.write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigError, match="is no text"):
        TokenBook(file)


@pytest.mark.parametrize(
    ("mode", "user", "warned"),
    [
        (0o600, 65534, False),
        (0o640, 65534, True),
        (0o640, 0, False),  # as Kubernetes mounts a Secret for a daemon that is not root
        (0o644, 0, True),
        (0o604, 65534, True),
    ],
)
def test_a_token_file_that_others_can_read_is_warned_of(tmp_path, caplog, mode, user, warned):
    """It is not refused: in containers its mode may be somebody else's choice."""
    file = tmp_path / "tokens"
    file.write_text("client alice 0123456789abcdef\n")
    file.chmod(mode)
    if os.geteuid() == 0:
        os.chown(file, user, user)
    elif user == 0:
        pytest.skip("only root can have a file of root's")
    TokenBook(file)
    assert ("chmod 600" in caplog.text) == warned


def test_a_peer_is_written_as_an_address():
    """GRPC escapes the brackets of IPv6."""
    context = SimpleNamespace(peer=lambda: "ipv6:%5B::1%5D:4321")
    assert peer_of(context) == "ipv6:[::1]:4321"
