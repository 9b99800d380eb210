"""Asks a controller what the ranks of a session do."""

from __future__ import annotations

import time
from collections.abc import Sequence

import grpc

from disco_client.errors import NoSuchSession, SessionError
from disco_client.pb import controller_pb2
from disco_client.transport.apart import ask
from disco_client.transport.line import Line
from disco_client.transport.reaching import denied, details
from disco_client.wire.flight_cuts import Since
from disco_client.wire.inspection import Inspection, decode_inspection, encode_followed

__all__ = ["ask_for_inspection"]

_METHOD = "/disco.v1.SessionService/Inspect"
_NODES_S = 3.0
"""How long the controller waits for nodes."""

_CONTROLLER_S = 8.0
"""How long the controller is waited for; the records of many ranks take a moment."""


def ask_for_inspection(
    line: Line,
    session: str,
    *,
    stacks: bool,
    flights: bool,
    since: Sequence[Since] | None = None,
) -> Inspection:
    """Asks; returns within seconds, whatever the session does.

    Args:
        line: To the controller.
        session: The session's id in hexadecimal, or its name.
        stacks: Whether to fetch the ranks' Python stacks.
        flights: Whether to fetch what their flight recorders hold.
        since: How far ranks were followed, to fetch instead what is new; see ``Transport``.

    Raises:
        AccessDenied: The session is somebody else's, or the controller lets nobody in as this.
        NoSuchSession: The controller knows no such session.
        SessionError: It did not answer.
    """
    call = line.unary_unary(
        _METHOD,
        request_serializer=controller_pb2.InspectRequest.SerializeToString,
        response_deserializer=controller_pb2.InspectResult.FromString,
    )
    request = controller_pb2.InspectRequest(
        name=session,
        stacks=stacks,
        flights=flights,
        timeout_s=_NODES_S,
        follow=since is not None,
        since=encode_followed(since or ()),
    )
    try:
        asked = time.monotonic_ns()
        result = ask(call, request, timeout=_CONTROLLER_S)
        return decode_inspection(result, asked, time.monotonic_ns())
    except grpc.RpcError as error:
        if (refused := denied(error)) is not None:
            raise refused from None
        msg = f"the controller cannot say what session {session} does: {details(error)}"
        if isinstance(error, grpc.Call) and error.code() is grpc.StatusCode.NOT_FOUND:
            raise NoSuchSession(str(error.details())) from None
        raise SessionError(msg) from None
    except ValueError:  # the channel is closed
        msg = f"session {session} has been shut down here, so the controller cannot be asked"
        raise SessionError(msg) from None
