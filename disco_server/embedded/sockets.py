"""The session whose controller and first node are the client's own process."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import logging
import os
import shutil
import socket
import sys
import tempfile
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from disco_client.arguments import check_name, check_session
from disco_client.clock import monotonic
from disco_client.connection import opening, owner
from disco_client.descriptors import OF_A_CONNECTION, check_descriptors
from disco_client.errors import ConfigError, ConnectionFailed, NoSlots
from disco_client.forks import check_grpc
from disco_client.output import logger_of, print_logs, say
from disco_client.outside_interrupts import OnInterrupt, check_on_interrupt
from disco_client.session import Session
from disco_client.telemetry import spans
from disco_client.telemetry.base import Span
from disco_client.text import many
from disco_client.threads import ThreadRefused, start_thread, starting
from disco_client.transport.base import Bound, Wish
from disco_client.transport.channel import check_grpc_threads
from disco_client.transport.credentials import is_local
from disco_client.transport.grpc import GrpcTransport
from disco_client.waiting import AUTO, read_hang_report
from disco_client.wire.session_secrets import read_secrets
from disco_server.config import Address, ControllerConfig, WorkerConfig, read_guard
from disco_server.controller.daemon import ControllerListener, beat
from disco_server.controller.hub import Hub
from disco_server.controller.service import NODE_SERVICES
from disco_server.core.nodes import EvenLayout
from disco_server.ipc.event_loop import RunLoop
from disco_server.ipc.grpc_server import CannotListen, warn_of_open_listener
from disco_server.security import Guard
from disco_server.settings import check_system
from disco_server.worker.daemon import WorkerNode
from disco_server.worker.environment import rank_environment

if TYPE_CHECKING:
    from disco_server.worker.launcher_pmi import LauncherPmi

__all__ = [
    "FIRST_NODE",
    "OPEN_S",
    "OWN_RANKS",
    "EmbeddedNode",
    "SocketSession",
    "import_path",
    "open_on",
]


# A controller and its first node, on one thread of the client's process.
#
# The controller has two listeners over one hub: a private one on a Unix socket, for the
# session and for node 0, and one at the address that the other nodes dial, which
# offers nothing but what nodes need. So a client that reaches that address cannot open a
# session of its own on these workers. The thread starts every process of node 0
# and lives until the last of them has ended, because the kernel ends them with it.


FIRST_NODE = "node-0"
"""The name of the node that is the client's own process."""

OWN_RANKS: Final[Mapping[str, Any]] = dict.fromkeys(
    ("allow_modules", "allow_read", "allow_save", "allow_load", "env"), ("*",)
)
"""What sessions may do where the ranks are the program's own: it may do anything anyway."""

_logger = logger_of("disco.embedded")
# In a user's program log records go to the handlers that it has set up.
logging.getLogger("disco").addHandler(logging.NullHandler())

_OPEN = Guard()
_START_S = 30.0
_DRAIN_S = 5.0
_GOODBYE_S = 1.0
_STOP_S = 15.0
_LOOK_S = 0.25
_RETURN_S = 5.0
"""How long the workers of other nodes outlive this process, or a broken connection to it."""

_THREADS = 6
"""What the loop of controller and node takes: itself, gRPC's for it, and those of its executor."""

_DESCRIPTORS = 30
"""What controller and node take beside the session's connection: measured, 22."""

_HERE = "a controller and a node in this process"

_NODE_LEASE_S = 30.0
"""A program may keep this process from running its event loop for a while."""


class EmbeddedNode:
    """A controller and node 0, which run from construction until :meth:`stop`.

    Args:
        listen: Where the other nodes find the controller; port 0 picks a free one.
        nodes: How many nodes the session will have, this one included.
        per_node: How many workers run on each.
        guard: How the listener for the other nodes is guarded.
        launcher: Where an MPI launcher started this process and the others, each for one rank,
            it numbers the ranks.

    Attributes:
        address: Where the controller listens for nodes.
        private: Where it listens for the session.

    Raises:
        ConfigError: The address cannot be listened on, or a certificate not be read, or this
            process was forked from one that has used gRPC.
        ConnectionFailed: The node did not come up.
        ThreadRefused: The system starts too few threads.
        DescriptorRefused: It opens too few descriptors.
    """

    def __init__(
        self,
        listen: Address,
        nodes: int,
        per_node: int,
        guard: Guard = _OPEN,
        launcher: LauncherPmi | None = None,
    ) -> None:
        check_grpc()
        check_grpc_threads(_HERE, _THREADS)
        check_descriptors(_DESCRIPTORS + OF_A_CONNECTION, _HERE)
        self._listen = listen
        self._guard = guard
        self._name = launcher.node_name if launcher is not None else FIRST_NODE
        self._layout = EvenLayout(self._name, nodes, per_node, numbered=launcher is not None)
        self._launcher = launcher
        self._loop = RunLoop()
        self._stop = asyncio.Event()
        self._started: concurrent.futures.Future[tuple[Hub, Address, Address]]
        self._started = concurrent.futures.Future()
        self._thread = threading.Thread(target=self._run, name="disco-node-0", daemon=True)
        try:
            start_thread(self._thread)
        except ThreadRefused:
            self._loop.close()
            raise
        try:
            with starting("the node of this process"):
                self._hub, self.address, self.private = self._started.result()
        except BaseException:
            self.stop()
            raise

    def _run(self) -> None:
        try:
            with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
                runner.run(self._serve())
        except BaseException as error:
            if self._started.done():
                _logger.exception("the embedded controller failed")
            else:
                self._started.set_exception(error)

    async def _serve(self) -> None:
        folder = Path(tempfile.mkdtemp(prefix="disco-node-"))
        config = ControllerConfig(session_lease_s=_RETURN_S, node_lease_s=_NODE_LEASE_S)
        hub = Hub(
            config.session_lease_s,
            config.node_lease_s,
            config.heartbeat_s,
            node_return=config.node_return_s,
            placer=self._layout.place,
            min_slots=self._layout.per_node,
            clock=self._loop.time,
        )
        listeners: list[ControllerListener] = []
        beating = asyncio.ensure_future(beat(hub))
        try:
            listeners.append(
                ControllerListener(hub, self._listen, NODE_SERVICES, guard=self._guard)
            )
            private = Address.parse(f"unix:{folder}/controller", where="TMPDIR")
            listeners.append(ControllerListener(hub, private))
            await self._serve_nodes(hub, *listeners)
        finally:
            beating.cancel()
            hub.dismiss("its session is over")
            for listener in listeners:
                await listener.close(_GOODBYE_S)
            shutil.rmtree(folder, ignore_errors=True)

    async def _serve_nodes(
        self, hub: Hub, public: ControllerListener, private: ControllerListener
    ) -> None:
        await private.open()
        config = WorkerConfig(
            controller=str(private.address),
            slots=self._layout.per_node,
            name=self._name,
            **OWN_RANKS,
        )
        environ = {**rank_environment(config), "PYTHONPATH": os.pathsep.join(import_path())}
        async with WorkerNode(config, environ, launcher=self._launcher) as node:
            try:
                await asyncio.wait_for(node.agent.registered.wait(), _START_S)
            except TimeoutError:
                msg = f"the workers of this process were not ready within {_START_S:.0f} s"
                raise ConnectionFailed(msg) from None
            # Only now, so that no other node can have taken the name of this one.
            await public.open()
            self._started.set_result((hub, public.address, private.address))
            await self._stop.wait()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(hub.drain(), _DRAIN_S)

    @property
    def joined(self) -> tuple[str, ...]:
        """The names of the other nodes that have joined."""
        return tuple(name for name in tuple(self._hub.cluster.members.nodes) if name != self._name)

    def wait_for_nodes(self, timeout: float, waiting: Callable[[], object]) -> bool:
        """Waits until every node has joined; whether they have.

        Args:
            timeout: Seconds.
            waiting: Called several times a second meanwhile.
        """
        coming = self._hub.wait_for_nodes(self._layout.nodes)
        future = asyncio.run_coroutine_threadsafe(coming, self._loop)
        deadline = monotonic() + timeout
        try:
            while (left := deadline - monotonic()) > 0:
                with contextlib.suppress(TimeoutError):
                    future.result(min(left, _LOOK_S))
                    return True
                waiting()
        finally:
            future.cancel()
        return False

    @property
    def is_current(self) -> bool:
        """Whether the calling thread is the node's own."""
        return threading.current_thread() is self._thread

    def stop(self) -> None:
        """Ends the controller and every process of node 0, and notifies the nodes; idempotent."""
        with contextlib.suppress(RuntimeError):  # the loop has ended by itself
            self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(_STOP_S)


def import_path() -> Sequence[str]:
    """Where this program's Python searches, for workers that should find the same modules."""
    return [str(Path(entry).absolute()) for entry in sys.path]


_QUIET_S = 0.5
"""A wait for nodes shorter than this is not worth a message."""

OPEN_S = 60.0
"""How long the start of a session may take once its nodes are there."""

_EVERYWHERE = ("0.0.0.0", "::")  # noqa: S104  (a host that a person may choose)


class SocketSession(Session):
    """A session over several machines without a controller daemon.

    This process is the controller, at ``host:port``, and node 0, whose workers are
    its child processes. On each other machine runs a worker daemon, started before
    or after this one::

        disco-worker --controller HOST:PORT --slots NUM_WORKERS_PER_NODE

    Workers are numbered node by node, node 0 first and the others in the order in
    which they joined; further slots of a node stay unused. The constructor waits until all
    nodes have joined, and ``shutdown`` releases them: their daemons end the workers there,
    and wait for the next controller at that address.

    A program that reaches the address can join as a node. So an address that other
    machines reach needs TLS, and tokens or client certificates, as a controller daemon
    does; where only trusted machines are on the network, ``insecure=True`` does without.
    ``localhost`` is reachable from this machine only.

    Args:
        num_nodes: How many nodes, this process included.
        num_workers_per_node: How many workers each of them runs.
        num_groups: Into how many equal, consecutive groups the workers are divided.
        host: Where to listen: a name or an address of this machine, ``0.0.0.0`` for
            all of them.
        port: Where to listen; 0 picks a free port, which is in :attr:`address`.
        timeout: Seconds to wait for the other nodes.
        ccl: The collective library; None lets the first collective choose.
        name: The session's name in logs.
        logs: Whether workers' output is written to this process's standard error.
        hang_report: After how many seconds a call that waits prints what the ranks do
            to standard error, once, and again if they do something else; 0 or None for
            never. The default is what ``DISCO_HANG_REPORT_S`` says, else 30.
        on_interrupt: What Ctrl-C in a call that waits ends: ``"wait"`` the wait, and the second
            time within a second also what the session executes; ``"session"`` both at once, as
            one wants of a notebook's cell. See :meth:`Session.interrupt`.
        tls_cert: This program's certificate, a PEM file, which nodes are shown; else
            ``DISCO_TLS_CERT``.
        tls_key: Its key; else ``DISCO_TLS_KEY``.
        tls_ca: The certificate authority that signs those of nodes; else ``DISCO_TLS_CA``.
        require_client_cert: Whether nodes must show one; else ``DISCO_REQUIRE_CLIENT_CERT``.
        auth_token_file: The tokens that nodes may show, ``worker NAME TOKEN`` a line; else
            ``DISCO_AUTH_TOKEN_FILE``.
        insecure: Whether other machines may join without; else ``DISCO_INSECURE``.
        secrets: Credentials for the environment of all workers, as for :func:`connect`; an
            ``insecure`` session that other machines can reach has none.

    Raises:
        ConfigError: An argument is wrong, or the address cannot be listened on, or is open to
            other machines, or this process was forked from one that has used gRPC.
        NoSlots: Not enough nodes joined in time; the message says what to run there.
        WorkerLost: A worker process could not be started.

    Examples:
        >>> with disco_client.SocketSession(
        ...     num_nodes=1, num_workers_per_node=2, num_groups=1, host="127.0.0.1", port=0
        ... ) as sockets:
        ...     print(sockets.allreduce(sockets.broadcast(np.ones(2))).numpy())
        [2. 2.]
    """

    def __init__(  # noqa: PLR0913  (the original's five, and what connect() has)
        self,
        num_nodes: int,
        num_workers_per_node: int,
        num_groups: int,
        host: str,
        port: int,
        *,
        timeout: float = 300.0,
        ccl: str | None = None,
        name: str | None = None,
        logs: bool = True,
        hang_report: float | None = AUTO,
        on_interrupt: OnInterrupt = "wait",
        tls_cert: str | os.PathLike[str] | None = None,
        tls_key: str | os.PathLike[str] | None = None,
        tls_ca: str | os.PathLike[str] | None = None,
        require_client_cert: bool | None = None,
        auth_token_file: str | os.PathLike[str] | None = None,
        insecure: bool | None = None,
        secrets: Mapping[str, str] | None = None,
    ) -> None:
        _check_whole(num_nodes=num_nodes, num_workers_per_node=num_workers_per_node)
        num_workers = num_nodes * num_workers_per_node
        check_system("a SocketSession")
        check_session(num_workers, num_groups, ccl, timeout)
        check_name(name or "")
        read_hang_report(hang_report)
        check_on_interrupt(on_interrupt)
        brought = read_secrets(secrets)
        listen = _where(host, port)
        guard = read_guard(
            {
                "tls_cert": tls_cert,
                "tls_key": tls_key,
                "tls_ca": tls_ca,
                "require_client_cert": require_client_cert,
                "auth_token_file": auth_token_file,
                "insecure": insecure,
            }
        )
        guard.check_listen(listen, "host")
        warn_of_open_listener(_logger, guard)
        try:
            node = EmbeddedNode(listen, num_nodes, num_workers_per_node, guard)
        except CannotListen:
            msg = (
                f"cannot listen on {listen}: the port is in use, or the host is not this "
                "machine; choose another (port 0 picks a free one)"
            )
            raise ConfigError(msg) from None
        self._address = Address(host, node.address.port)
        about = num_workers, num_groups, ccl or "", name or "", owner(), OPEN_S
        wish = Wish(*about, secrets=brought)
        try:
            command = _command(self._address, num_workers_per_node, guard)
            _await_nodes(node, command, num_nodes, num_workers_per_node, timeout)
            transport, span = open_on(node, wish)
        except BaseException:
            node.stop()
            raise
        super().__init__(
            transport,
            log_sink=print_logs if logs else None,
            hang_report=hang_report,
            on_interrupt=on_interrupt,
            span=span,
        )

    @property
    def address(self) -> str:
        """Where the controller listens for nodes, as ``HOST:PORT``."""
        return str(self._address)


def open_on(node: EmbeddedNode, wish: Wish) -> tuple[GrpcTransport, Span]:
    """Opens the session of a controller in this process, which ends with it.

    Returns:
        Its transport, and its span.

    Raises:
        NoSlots: Its nodes are not there.
        WorkerLost: A worker process could not be started.
    """
    span = spans.begin("disco.session", {"disco.num_workers": wish.num_workers})
    with opening(span, "disco.connect", str(node.private)):
        transport = _EmbeddedTransport.create(
            str(node.private), wish, connect_timeout=OPEN_S, on_queued=lambda _waiting: None
        )
    transport.take_along(node)
    return transport, span


class _EmbeddedTransport(Bound, GrpcTransport):
    """The transport of a session whose controller ends with it."""

    _node: EmbeddedNode

    def take_along(self, node: EmbeddedNode) -> None:
        """Lets a node end with the session."""
        self._node = node

    @property
    def entered(self) -> bool:
        """Whether the calling thread is in the middle of sending or reading, or is the node's."""
        return self._node.is_current or super().entered

    def close(self, timeout: float) -> None:
        """Ends the session, then the controller and node 0; idempotent."""
        if self._node.is_current:
            # The garbage collector finalizes an unreferenced session on this very thread,
            # which has to run its loop for the session to end.
            closing = threading.Thread(target=self.close, args=(timeout,), name="disco-close")
            start_thread(closing)
            return
        super().close(timeout)
        self._node.stop()


def _check_whole(**counts: Any) -> None:
    for what, value in counts.items():
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            msg = f"expected {what} to be an integer of 1 or more, got {value!r}"
            raise ConfigError(msg)


def _where(host: object, port: object) -> Address:
    if not isinstance(host, str) or not host:
        msg = f"expected a host such as 'localhost' or '0.0.0.0', got {host!r}"
        raise ConfigError(msg)
    if isinstance(port, bool) or not isinstance(port, int):
        msg = f"expected a port from 0 to 65535, got {port!r}"
        raise ConfigError(msg)
    # One address only: the second address of a name could be another program's.
    name = "127.0.0.1" if host == "localhost" else host
    text = f"[{name}]:{port}" if ":" in name else f"{name}:{port}"
    return Address.parse(text, where="host and port", any_port=True)


def _command(address: Address, per_node: int, guard: Guard) -> str:
    """The command to run on the other machines."""
    reachable = socket.gethostname() if address.host in _EVERYWHERE else address.host
    where = Address(reachable, address.port)
    flags = " --tls-ca FILE" * guard.encrypts
    flags += " --tls-cert FILE --tls-key FILE" * guard.require_client_cert
    flags += " --auth-token-file FILE" * (guard.auth_token_file is not None)
    if not guard.encrypts and not is_local(str(where)):
        flags += " --insecure"
    return f"disco-worker --controller {where} --slots {per_node}{flags}"


def _await_nodes(
    node: EmbeddedNode, command: str, num_nodes: int, per_node: int, timeout: float
) -> None:
    """Waits for the other nodes, and prints what it waits for."""
    others = num_nodes - 1
    began, said = monotonic(), ""

    def tell() -> None:
        nonlocal said
        text = (
            f"waiting for {many(others, 'other node')}, {len(node.joined)} came; on each: {command}"
        )
        if text != said and monotonic() - began > _QUIET_S:
            said = text
            say(f"disco: {text}")

    if not node.wait_for_nodes(timeout, tell):
        came = node.joined
        names = f" ({', '.join(came)})" if came else ""
        msg = (
            f"{len(came)} of {many(others, 'other node')}{names} joined this program's controller "
            f"within {timeout:g} s; on each of the other machines run: {command}"
        )
        total = (1 + len(came)) * per_node
        raise NoSlots(msg, total_slots=total, free_slots=total)
