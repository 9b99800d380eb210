"""The port at which a controller takes frames, from whoever it has admitted over gRPC.

A stranger there may send one short frame, within some seconds. A peer that calls `Admit` gets
a secret for one connection, on which its first message must be the one that it has named. So
what it may do was decided when it was authenticated, and no secret is good for anything else.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import secrets
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import grpc

from disco_client.output import logger_of
from disco_client.pb import controller_pb2
from disco_server.controller.auth import as_caller, peer_of
from disco_server.controller.edge import first_message
from disco_server.ipc.carriers import FramedCarrier, scratch
from disco_server.ipc.certificates import listener_secrets
from disco_server.ipc.grpc_server import CannotListen
from disco_server.observe import logs
from disco_server.observe.acceptor import Acceptor, listening_sockets
from disco_server.settings import Address

if TYPE_CHECKING:
    import socket
    import ssl

    from disco_server.core.access import Identity
    from disco_server.security import Guard

__all__ = ["FrameListener", "Permits"]

_logger = logger_of("disco.controller")

_NUMBER_BYTES = 8
_SECRET_BYTES = 32
_LONGEST_DIGEST = 32
_MAX_PERMITS = 4096
_PERMIT_S = 10.0
"""For how long a permit is good: for TCP and TLS over any link."""

_TRIES = 20

Handler = Callable[[FramedCarrier], Awaitable[Any]]


@dataclass(frozen=True, slots=True)
class _Permit:
    """What one secret is good for."""

    secret: bytes
    first: bytes
    serve: Handler
    who: Identity
    metadata: tuple[Any, ...]
    until: float


class Permits:
    """The secrets that are good at this moment, each for one connection.

    Args:
        clock: Seconds that never go back.
        seconds: For how long a secret is good.
    """

    def __init__(self, clock: Callable[[], float], seconds: float = _PERMIT_S) -> None:
        self._clock = clock
        self._seconds = seconds
        self._open: OrderedDict[bytes, _Permit] = OrderedDict()

    def make(
        self, serve: Handler, first: bytes, who: Identity, metadata: tuple[Any, ...] = ()
    ) -> bytes:
        """Admits one connection; returns its secret, empty where too many are open.

        Args:
            serve: Serves it.
            first: The SHA-256 of its first message.
            who: Whose it is.
            metadata: What came with the request.
        """
        self._expire()
        if len(self._open) >= _MAX_PERMITS:
            return b""
        number, secret = secrets.token_bytes(_NUMBER_BYTES), secrets.token_bytes(_SECRET_BYTES)
        until = self._clock() + self._seconds
        self._open[number] = _Permit(secret, first, serve, who, metadata, until)
        return number + secret

    def take(self, given: bytes) -> _Permit | None:
        """Returns what a secret is good for, which it is not any more; None for no such secret."""
        self._expire()
        number, secret = given[:_NUMBER_BYTES], given[_NUMBER_BYTES:]
        found = self._open.get(number)
        if found is None or not hmac.compare_digest(found.secret, secret):
            return None
        return self._open.pop(number)

    def _expire(self) -> None:
        now = self._clock()
        while self._open and next(iter(self._open.values())).until <= now:
            self._open.popitem(last=False)


class FrameListener:
    """The port; belongs to the running event loop.

    Args:
        listen: Where the controller listens for gRPC, with its port.
        port: The port for frames on that host; 0 lets the system choose.
        guard: How connections are encrypted.
        max_connections: How many connections it takes; further ones are closed at once.

    Attributes:
        port: Where it listens; 0 on a Unix socket.

    Raises:
        CannotListen: The address cannot be listened on.
        ConfigError: A certificate cannot be read.
    """

    def __init__(self, listen: Address, port: int, guard: Guard, max_connections: int) -> None:
        self._context: ssl.SSLContext | None = listener_secrets(
            guard, required=guard.require_client_cert
        )
        self._permits = Permits(asyncio.get_running_loop().time)
        self._most = max_connections
        self._scratch = scratch()
        self._serving: dict[FramedCarrier, asyncio.Task[None]] = {}
        sockets, self.port = _bind(listen, port)
        self._acceptor = Acceptor("frames", sockets, self._carrier, self._introduce)
        self._path = Path(f"{listen.path}.frames") if listen.path else None

    def open(self) -> None:
        """Begins to take connections."""
        self._acceptor.open()

    async def close(self, grace: float | None) -> None:
        """Ends the connections after some seconds, with None at once."""
        self._acceptor.close()
        tasks = list(self._serving.values())
        if tasks and grace:
            await asyncio.wait(tasks, timeout=grace)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._path is not None:
            self._path.unlink(missing_ok=True)

    def admit(
        self,
        serve: Handler,
        request: controller_pb2.PermitRequest,
        who: Identity,
        metadata: tuple[Any, ...],
    ) -> controller_pb2.Permit:
        """Admits one connection of a peer.

        Args:
            serve: Serves it.
            request: The peer's.
            who: Who it is.
            metadata: What came with the request.
        """
        first = request.first[:_LONGEST_DIGEST]
        secret = self._permits.make(serve, first, who, metadata)
        return controller_pb2.Permit(secret=secret, port=self.port)

    # Connections --------------------------------------------------------------------------

    def _carrier(self) -> FramedCarrier:
        longest = _NUMBER_BYTES + _SECRET_BYTES
        return FramedCarrier(self._scratch, FramedCarrier.pause, limit=longest)

    async def _introduce(self, carrier: FramedCarrier) -> None:
        """Finds out what a connection is admitted for, and begins to serve it."""
        permit = await self._admit(carrier)
        if permit is None or len(self._serving) >= self._most:
            carrier.drop()
        else:
            self._serving[carrier] = asyncio.ensure_future(self._serve(carrier, permit))

    async def _serve(self, carrier: FramedCarrier, permit: _Permit) -> None:
        try:
            await self._talk(carrier, permit)
        except (OSError, grpc.aio.AbortError) as error:
            _logger.debug("a connection of frames from %s ended: %s", carrier.peer(), error)
        finally:
            del self._serving[carrier]
            carrier.close()

    async def _admit(self, carrier: FramedCarrier) -> _Permit | None:
        """Finds out what a connection is admitted for; None for nothing."""
        given, why = b"", "no secret came"
        if self._context is not None:
            await carrier.secure(self._context)
        try:
            given = await carrier.receive(bytes) or b""
        except ConnectionError as error:
            why = str(error)
        permit = self._permits.take(given)
        if permit is None:
            why = "its secret is unknown, used or too old" if given else why
            logs.refusals.record("refused", peer=peer_of(carrier), what="frames", outcome=why)
        return permit

    async def _talk(self, carrier: FramedCarrier, permit: _Permit) -> None:
        as_caller(permit.who)
        carrier.admit(permit.metadata)
        first = await first_message(carrier)
        if first is None:
            return
        if not hmac.compare_digest(hashlib.sha256(first).digest(), permit.first):
            what = "its first message is not the one that it was admitted for"
            logs.refusals.record(
                "refused",
                who=str(permit.who),
                peer=peer_of(carrier),
                what="frames",
                outcome=what,
            )
            return
        carrier.unread(first)
        await permit.serve(carrier)


def _bind(listen: Address, port: int) -> tuple[list[socket.socket], int]:
    """Opens the sockets of a host, all with the same port.

    Raises:
        CannotListen: The port is in use, or cannot be had.
    """
    where = Address(path=f"{listen.path}.frames") if listen.path else Address(listen.host, port)
    for tries_left in reversed(range(1 if where.port or where.path else _TRIES)):
        try:
            opened = listening_sockets(where)
        except OSError as error:
            if not tries_left:
                at = where if where.path else f"port {port} of {listen.host}"
                msg = (
                    f"cannot listen for frames on {at}: {error.strerror};"
                    " choose another with --frames-port (0 picks a free one), or --frames off"
                )
                raise CannotListen(msg) from None
        else:
            return opened, 0 if where.path else int(opened[0].getsockname()[1])
    raise AssertionError  # the last attempt returns or raises
