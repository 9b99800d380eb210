"""The ports of daemons: gRPC servers, the requests that they parse, and their end."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Generator
from functools import wraps
from typing import TYPE_CHECKING, Any, cast

import grpc
from google.protobuf.message import DecodeError, Message

from disco_client.errors import ConfigError
from disco_client.transport.channel import target
from disco_server.ipc.certificates import CertificateFiles

if TYPE_CHECKING:
    from disco_server.security import Guard

__all__ = [
    "CannotListen",
    "add_port",
    "parsed",
    "quiet_if_peer_left",
    "stop_server",
    "warn_of_open_listener",
]


class CannotListen(ConfigError):
    """An address is in use, or not of this machine."""


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


def warn_of_open_listener(logger: logging.Logger, guard: Guard) -> None:
    """Warns at each start of a listener that the settings leave open to other machines."""
    if guard.insecure:
        logger.warning(
            "--insecure: connections may be neither encrypted nor asked who makes them; whoever"
            " reaches this daemon can run code on this cluster"
        )


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
