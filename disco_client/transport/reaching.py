"""Waiting for a controller that may not be there yet, and not for one that refuses."""

from __future__ import annotations

import time

import grpc

from disco_client.errors import AccessDenied, ConnectionFailed
from disco_client.transport.apart import ask
from disco_client.transport.handshake import why_refused
from disco_client.transport.line import Line

__all__ = ["await_controller", "denied", "details"]

_METHOD = "/disco.v1.SessionService/List"
_FIRST_LOOK_S = 0.5


def details(error: grpc.RpcError) -> str:
    """Says in a line what gRPC found."""
    if isinstance(error, grpc.Call):
        return f"{error.code().name}: {error.details()}"
    return str(error) or type(error).__name__


def denied(error: Exception) -> AccessDenied | None:
    """The error of a call that the controller does not let this program make, else None."""
    refusals = (grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.PERMISSION_DENIED)
    if isinstance(error, grpc.Call) and error.code() in refusals:
        return AccessDenied(str(error.details()))
    return None


def await_controller(line: Line, timeout: float) -> None:
    """Waits until somebody answers.

    Args:
        line: Leads to the controller.
        timeout: Seconds.

    Raises:
        AccessDenied: Somebody is there, and one of both refuses the other.
        ConnectionFailed: Nobody is.
    """
    # Any call tells whether somebody answers; a channel's own ready future would keep
    # a polling thread for a while.
    probe = line.unary_unary(_METHOD)
    deadline = time.monotonic() + timeout
    first, wait, look = "", timeout, _FIRST_LOOK_S
    while True:
        try:
            ask(probe, b"", timeout=max(wait, 0.0), wait_for_ready=bool(first))
        except grpc.RpcError as error:
            if (refused := denied(error)) is not None:
                raise refused from None
            why = why_refused(line.address, line.credentials)
            if why is not None:
                msg = f"the controller at {line.address} cannot be spoken to: {why}"
                raise AccessDenied(msg) from None
            first = first or details(error)
        else:
            return
        left = deadline - time.monotonic()
        if left <= 0:
            break
        wait, look = min(look, left), look * 2
    msg = (
        f"no controller answers at {line.address} (waited up to {timeout:.0f} s, "
        f"{first}); start one: 'disco-controller --listen {line.address}', "
        "or correct the address (argument of connect(), or DISCO_ADDRESS)"
    )
    raise ConnectionFailed(msg)
