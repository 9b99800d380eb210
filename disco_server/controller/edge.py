"""What all handlers of the controller share: how they fail, and how a stream ends."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import wraps
from typing import TYPE_CHECKING, Any, TypeAlias

import grpc
from google.protobuf.message import DecodeError

from disco_client.output import logger_of
from disco_client.pb import node_pb2
from disco_client.wire.codec import EnvelopeKind, envelope
from disco_client.wire.limits import MAX_NAME
from disco_server.controller.auth import caller, peer_of
from disco_server.ipc.grpc_server import quiet_if_peer_left
from disco_server.observe import logs

if TYPE_CHECKING:
    from disco_server.core.access import Identity
    from disco_server.core.cluster import Cluster
    from disco_server.core.session_state import SessionTable
    from disco_server.ipc.carriers import Carrier
    from disco_server.ipc.outbox import Outbox

__all__ = [
    "Context",
    "NotYours",
    "Stream",
    "end_stream",
    "find_session",
    "first_message",
    "guarded",
    "not_yours",
    "refuse",
    "refuse_call",
    "unknown_session",
]


_logger = logger_of("disco.controller")

_SERVER_STOPPED = "_ServerStoppedError"
"""What gRPC raises in calls that outlast their server; it has no public name."""

Context: TypeAlias = Any  # grpc.aio.ServicerContext, whose type parameters are of no use here
Stream: TypeAlias = AsyncIterator[bytes]


def guarded(handler: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
    """Hides the text of unforeseen exceptions from peers, which get the id of the log line.

    Args:
        handler: A method whose last argument is the call's context, or a carrier.
    """

    @wraps(handler)
    async def guarded_handler(self: Any, *arguments: Any) -> Any:
        context: Context = arguments[-1]
        try:
            with quiet_if_peer_left():
                return await handler(self, *arguments)
        except DecodeError:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, "expected a disco.v1 message")
        except ConnectionError as error:
            await context.abort(grpc.StatusCode.ABORTED, str(error)[:1000])
        except (asyncio.CancelledError, grpc.aio.AbortError):
            raise
        except Exception as error:
            if type(error).__name__ == _SERVER_STOPPED:
                raise  # gRPC ends the call; the peer is already gone
            error_id = secrets.token_hex(4)
            _logger.exception("handler failed, error id %s", error_id)
            await context.abort(
                grpc.StatusCode.INTERNAL, f"the controller failed; its log has error {error_id}"
            )

    return guarded_handler


class NotYours(Exception):
    """The session belongs to another owner than the caller."""


def not_yours(name: str) -> str:
    """The error message for a caller that asks for another owner's session."""
    return f"session {name!r} belongs to another owner; its owner and administrators may use it"


async def refuse_call(context: Context, event: str, name: str, why: str) -> None:
    """Ends a call that its caller may not make; the audit log has it.

    Raises:
        grpc.aio.AbortError: Always.
    """
    logs.refusals.record(event, who=str(caller()), peer=peer_of(context), session=name, outcome=why)
    await context.abort(grpc.StatusCode.PERMISSION_DENIED, why)


async def refuse(carrier: Carrier, message: str) -> None:
    """Tells a peer why its stream is refused."""
    refused = node_pb2.Refused(message=message).SerializeToString()
    await carrier.send(envelope(EnvelopeKind.REFUSED, refused))


FIRST_MESSAGE_S = 10.0
"""A peer that has sent no message for this long after it connected is refused."""


async def first_message(carrier: Carrier) -> bytes | None:
    """Waits for a peer's first message; None if it leaves without one.

    Raises:
        ConnectionError: The peer stays connected and sends nothing.
    """
    try:
        async with asyncio.timeout(FIRST_MESSAGE_S):
            return await carrier.receive(bytes)
    except TimeoutError:
        msg = f"expected a first message within {FIRST_MESSAGE_S:g} s"
        raise ConnectionError(msg) from None


_END_S = 1.0
"""How long to wait for a stream's tasks when it is over."""


async def end_stream(
    outbox: Outbox, writing: asyncio.Task[None], reading: asyncio.Task[Any]
) -> None:
    """Cancels the tasks of a stream, and waits a limited time for them.

    What must happen when a stream is over comes before this: a peer that breaks off
    may cancel the handler once more while it waits here. A message on its way is not
    cut off, because gRPC could not send the stream's status after it; and gRPC swallows a
    cancellation now and then, so the wait has a limit.
    """
    for task in (reading, writing):
        task.add_done_callback(_see)  # it may end after the wait below
    reading.cancel()
    outbox.close()
    await asyncio.wait((reading, writing), timeout=_END_S)
    for task in (reading, writing):
        task.cancel()  # which does nothing if it has ended


def _see(task: asyncio.Task[Any]) -> None:
    """Retrieves a task's exception, which asyncio would otherwise log as never retrieved."""
    if not task.cancelled():
        task.exception()


# Finds the session that a caller names, if the caller may use it.


_NAMED = 5


def find_session(
    cluster: Cluster, name: str, who: Identity, *, ended: bool = False
) -> SessionTable:
    """Finds a session by its name or its id in hexadecimal.

    Args:
        cluster: Has the sessions.
        name: The name or the id.
        who: The caller's identity.
        ended: Whether a session that is over may be returned if none runs.

    Raises:
        LookupError: There is none; the text says which there are.
        NotYours: It belongs to another owner.
    """
    found = cluster.find(name, who, ended=ended)
    if found is None:
        raise LookupError(unknown_session(cluster, name, who, ended=ended))
    if not who.owns(found.principal):
        raise NotYours(not_yours(found.name))
    return found


def unknown_session(cluster: Cluster, name: str, who: Identity, *, ended: bool = True) -> str:
    """The error message for a caller that asks for an unknown session."""
    known = [repr(s.name) for s in cluster.sessions.values() if who.owns(s.principal)]
    names = ", ".join(known[:_NAMED]) + ", ..." * (len(known) > _NAMED)
    over = ", or that ended within the last minutes," if ended else ","
    return (
        f"expected a session that runs{over} got {name[:MAX_NAME]!r}; there run: {names or 'none'}"
    )
