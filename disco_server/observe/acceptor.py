"""Connections at the ports of daemons without gRPC, of which those of strangers cost little.

Whoever connects is a stranger until it has said who it is. asyncio's own servers take as many
of them as come and keep them for ever; where no descriptor is free, they log thousands of
lines a second.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
import stat
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Generic, TypeVar

from disco_client.output import logger_of
from disco_server.observe.logs import refusals
from disco_server.observe.open_files import share_of_strangers
from disco_server.settings import Address

__all__ = ["STRANGER_S", "Acceptor", "listening_sockets", "peer_text"]

_logger = logger_of("disco")

STRANGER_S = 10.0
"""How long a stranger has to say who it is: for TCP and TLS over any link."""

_MOST = 256
"""How many strangers a port has at most; 24 KiB of an HTTP request each cost 13 MiB together."""

_PORTS = 2
"""How many such ports a controller has; a worker daemon has one."""

_BACKLOG = 1024
_AT_ONCE = 16
"""How many connections are accepted in one turn of the loop, so that those before say something."""

_PAUSE_S = 1.0
"""How long to wait where no descriptor is free."""

_Protocol = TypeVar("_Protocol", bound=asyncio.BaseProtocol)


class Acceptor(Generic[_Protocol]):
    """Accepts connections; belongs to the running event loop.

    All ports together have at most a third of the process's descriptors for strangers. Where
    one more comes, the one that has been silent for longest leaves: who speaks at once is
    served, however many are silent.

    Args:
        what: What the port is for, in the audit log.
        sockets: They listen, and are its own from now on.
        make: Makes the protocol of a connection.
        introduce: Waits until its peer has said who it is, or has left.
        secrets: How connections are encrypted; None for not at all.
    """

    def __init__(
        self,
        what: str,
        sockets: list[socket.socket],
        make: Callable[[], _Protocol],
        introduce: Callable[[_Protocol], Awaitable[object]],
        secrets: ssl.SSLContext | None = None,
    ) -> None:
        self._what = what
        self._make = make
        self._introduce = introduce
        self._secrets: dict[str, Any] = {}
        if secrets is not None:
            self._secrets = {"ssl": secrets, "ssl_handshake_timeout": STRANGER_S}
        self._loop = asyncio.get_running_loop()
        self._most = max(1, min(_MOST, share_of_strangers() // _PORTS))
        self._sockets = sockets
        self._strangers: dict[asyncio.Task[None], None] = {}  # the oldest first

    def open(self) -> None:
        """Begins to accept; connections made before have waited."""
        for sock in self._sockets:
            self._loop.add_reader(sock, self._accept, sock)

    def close(self) -> None:
        """Ends its sockets and the connections of strangers; idempotent."""
        for sock in self._sockets:
            self._loop.remove_reader(sock)
            sock.close()
        self._sockets = []
        for task in self._strangers:
            task.cancel()

    def _accept(self, listening: socket.socket) -> None:
        for _ in range(_AT_ONCE):
            try:
                sock, where = listening.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                _logger.warning("no connection for %s is accepted now: %s", self._what, error)
                self._loop.remove_reader(listening)
                self._loop.call_later(_PAUSE_S, self._resume, listening)
                return
            self._begin(sock, peer_text(where))

    def _resume(self, listening: socket.socket) -> None:
        if listening in self._sockets:
            self._loop.add_reader(listening, self._accept, listening)

    def _begin(self, sock: socket.socket, peer: str) -> None:
        sock.setblocking(False)
        if len(self._strangers) >= self._most:
            oldest = next(iter(self._strangers))
            del self._strangers[oldest]
            oldest.cancel()
        task = asyncio.ensure_future(self._meet(sock, peer))
        self._strangers[task] = None

        def ended(_task: asyncio.Task[None]) -> None:
            self._strangers.pop(task, None)
            if task.cancelled():  # before it began
                sock.close()

        task.add_done_callback(ended)

    async def _meet(self, sock: socket.socket, peer: str) -> None:
        """Waits until a stranger is none any more; ends the connection where that takes long."""
        transport: Any = None
        why = ""
        try:
            async with asyncio.timeout(STRANGER_S):
                transport, protocol = await self._loop.connect_accepted_socket(
                    self._make, sock, **self._secrets
                )
                await self._introduce(protocol)
                return
        except TimeoutError:
            why = f"it did not say who it is within {STRANGER_S:g} s"
        except asyncio.CancelledError:
            if self._sockets:  # else the port is closed
                why = f"of {self._most} that did not say who they are it has waited for longest"
        except OSError as error:
            why = f"its handshake failed: {error}"
        if transport is not None:
            transport.abort()
        if why:
            refusals.record("refused", peer=peer, what=self._what, outcome=why)


def peer_text(where: Any) -> str:
    """Where a peer is, as gRPC says it.

    Args:
        where: The address of its socket.
    """
    if not where or isinstance(where, str | bytes):
        return "unix:"
    host, port = str(where[0]), int(where[1])
    return f"ipv6:[{host}]:{port}" if ":" in host else f"ipv4:{host}:{port}"


def listening_sockets(where: Address) -> list[socket.socket]:
    """Opens the sockets of an address, those of a host all with the same port.

    Args:
        where: The address; port 0 lets the system choose.

    Raises:
        OSError: It is in use, or cannot be had.
    """
    if where.path:
        path = Path(where.path)
        with contextlib.suppress(OSError):
            if stat.S_ISSOCK(path.stat().st_mode):  # of a daemon that was killed
                path.unlink()
        made = socket.create_server(where.path, family=socket.AF_UNIX, backlog=_BACKLOG)
        made.setblocking(False)
        return [made]
    opened: list[socket.socket] = []
    chosen = where.port
    try:
        for family, _, _, _, at in socket.getaddrinfo(
            where.host, where.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        ):
            everywhere = family == socket.AF_INET6 and at[0] == "::"
            made = socket.create_server(
                (str(at[0]), chosen),
                family=family,
                backlog=_BACKLOG,
                dualstack_ipv6=everywhere and socket.has_dualstack_ipv6(),
            )
            opened.append(made)
            made.setblocking(False)
            chosen = int(made.getsockname()[1])
    except OSError:
        for sock in opened:
            sock.close()
        raise
    return opened
