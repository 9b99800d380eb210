"""Asks a controller what the ranks of a session do."""

from __future__ import annotations

import grpc

from disco_client.errors import SessionError
from disco_client.pb import controller_pb2
from disco_client.transport.line import Line
from disco_client.transport.reaching import denied, details
from disco_client.wire.inspection import Inspection, decode_inspection

__all__ = ["ask_for_inspection"]

_METHOD = "/disco.v1.SessionService/Inspect"
_NODES_S = 3.0
"""How long the controller waits for nodes."""

_CONTROLLER_S = 8.0
"""How long the controller is waited for; the records of many ranks take a moment."""


def ask_for_inspection(line: Line, session: str, *, stacks: bool, flights: bool) -> Inspection:
    """Asks; returns within seconds, whatever the session does.

    Args:
        line: To the controller.
        session: The session's id in hexadecimal, or its name.
        stacks: Whether to fetch the ranks' Python stacks.
        flights: Whether to fetch what their flight recorders hold.

    Raises:
        AccessDenied: The session is somebody else's, or the controller lets nobody in as this.
        SessionError: The controller did not answer, or knows no such session.
    """
    call = line.unary_unary(
        _METHOD,
        request_serializer=controller_pb2.InspectRequest.SerializeToString,
        response_deserializer=controller_pb2.InspectResult.FromString,
    )
    request = controller_pb2.InspectRequest(
        name=session, stacks=stacks, flights=flights, timeout_s=_NODES_S
    )
    try:
        return decode_inspection(call(request, timeout=_CONTROLLER_S))
    except grpc.RpcError as error:
        if (refused := denied(error)) is not None:
            raise refused from None
        msg = f"the controller cannot say what session {session} does: {details(error)}"
        if isinstance(error, grpc.Call) and error.code() is grpc.StatusCode.NOT_FOUND:
            msg = str(error.details())
        raise SessionError(msg) from None
    except ValueError:  # the channel is closed
        msg = f"session {session} has been shut down here, so the controller cannot be asked"
        raise SessionError(msg) from None
