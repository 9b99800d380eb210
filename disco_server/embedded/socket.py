"""The session whose controller and first node are the client's own process."""

from __future__ import annotations

import logging
import os
import socket
import sys
import threading
import time
from typing import Any

from disco_client.arguments import check_session
from disco_client.connecting import opening, owner
from disco_client.errors import ConfigError, NoSlots
from disco_client.session import Session, print_logs
from disco_client.telemetry import spans
from disco_client.transport.base import Bound, Wish
from disco_client.transport.credentials import is_local
from disco_client.transport.grpc import GrpcTransport
from disco_client.waiting import AUTO, read_hang_report
from disco_client.wording import many
from disco_server.channels.tls import CannotListen, warn_of_open_door
from disco_server.config import Address
from disco_server.embedded.node import EmbeddedNode
from disco_server.guarding import Guard

__all__ = ["SocketSession"]

_logger = logging.getLogger("disco.embedded")

_QUIET_S = 0.5
"""A wait for nodes shorter than this is not worth a message."""

_OPEN_S = 60.0
_EVERYWHERE = ("0.0.0.0", "::")  # noqa: S104  (a host that a person may choose)


class SocketSession(Session):
    """A session over several machines without a controller daemon.

    This process is the controller, at ``host:port``, and node 0, whose workers are
    its child processes. On each other machine runs a worker daemon, started before
    or after this one::

        disco-worker --controller HOST:PORT --slots NUM_WORKERS_PER_NODE

    Workers are numbered node by node, node 0 first and the others in the order in
    which they came; what a node has beyond its workers stays unused. Opening waits
    until all nodes have joined, and ``shutdown`` says goodbye to them: their daemons
    end what ran there, and wait for the next controller at that address.

    Whoever reaches the address can take the place of a node. So an address that other
    machines reach needs TLS, and tokens or client certificates, as a controller daemon
    does; where only trusted machines are on the network, ``insecure=True`` does without.
    ``localhost`` is reachable from this machine only.

    Args:
        num_nodes: How many nodes, this process included.
        num_workers_per_node: How many workers each of them runs.
        num_groups: Into how many equal, consecutive groups the workers are divided.
        host: Where to listen: a name or an address of this machine, ``0.0.0.0`` for
            all of them.
        port: Where to listen; 0 picks a free port, which :attr:`address` tells.
        timeout: Seconds to wait for the other nodes.
        ccl: The collective library; None lets the first collective choose.
        name: What logs call the session.
        logs: Whether workers' output is written to this process's standard error.
        hang_report: After how many seconds a call that waits prints what the ranks do
            to standard error, once; 0 or None for never. The default is what
            ``DISCO_HANG_REPORT_S`` says, else 30.
        tls_cert: This program's certificate, a PEM file, which nodes are shown; else
            ``DISCO_TLS_CERT``.
        tls_key: Its key; else ``DISCO_TLS_KEY``.
        tls_ca: The certificate of who signs those of nodes; else ``DISCO_TLS_CA``.
        require_client_cert: Whether nodes must show one; else ``DISCO_REQUIRE_CLIENT_CERT``.
        auth_token_file: The tokens that nodes may show, ``worker NAME TOKEN`` a line; else
            ``DISCO_AUTH_TOKEN_FILE``.
        insecure: Whether other machines may join without; else ``DISCO_INSECURE``.

    Raises:
        ConfigError: An argument is wrong, or the address cannot be listened on, or stands
            open for other machines.
        NoSlots: Not enough nodes came in time; the message says what to run there.
        WorkerLost: A worker process could not be started.
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
        tls_cert: str | os.PathLike[str] | None = None,
        tls_key: str | os.PathLike[str] | None = None,
        tls_ca: str | os.PathLike[str] | None = None,
        require_client_cert: bool | None = None,
        auth_token_file: str | os.PathLike[str] | None = None,
        insecure: bool | None = None,
    ) -> None:
        _check_whole(num_nodes=num_nodes, num_workers_per_node=num_workers_per_node)
        num_workers = num_nodes * num_workers_per_node
        check_session(num_workers, num_groups, ccl, timeout)
        read_hang_report(hang_report)
        listen = _where(host, port)
        guard = Guard.read(
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
        warn_of_open_door(_logger, guard)
        try:
            node = EmbeddedNode(listen, num_nodes, num_workers_per_node, guard)
        except CannotListen:
            msg = (
                f"cannot listen on {listen}: the port is in use, or the host is not this "
                "machine; choose another (port 0 picks a free one)"
            )
            raise ConfigError(msg) from None
        self._address = Address(host, node.address.port)
        wish = Wish(num_workers, num_groups, ccl or "", name or "", owner(), _OPEN_S)
        try:
            command = _command(self._address, num_workers_per_node, guard)
            _await_nodes(node, command, num_nodes, num_workers_per_node, timeout)
            span = spans.begin("disco.session", {"disco.num_workers": num_workers})
            with opening(span, "disco.connect", str(node.private)):
                transport = _EmbeddedTransport.create(
                    str(node.private),
                    wish,
                    connect_timeout=_OPEN_S,
                    on_queued=lambda _waiting: None,
                )
            transport.take_along(node)
        except BaseException:
            node.stop()
            raise
        super().__init__(
            transport,
            num_groups=num_groups,
            ccl=ccl,
            log_sink=print_logs if logs else None,
            hang_report=hang_report,
            span=span,
        )

    @property
    def address(self) -> str:
        """Where the controller listens for nodes, as ``HOST:PORT``."""
        return str(self._address)


class _EmbeddedTransport(Bound, GrpcTransport):
    """A session of a controller that ends with it."""

    _node: EmbeddedNode

    def take_along(self, node: EmbeddedNode) -> None:
        """Lets a node end with the session."""
        self._node = node

    def close(self, timeout: float) -> None:
        """Ends the session, then the controller and node 0; idempotent."""
        if self._node.is_current:
            # The garbage collector found a forgotten session here, of all threads;
            # this one has to turn its loop for the end to come.
            threading.Thread(target=self.close, args=(timeout,), name="disco-close").start()
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
    # One address only: of a name with two, the second could be another program's.
    name = "127.0.0.1" if host == "localhost" else host
    text = f"[{name}]:{port}" if ":" in name else f"{name}:{port}"
    return Address.parse(text, where="host and port", any_port=True)


def _command(address: Address, per_node: int, guard: Guard) -> str:
    """What a person types on the other machines."""
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
    """Waits for the other nodes, and says what it waits for."""
    others = num_nodes - 1
    began, said = time.monotonic(), ""

    def tell() -> None:
        nonlocal said
        text = (
            f"waiting for {many(others, 'other node')}, {len(node.joined)} came; on each: {command}"
        )
        if text != said and time.monotonic() - began > _QUIET_S:
            said = text
            print(f"disco: {text}", file=sys.stderr, flush=True)  # noqa: T201  (for the person who waits)

    if not node.wait_for_nodes(timeout, tell):
        came = node.joined
        names = f" ({', '.join(came)})" if came else ""
        msg = (
            f"{len(came)} of {others} other nodes{names} joined this program's controller "
            f"within {timeout:g} s; on each of the other machines run: {command}"
        )
        total = (1 + len(came)) * per_node
        raise NoSlots(msg, total_slots=total, free_slots=total)
