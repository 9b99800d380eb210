"""The controller daemon: its server, its clock, its signals."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
from pathlib import Path
from typing import Any, cast

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from disco_client.errors import ConfigError
from disco_client.transport.options import SERVER_OPTIONS
from disco_server.config import Address, ControllerConfig
from disco_server.controller.hub import Hub
from disco_server.controller.servicer import SERVICE_NAMES, Edge

__all__ = ["run"]

_logger = logging.getLogger("disco.controller")
_STOP_GRACE_S = 1.0
_TICK_S = 0.25


def run(config: ControllerConfig) -> int:
    """Runs a controller until it is told to stop; returns the exit code.

    Raises:
        ConfigError: The address cannot be listened on.
    """
    return asyncio.run(_run(config))


async def _run(config: ControllerConfig) -> int:
    hub = Hub(config.session_lease_s, config.node_lease_s, config.heartbeat_s)
    server = grpc.aio.server(options=SERVER_OPTIONS)
    Edge(hub).add_to(server)
    checks = cast("Any", health).aio.HealthServicer()
    cast("Any", health_pb2_grpc).add_HealthServicer_to_server(checks, server)
    names = (*SERVICE_NAMES, health.SERVICE_NAME, reflection.SERVICE_NAME)
    reflection.enable_server_reflection(names, server)
    address = _bind(server, config)
    await server.start()
    for name in ("", *SERVICE_NAMES):
        await checks.set(name, health_pb2.HealthCheckResponse.SERVING)
    if config.port_file:
        _write_port(Path(config.port_file), address)
    stop, stop_now = asyncio.Event(), asyncio.Event()
    _on_signals(stop, stop_now)
    print(f"disco-controller ready at {address}", flush=True)  # noqa: T201  (the one line that is promised)
    async with asyncio.TaskGroup() as tasks:
        beating = tasks.create_task(_beat(hub))
        await stop.wait()
        await checks.enter_graceful_shutdown()
        _logger.info("draining: %d session(s)", len(hub.cluster.sessions))
        await _drain(hub, stop_now, config.drain_s)
        beating.cancel()
        await server.stop(None if stop_now.is_set() else _STOP_GRACE_S)
    return 0


def _bind(server: grpc.aio.Server, config: ControllerConfig) -> Address:
    wanted = Address.parse(str(config.listen), where="listen", any_port=True)
    try:
        port = server.add_insecure_port(str(wanted))
    except RuntimeError:
        port = 0
    if not port:
        msg = (
            f"cannot listen on {wanted}: the address is in use or not of this machine; "
            "choose another with --listen (port 0 picks a free one)"
        )
        raise ConfigError(msg)
    return wanted if wanted.path else Address(wanted.host, port)


def _write_port(path: Path, address: Address) -> None:
    """Writes the port (of a Unix socket the path) at once, for whoever waits for the file."""
    part = path.with_name(f"{path.name}.{os.getpid()}")
    part.write_text(f"{address.path or address.port}\n")
    part.replace(path)


def _on_signals(stop: asyncio.Event, stop_now: asyncio.Event) -> None:
    def asked() -> None:
        (stop_now if stop.is_set() else stop).set()

    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, asked)


async def _beat(hub: Hub) -> None:
    """Time passes; waits and leases are looked at more often than peers are told."""
    loop = asyncio.get_running_loop()
    next_beat = loop.time()
    while True:
        hub.tick()
        if loop.time() >= next_beat:
            hub.beat()
            next_beat = loop.time() + hub.heartbeat
        await asyncio.sleep(min(_TICK_S, hub.heartbeat))


async def _drain(hub: Hub, stop_now: asyncio.Event, limit: float) -> None:
    draining = asyncio.ensure_future(hub.drain())
    hurried = asyncio.ensure_future(stop_now.wait())
    await asyncio.wait((draining, hurried), timeout=limit, return_when=asyncio.FIRST_COMPLETED)
    for task in (draining, hurried):
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
