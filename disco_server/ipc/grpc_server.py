"""The ports of daemons: gRPC servers whose certificates may be replaced while they run."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import ssl
from collections import OrderedDict, deque
from collections.abc import Awaitable, Callable, Generator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import wraps
from typing import TYPE_CHECKING, Any, cast

import grpc
from google.protobuf.message import DecodeError, Message

from disco_client.errors import ConfigError
from disco_client.output import logger_of
from disco_client.transport.channel import target
from disco_client.transport.credentials import check_pair, read_pem, state_of
from disco_client.wire.codec import join_envelopes

if TYPE_CHECKING:
    from pathlib import Path

    from disco_server.security import Guard

__all__ = [
    "CannotListen",
    "CertificateFiles",
    "Outbox",
    "add_port",
    "listener_secrets",
    "parsed",
    "quiet_if_peer_left",
    "stop_server",
    "warn_of_open_listener",
]


_logger = logger_of("disco.tls")
_SOON = timedelta(days=7)


class CannotListen(ConfigError):
    """An address is in use, or not of this machine."""


class CertificateFiles:
    """The certificates that a port shows and requires, as their files are now.

    Args:
        guard: Names the files.

    Raises:
        ConfigError: One of them cannot be read, or is not what it should be.
    """

    def __init__(self, guard: Guard) -> None:
        if guard.tls_cert is None or guard.tls_key is None:
            raise ConfigError("expected tls_cert and tls_key, to encrypt connections")
        self._cert, self._key = guard.tls_cert, guard.tls_key
        self._ca = guard.tls_ca if guard.require_client_cert else None
        self._seen = self._state()
        self.first = self._read()

    def _state(self) -> object:
        return state_of(self._cert, self._key, self._ca)

    def _read(self) -> grpc.ServerCertificateConfiguration:
        check_pair(self._cert, self._key)
        cert, key = read_pem(self._cert, "tls_cert"), read_pem(self._key, "tls_key")
        ca = read_pem(self._ca, "tls_ca") if self._ca is not None else None
        _warn_of_end(self._cert, cert)
        return grpc.ssl_server_certificate_configuration([(key, cert)], root_certificates=ca)

    def changed(self) -> grpc.ServerCertificateConfiguration | None:
        """Reads them again if they have changed; called by gRPC for each new connection.

        Files that are just being replaced may not fit together; then the former ones stay in
        use, and the next connection looks again when more has changed.
        """
        state = self._state()
        if state == self._seen:
            return None
        self._seen = state
        try:
            made = self._read()
        except ConfigError as error:
            _logger.warning("the certificates before serve on: %s", error)
            return None
        _logger.info("new connections use the new certificate in %s", self._cert)
        return made


def _warn_of_end(path: Path, pem: bytes) -> None:
    """Warns that a certificate has expired, or soon will."""
    from cryptography import x509  # loaded only if TLS is used

    try:
        end = x509.load_pem_x509_certificate(pem).not_valid_after_utc
    except ValueError as error:
        raise ConfigError(f"tls_cert: {path} holds no certificate: {error}") from None
    left = end - datetime.now(UTC)
    if left < timedelta(0):
        _logger.error("the certificate in %s has expired on %s: nobody will accept it", path, end)
    elif left < _SOON:
        _logger.warning("the certificate in %s expires on %s", path, end)


def add_port(server: grpc.aio.Server, address: str, guard: Guard) -> int:
    """Opens a port of a server.

    Args:
        server: The server, not started yet.
        address: ``HOST:PORT`` or ``unix:/path``.
        guard: How it is guarded.

    Returns:
        The port; 0 if the address cannot be listened on.

    Raises:
        ConfigError: A certificate cannot be read.
    """
    if address.startswith("unix:"):
        address = target(address)
    try:
        if not guard.encrypts:
            return server.add_insecure_port(address)
        files = CertificateFiles(guard)
        secrets = grpc.dynamic_ssl_server_credentials(
            files.first, cast("Any", files.changed), guard.require_client_cert
        )
        return server.add_secure_port(address, secrets)
    except RuntimeError:
        return 0


def listener_secrets(guard: Guard, *, required: bool = False) -> ssl.SSLContext | None:
    """Makes the TLS context of a port without gRPC, from the certificate of a daemon's gRPC port.

    Args:
        guard: How the gRPC port is guarded.
        required: Whether clients must show a certificate. A browser, Prometheus or a kubelet
            has none, so they need not; if `guard` requires one, a certificate that is shown
            identifies its client.

    Returns:
        The context, whose new connections use replaced certificates; None if connections are
        not encrypted.

    Raises:
        ConfigError: A certificate cannot be read, or does not fit its key.
    """
    if not guard.encrypts:
        return None
    files = guard.tls_cert, guard.tls_key, guard.tls_ca
    verify = ssl.CERT_REQUIRED if required else ssl.CERT_OPTIONAL
    seen, newest = state_of(*files), _make_context(guard, verify)

    def choose(connection: ssl.SSLObject, _name: str | None, _context: ssl.SSLContext) -> None:
        nonlocal seen, newest
        if (state := state_of(*files)) != seen:
            seen = state
            try:
                newest = _make_context(guard, verify)
            except ConfigError as error:
                _logger.warning("the certificates before serve on: %s", error)
        connection.context = newest

    newest.sni_callback = choose
    return newest


def _make_context(guard: Guard, verify: ssl.VerifyMode) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        context.load_cert_chain(cast("Path", guard.tls_cert), guard.tls_key)
        if guard.require_client_cert and guard.tls_ca is not None:
            context.load_verify_locations(guard.tls_ca)
            context.verify_mode = verify
    except (OSError, ssl.SSLError) as error:
        raise ConfigError(f"tls_cert: {guard.tls_cert} cannot be used: {error}") from None
    return context


def warn_of_open_listener(logger: logging.Logger, guard: Guard) -> None:
    """Warns at each start of a listener that the settings leave open to other machines."""
    if guard.insecure:
        logger.warning(
            "--insecure: connections may be neither encrypted nor asked who makes them; whoever"
            " reaches this daemon can run code on this cluster"
        )


# Requests parsed here rather than by gRPC, which answers malformed ones as internal errors.


def parsed(handler: Callable[..., Awaitable[Any]], kind: type[Message]) -> Callable[..., Any]:
    """Makes a handler of encoded requests from one of messages.

    Args:
        handler: Takes a message and the call's context.
        kind: The type of message; a request that is none ends the call as INVALID_ARGUMENT.
    """

    @wraps(handler)
    async def parse(raw: bytes, context: Any) -> Any:
        try:
            request = kind.FromString(raw)
        except DecodeError:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, "expected a disco.v1 message")
            raise
        return await handler(request, context)

    return parse


_WRITE_FAILED = "ExecuteBatchError"
"""What gRPC raises where a message could not be written; it has no public name."""


@contextlib.contextmanager
def quiet_if_peer_left() -> Generator[None]:
    """Ends a call as cancelled where a write shows that its peer has left.

    gRPC cancels a call whose peer leaves. If a write fails a moment before that, it logs
    the traceback of the write instead, as if the daemon had failed.

    Raises:
        asyncio.CancelledError: The peer has left.
    """
    try:
        yield
    except Exception as error:
        if type(error).__name__ == _WRITE_FAILED:
            raise asyncio.CancelledError from error
        raise


# Stopping the gRPC servers of daemons, so that the loop's end cuts off nothing of theirs.


_ENDING_S = 1.0
_OF_GRPC = ("_schedule_rpc_coro", "_handle_exceptions")


async def stop_server(server: grpc.aio.Server, grace: float | None) -> None:
    """Stops a server and waits until its tasks have ended.

    ``Server.stop`` returns while the calls that it has cancelled are still ending. A loop
    that is closed then cancels gRPC's own tasks as well, which now and then makes it
    print a traceback on standard error.

    Args:
        server: To be stopped, for good.
        grace: How many seconds calls under way may go on; None for none.
    """
    await server.stop(grace)
    ending = [task for task in asyncio.all_tasks() if _is_grpc_s(task)]
    if ending:
        await asyncio.wait(ending, timeout=_ENDING_S)


def _is_grpc_s(task: asyncio.Task[Any]) -> bool:
    return getattr(task.get_coro(), "__name__", "") in _OF_GRPC


# What waits to be written to one stream.
#
# The messages of one session keep their order; sessions that share a stream take turns,
# so that what one of them sends in bulk does not hold up another one's lone command.
#
# Posting never blocks, so a slow peer never holds up the task that relays to it. Memory
# stays bounded because commands are bounded by the client's window, and because droppable
# messages (workers' output) are dropped when too much waits.


_MAX_DROPPABLE_BYTES = 4 << 20
"""Droppable messages are dropped when more than this of their session waits."""

_JOINED_BYTES = 64 << 10
"""How much waits may leave as one message; an envelope that is larger leaves alone."""

_TURN_BYTES = 64 << 10
"""How much of a session is written before it is another session's turn."""


@dataclass(slots=True)
class _Queue:
    """What waits of one session, and how much of it may be written in this turn."""

    waiting: deque[bytes] = field(default_factory=deque[bytes])
    nbytes: int = 0
    credit: int = _TURN_BYTES


class Outbox:
    """The writing side of one stream; what carries that takes what is posted."""

    def __init__(self) -> None:
        self._queues: OrderedDict[int, _Queue] = OrderedDict()  # none of them is empty
        self._wake: Callable[[], object] = lambda: None
        self._closed = False
        self._farewell: bytes | None = None

    @property
    def nbytes(self) -> int:
        """How many bytes wait."""
        return sum(queue.nbytes for queue in self._queues.values())

    def post(self, raw: bytes, *, session: int = 0, droppable: bool = False) -> bool:
        """Adds an encoded envelope; returns whether it was taken.

        Args:
            raw: The envelope.
            session: Its session; envelopes of one session are written in the order of posting.
            droppable: Refuse it when the peer reads too slowly.
        """
        if self._closed:
            return False
        queue = self._queues.get(session)
        if queue is None:
            queue = self._queues[session] = _Queue()
        elif droppable and queue.nbytes > _MAX_DROPPABLE_BYTES:
            return False
        queue.waiting.append(raw)
        queue.nbytes += len(raw)
        self._wake()
        return True

    def close(self, farewell: bytes | None = None) -> None:
        """Lets it be over once everything posted has been written.

        Args:
            farewell: An envelope to write after all others.
        """
        self._closed = True
        self._farewell = farewell or self._farewell
        self._wake()

    def on_post(self, wake: Callable[[], object]) -> None:
        """Calls a function from now on whenever there may be something to :meth:`take`."""
        self._wake = wake

    @property
    def is_over(self) -> bool:
        """Whether nothing waits, and nothing will."""
        return self._closed and not self._queues and self._farewell is None

    def _next(self) -> tuple[int, _Queue]:
        """The session whose turn it is, and what waits of it; some session must have any."""
        queues = self._queues
        while True:
            session, queue = next(iter(queues.items()))
            if len(queue.waiting[0]) <= queue.credit or len(queues) == 1:
                return session, queue
            queue.credit += _TURN_BYTES
            queues.move_to_end(session)

    def take(self) -> list[bytes]:
        """Takes what leaves next: an envelope, and those that are small behind it."""
        taken: list[bytes] = []
        nbytes = 0
        while self._queues:
            session, queue = self._next()
            size = len(queue.waiting[0])
            if taken and nbytes + size > _JOINED_BYTES:
                break
            nbytes += size
            queue.credit = max(0, queue.credit - size)
            queue.nbytes -= size
            taken.append(queue.waiting.popleft())
            if not queue.waiting:
                del self._queues[session]
        if not taken and self._closed and self._farewell is not None:
            taken.append(self._farewell)
            self._farewell = None
        return taken

    async def run(self, write: Callable[[bytes], Awaitable[None]]) -> None:
        """Writes what is posted until the outbox is closed and empty.

        What waits meanwhile leaves as one message; what comes alone is not kept waiting.
        """
        posted = asyncio.Event()
        self.on_post(posted.set)
        while not self.is_over:
            while taken := self.take():
                await write(join_envelopes(taken))
            if not self._closed:
                await posted.wait()
                posted.clear()
