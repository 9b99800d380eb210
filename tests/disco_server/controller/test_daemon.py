"""The controller as a process: its address, its clock, its signals."""

from __future__ import annotations

import asyncio
import signal
import socket

import grpc
import pytest
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection_pb2

from disco_client.errors import ConfigError
from disco_client.pb import controller_pb2
from disco_client.wire.codec import EnvelopeKind, envelopes_in
from disco_server.config import ControllerConfig
from disco_server.controller.daemon import run
from disco_server.controller.service import SERVICE_NAMES

Reason = controller_pb2.EndReason
Health = health_pb2.HealthCheckResponse


def check(rig, service=""):
    """Asks for the health of a service as every orchestrator does."""
    call = rig.channel.unary_unary(
        "/grpc.health.v1.Health/Check",
        request_serializer=health_pb2.HealthCheckRequest.SerializeToString,
        response_deserializer=Health.FromString,
    )
    return call(health_pb2.HealthCheckRequest(service=service))


async def busy(rig):
    """A node and a client with a running session: both, and its id."""
    node = await rig.node("one")
    client, session, _ = await rig.session(node)
    return node, client, session


async def drained(node, client, session):
    """Lets a client and its node hear that the controller leaves."""
    assert (await client.ended()).reason == Reason.END_REASON_DRAINED
    assert (await node.next(EnvelopeKind.END_SESSION))[0] == session
    await node.next(EnvelopeKind.DRAIN)


def test_an_address_in_use_is_refused_with_advice():
    """Also to a second controller, with which it must not share the port in silence."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(ConfigError, match=f"cannot listen on {address}.*--listen"):
            run(ControllerConfig(listen=address))


@pytest.mark.parametrize("kind", ["tcp", "unix"])
def test_the_port_file_says_where_it_listens_once_it_does(daemons, dial, tmp_path, kind):
    """The file is whole whenever it is there; on a Unix socket it holds the path."""
    file = tmp_path / "port"
    listen = "127.0.0.1:0" if kind == "tcp" else f"unix:{tmp_path}/socket"
    controller = daemons.controller("--listen", listen, "--port-file", file)
    where = file.read_text().strip()
    assert controller.address == (f"127.0.0.1:{where}" if kind == "tcp" else f"unix:{where}")
    assert not list(tmp_path.glob("port.*"))

    async def scenario(rig):
        assert (await check(rig)).status == Health.SERVING

    dial(controller.address, scenario)


def test_it_tells_tools_what_it_serves_and_that_it_is_well(daemons, dial):
    """By the standard health and reflection services, for each service by name."""
    controller = daemons.controller()

    async def scenario(rig):
        for name in ("", *SERVICE_NAMES):
            assert (await check(rig, name)).status == Health.SERVING
        assert (await rig.status(check(rig, "no.such")))[0] is grpc.StatusCode.NOT_FOUND
        call = rig.channel.stream_stream(
            "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo",
            request_serializer=reflection_pb2.ServerReflectionRequest.SerializeToString,
            response_deserializer=reflection_pb2.ServerReflectionResponse.FromString,
        )()
        await call.write(reflection_pb2.ServerReflectionRequest(list_services=""))
        listed = (await call.read()).list_services_response.service
        assert {service.name for service in listed} >= set(SERVICE_NAMES)
        call.cancel()

    dial(controller.address, scenario)


def test_its_clock_runs(daemons, dial):
    """Waits end in their time, silent nodes are dropped, and peers are told that it lives."""
    controller = daemons.controller(DISCO_HEARTBEAT_S="0.1", DISCO_NODE_LEASE_S="0.5")

    async def scenario(rig):
        client = await rig.client(timeout_s=0.3, num_workers=7)
        received = []
        while (message := await client.call.read()) is not grpc.aio.EOF:
            received += [each for _, each in envelopes_in(message)]
        assert EnvelopeKind.HEARTBEAT in {each.kind for each in received}
        ended = controller_pb2.SessionEnded.FromString(received[-1].payload)
        assert ended.reason == Reason.END_REASON_NO_SLOTS
        assert "no room for 7 workers in time" in ended.message
        assert "disco-worker --controller" in ended.message
        assert ended.slots.total_slots == 0
        silent = await rig.node("silent")
        assert "silent for more than 0.5 s" in await silent.refused()

    dial(controller.address, scenario)


def test_told_to_leave_it_waits_until_nothing_of_its_sessions_is_left(daemons, dial):
    """Clients hear it at once, checks of its health fail from then on, and it exits with 0."""
    controller = daemons.controller()

    async def scenario(rig):
        node, client, session = await busy(rig)
        controller.send(signal.SIGTERM)
        await drained(node, client, session)
        assert (await check(rig)).status == Health.NOT_SERVING
        assert controller.process.poll() is None
        await node.send(EnvelopeKind.SESSION_GONE, session=session)
        assert (await rig.status(node.raw()))[0] is grpc.StatusCode.UNAVAILABLE
        assert await asyncio.to_thread(controller.wait) == 0

    dial(controller.address, scenario)


@pytest.mark.parametrize("how", ["time", "signal"])
def test_a_node_that_does_not_answer_cannot_keep_it(daemons, dial, how):
    """It leaves when its time to drain is over, or at once when told a second time."""
    controller = daemons.controller(DISCO_DRAIN_S="0.2" if how == "time" else "600")

    async def scenario(rig):
        node, client, session = await busy(rig)
        controller.send(signal.SIGINT)
        await drained(node, client, session)
        if how == "signal":
            controller.send(signal.SIGTERM)
        assert await asyncio.to_thread(controller.wait) == 0

    dial(controller.address, scenario)
