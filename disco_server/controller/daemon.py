"""The controller daemon: its server, its clock, its signals."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import secrets
import signal
from pathlib import Path
from typing import Any, cast
from urllib.parse import urlsplit

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from disco_client.errors import ConfigError
from disco_client.output import logger_of, say
from disco_client.telemetry.spans import setup
from disco_client.text import many
from disco_client.transport.credentials import is_local
from disco_client.transport.grpc_options import SERVER_OPTIONS, connection_limit
from disco_server.config import MAX_CONNECTIONS, Address, ControllerConfig
from disco_server.controller.auth import AuthInterceptor
from disco_server.controller.frames import FrameListener
from disco_server.controller.hub import Hub
from disco_server.controller.pods import PodsApi, keep_pods
from disco_server.controller.quotas import QuotaBook, limits_of
from disco_server.controller.service import SERVICE_NAMES, Edge
from disco_server.ipc.certificates import listener_secrets
from disco_server.ipc.event_loop import RunLoop
from disco_server.ipc.grpc_server import CannotListen, add_port, stop_server, warn_of_open_listener
from disco_server.observe.http import HttpListener, exposition
from disco_server.observe.logs import setup_audit
from disco_server.observe.open_files import Need, most_by_grpc
from disco_server.security import Guard
from disco_server.settings import OFF

__all__ = ["ControllerListener", "beat", "link_with", "run"]

_logger = logger_of("disco.controller")
_STOP_GRACE_S = 1.0
_TICK_S = 0.25
_TOKEN_BYTES = 32
_OPEN = Guard()


def run(config: ControllerConfig) -> int:
    """Runs a controller until a signal stops it; returns the exit code.

    Raises:
        ConfigError: The address cannot be listened on.
    """
    setup_audit(config.audit_log)
    setup("disco-controller")
    Need(config.max_connections, 1, "connections", "--max-connections").check(_logger)
    warn_of_open_listener(_logger, config.guard)
    pods = PodsApi.of_account(config.kubernetes_account) if config.kubernetes_account else None
    # Every message makes objects, few of which are garbage that needs to be searched for; with
    # Python's own thresholds a tenth of the time went into that.
    gc.set_threshold(20_000, 20, 100)
    with asyncio.Runner(loop_factory=RunLoop) as runner:
        return runner.run(_run(config, pods))


async def _run(config: ControllerConfig, pods: PodsApi | None) -> int:
    limits, book = limits_of(config), None
    if config.quota_file is not None:
        book = QuotaBook(config.quota_file, limits)
        limits = book.limits
    hub = Hub(
        config.session_lease_s,
        config.node_lease_s,
        config.heartbeat_s,
        node_return=config.node_return_s,
        limits=limits,
        expect_nodes=config.expect_nodes,
        clock=asyncio.get_running_loop().time,
    )
    door = ControllerListener(
        hub,
        config.listen_address,
        guard=config.guard,
        max_connections=config.max_connections,
        frames_port=config.frames_port if config.frames == "on" else None,
    )
    grace: float | None = None
    http: HttpListener | None = None
    stop, stop_now = asyncio.Event(), asyncio.Event()
    try:
        await door.open()
        http = await _open_http(hub, config, door.interceptor)
        if config.port_file:
            port = f"{door.address.path or door.address.port}\n"
            _write(config.port_file, port, "port_file")
        _on_signals(stop, stop_now)
        say(f"disco-controller ready at {door.address}", "stdout")  # the one line that is promised
        async with asyncio.TaskGroup() as tasks:
            running = [tasks.create_task(beat(hub, book))]
            if pods is not None:
                running.append(tasks.create_task(keep_pods(hub, pods)))
            await stop.wait()
            await door.announce_end()
            _logger.info("draining: %s", many(len(hub.cluster.sessions), "session"))
            await _drain(hub, stop_now, config.drain_s)
            for task in running:
                task.cancel()
        grace = None if stop_now.is_set() else _STOP_GRACE_S
    finally:
        await door.close(grace)
        if http is not None:
            await http.close()
    return 0


async def _open_http(
    hub: Hub, config: ControllerConfig, interceptor: AuthInterceptor
) -> HttpListener | None:
    if config.http == OFF:
        return None
    from disco_server.controller.dashboard import Page
    from disco_server.controller.metrics import collect

    open_to_all = not (config.auth_token_file or config.require_client_cert)
    token = ""
    if config.http_link_file and open_to_all:
        token = secrets.token_urlsafe(_TOKEN_BYTES)
    page = Page(hub, interceptor, token)
    http = HttpListener(
        config.http_address,
        exposition(lambda: collect(hub)),
        lambda: "draining" if hub.cluster.draining else "",
        routes=page.routes(),
        actions=page.actions(),
        secrets=listener_secrets(config.guard),
    )
    hub.dashboard = await http.open()
    if config.http_link_file:
        # Whoever is told this by a call may do by calls all that the page can.
        hub.dashboard = link_with(hub.dashboard, token)
        _write(config.http_link_file, f"{hub.dashboard}\n", "http_link_file", mode=0o600)
    return http


class ControllerListener:
    """An address at which a hub takes calls; belongs to the running event loop.

    Args:
        hub: The hub.
        listen: The address; port 0 lets the system choose.
        services: Which of the controller's services it offers, besides health
            and reflection.
        guard: Which callers are admitted, and how connections are encrypted.
        max_connections: How many connections it takes; further ones are closed at once.
        frames_port: The port for frames; 0 lets the system choose, None is for none.

    Attributes:
        address: Where it listens.
        interceptor: Authenticates callers.

    Raises:
        ConfigError: The address cannot be listened on, or a certificate or the file of the
            tokens cannot be read.
    """

    def __init__(
        self,
        hub: Hub,
        listen: Address,
        services: tuple[str, ...] = SERVICE_NAMES,
        *,
        guard: Guard = _OPEN,
        max_connections: int = MAX_CONNECTIONS,
        frames_port: int | None = 0,
    ) -> None:
        self._services = services
        options = [*SERVER_OPTIONS, connection_limit(most_by_grpc(max_connections))]
        self.interceptor = AuthInterceptor(guard)
        self._server = server = grpc.aio.server(interceptors=(self.interceptor,), options=options)
        self._checks = cast("Any", health).aio.HealthServicer()
        cast("Any", health_pb2_grpc).add_HealthServicer_to_server(self._checks, server)
        names = (*services, health.SERVICE_NAME, reflection.SERVICE_NAME)
        reflection.enable_server_reflection(names, server)
        self.address = _bind(server, listen, guard)
        self._frames = None
        if frames_port is not None:
            self._frames = FrameListener(self.address, frames_port, guard, max_connections)
        private = guard.encrypts or is_local(str(self.address))
        Edge(hub, self._frames, private=private).add_to(server, services)

    async def open(self) -> None:
        """Begins to take calls; connections made since the address was bound have waited."""
        if self._frames is not None:
            self._frames.open()
            _logger.info("frames are taken at port %d", self._frames.port)
        await self._server.start()
        for name in ("", *self._services):
            await self._checks.set(name, health_pb2.HealthCheckResponse.SERVING)

    async def announce_end(self) -> None:
        """Lets checks of its health fail from now on."""
        await self._checks.enter_graceful_shutdown()

    async def close(self, grace: float | None) -> None:
        """Ends the calls under way after some seconds, with None at once."""
        if self._frames is not None:
            await self._frames.close(grace)
        await stop_server(self._server, grace)


def _bind(server: grpc.aio.Server, wanted: Address, guard: Guard) -> Address:
    port = add_port(server, str(wanted), guard)
    if not port:
        msg = (
            f"cannot listen on {wanted}: the address is in use or not of this machine; "
            "choose another with --listen (port 0 picks a free one)"
        )
        raise CannotListen(msg)
    return wanted if wanted.path else Address(wanted.host, port)


def link_with(url: str, token: str) -> str:
    """The address of a page with the token that it asks for.

    The token is in the fragment, which browsers do not send: neither a log of requests nor
    another site that a page links to gets it.
    """
    page = url if urlsplit(url).scheme == "unix" else f"{url}/"
    return f"{page}#token={token}" if token else page


def _write(path: Path, text: str, where: str, *, mode: int = 0o666) -> None:
    """Writes a file atomically, because other processes wait for it.

    Args:
        path: The file; a pipe or device is written as it is.
        text: What is written.
        where: The setting that names it.
        mode: Who may open it, within the umask.

    Raises:
        ConfigError: That is not possible.
    """
    part = Path(f"{path}.{os.getpid()}")
    try:
        if path.exists() and not path.is_file():
            path.write_text(text)
            return
        part.unlink(missing_ok=True)
        os.close(os.open(part, os.O_CREAT | os.O_EXCL, mode))
        part.write_text(text)
        part.replace(path)
    except OSError as error:
        with contextlib.suppress(OSError):
            part.unlink()
        raise ConfigError(f"{where}: {path} cannot be written: {error.strerror}") from None


def _on_signals(stop: asyncio.Event, stop_now: asyncio.Event) -> None:
    def asked() -> None:
        (stop_now if stop.is_set() else stop).set()

    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, asked)


async def beat(hub: Hub, book: QuotaBook | None = None) -> None:
    """Runs a hub's timers; waits and leases are checked more often than heartbeats are sent.

    Args:
        hub: The hub.
        book: The quotas of single owners, which are read again when their file has changed.
    """
    loop = asyncio.get_running_loop()
    next_beat = loop.time()
    while True:
        hub.tick()
        if loop.time() >= next_beat:
            if book is not None and (limits := book.changed()) is not None:
                hub.apply(hub.cluster.limit(limits))
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
