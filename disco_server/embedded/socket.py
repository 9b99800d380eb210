"""The session whose controller and first node are the client's own process."""

from __future__ import annotations

import socket
import sys
import threading
import time
from typing import Any

from disco_client.arguments import check_session
from disco_client.connecting import owner
from disco_client.errors import ConfigError, NoSlots
from disco_client.session import Session, print_logs
from disco_client.transport.base import Bound, Wish
from disco_client.transport.grpc import GrpcTransport
from disco_client.waiting import AUTO, read_hang_report
from disco_server.config import Address
from disco_server.embedded.node import EmbeddedNode

__all__ = ["SocketSession"]

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

    Whoever reaches the address can take the place of a node, so use one of a network
    that you trust. ``localhost`` is reachable from this machine only.

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

    Raises:
        ConfigError: An argument is wrong, or the address cannot be listened on.
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
    ) -> None:
        _check_whole(num_nodes=num_nodes, num_workers_per_node=num_workers_per_node)
        num_workers = num_nodes * num_workers_per_node
        check_session(num_workers, num_groups, ccl, timeout)
        read_hang_report(hang_report)
        listen = _where(host, port)
        try:
            node = EmbeddedNode(listen, num_nodes, num_workers_per_node)
        except ConfigError:
            msg = (
                f"cannot listen on {listen}: the port is in use, or the host is not this "
                "machine; choose another (port 0 picks a free one)"
            )
            raise ConfigError(msg) from None
        self._address = Address(host, node.address.port)
        wish = Wish(num_workers, num_groups, ccl or "", name or "", owner(), _OPEN_S)
        try:
            _await_nodes(node, self._address, num_nodes, num_workers_per_node, timeout)
            transport = _EmbeddedTransport.create(
                str(node.private), wish, connect_timeout=_OPEN_S, on_queued=lambda _waiting: None
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


def _await_nodes(
    node: EmbeddedNode, address: Address, num_nodes: int, per_node: int, timeout: float
) -> None:
    """Waits for the other nodes, and says what it waits for."""
    others = num_nodes - 1
    reachable = socket.gethostname() if address.host in _EVERYWHERE else address.host
    where = Address(reachable, address.port)
    command = f"disco-worker --controller {where} --slots {per_node}"
    began, said = time.monotonic(), ""

    def tell() -> None:
        nonlocal said
        text = f"waiting for {others} other node(s), {len(node.joined)} came; on each: {command}"
        if text != said and time.monotonic() - began > _QUIET_S:
            said = text
            print(f"disco: {text}", file=sys.stderr, flush=True)  # noqa: T201  (for the person who waits)

    if not node.wait_for_nodes(timeout, tell):
        came = node.joined
        names = f" ({', '.join(came)})" if came else ""
        msg = (
            f"{len(came)} of {others} other nodes{names} joined the controller at {address} "
            f"within {timeout:g} s; on each of the other machines run: {command}"
        )
        total = (1 + len(came)) * per_node
        raise NoSlots(msg, total_slots=total, free_slots=total)
