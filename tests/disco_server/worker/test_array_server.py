"""How a daemon serves host arrays: where its clients are decides."""

from __future__ import annotations

import asyncio
import contextlib
from types import SimpleNamespace

import grpc
import pytest
from grpc._cython import cygrpc

from disco_server.security import Guard
from disco_server.settings import Address
from disco_server.worker.array_server import (
    ArrayService,
    MemoryService,
    choose_address,
    data_host,
    make_array_server,
)
from disco_server.worker.array_store import ArrayStore
from disco_server.worker.array_streams import ArrayRelay

STORE = ArrayStore({}, ArrayRelay(), lambda _raw: None)
NEAR = ("unix:/run/controller", "127.0.0.1:7600", "localhost:7600", "[::1]:7600")


@pytest.mark.parametrize("controller", NEAR)
def test_where_the_controller_is_near_memory_is_shared(controller):
    """Near is a Unix socket or loopback."""
    assert choose_address(Address.parse(controller)) is None
    assert isinstance(make_array_server(None, Address.parse(controller), STORE), MemoryService)


def test_a_controller_that_nobody_can_find_counts_as_near():
    """Until it is found no client comes, from anywhere."""
    assert choose_address(Address("no-such-host.invalid", 7600)) is None


def test_where_the_controller_is_far_the_way_there_is_an_address():
    """Of this machine, at a port that the system chooses, over gRPC."""
    far = Address("203.0.113.7", 7600)
    chosen = choose_address(far)
    if chosen is None:
        pytest.skip("this machine has no route to elsewhere")
    assert chosen.host not in ("", "203.0.113.7")
    assert chosen.port == 0
    server = make_array_server(None, far, STORE, guard=Guard(insecure=True))
    assert isinstance(server, ArrayService)


def test_a_port_that_others_could_listen_in_at_stays_closed(caplog):
    """Unless a person takes the risk; arrays go through the controller then."""
    caplog.set_level("INFO")
    far = Address("203.0.113.7", 7600)
    if choose_address(far) is None:
        pytest.skip("this machine has no route to elsewhere")
    assert make_array_server(None, far, STORE) is None
    assert "arrays through the controller" in caplog.text


@pytest.mark.parametrize("listen", [None, "0.0.0.0:7602", "[::]:7602", "unix:/run/arrays"])
def test_what_is_no_address_to_connect_to_is_none_of_ranks(listen):
    """They have the one on the way to the controller then, and none where that is near."""
    given = listen and Address.parse(listen)
    assert data_host(given, Address.parse(NEAR[1])) == ""
    far = Address("203.0.113.7", 7600)
    chosen = choose_address(far)
    assert data_host(given, far) == (chosen.host if chosen else "")


@pytest.mark.parametrize("host", ["192.0.2.4", "2001:db8::4", "node-a.example"])
def test_the_host_for_arrays_is_that_of_ranks_too(host):
    """As a person has configured it, however near the controller is."""
    assert data_host(Address(host, 0), Address.parse(NEAR[1])) == host


@pytest.mark.parametrize("listen", ["127.0.0.1:0", "unix:/run/arrays"])
def test_a_person_s_choice_stands(listen):
    """An address is served over gRPC, however near the controller is."""
    server = make_array_server(Address.parse(listen, any_port=True), Address.parse(NEAR[0]), STORE)
    assert isinstance(server, ArrayService)


def test_a_client_that_leaves_a_download_leaves_no_traceback(tmp_path, caplog):
    """Where a write fails before gRPC has cancelled the call."""
    caplog.set_level("INFO")
    begun = asyncio.Event()

    @contextlib.asynccontextmanager
    async def download(_transfer):
        begun.set()
        raise cygrpc.ExecuteBatchError("send", (), None)
        yield

    arrays = SimpleNamespace(download=download)
    store = SimpleNamespace(admit=lambda _transfer: arrays)

    async def run():
        service = ArrayService(Address(path=str(tmp_path / "arrays")), store)
        await service.start()
        async with asyncio.timeout(20), grpc.aio.insecure_channel(service.address) as channel:
            call = channel.unary_stream("/disco.v1.ArrayService/Download")(b"")
            await begun.wait()
            call.cancel()
        await service.stop()

    asyncio.run(run())
    assert "ExecuteBatchError" not in caplog.text
