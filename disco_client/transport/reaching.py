"""Waits for a controller that may not be running yet, but not for one that refuses."""

from __future__ import annotations

import ipaddress

import grpc

from disco_client.errors import AccessDenied, ConnectionFailed
from disco_client.output import say
from disco_client.transport.calls import ask
from disco_client.transport.channel import ReloadingChannel
from disco_client.transport.refusals import dial, host_of, why_refused
from disco_client.transport.run_clock import RunClock

__all__ = ["await_controller", "denied", "details"]


_METHOD = "/disco.v1.SessionService/List"

_FIRST_LOOK_S = 0.5

_SAY_S = 2.0
"""After how long a wait for a controller says what it waits for."""

_LONGEST_S = 1.0


def details(error: grpc.RpcError) -> str:
    """Describes an error of gRPC in a line."""
    if isinstance(error, grpc.Call):
        return f"{error.code().name}: {error.details()}"
    return str(error) or type(error).__name__


def denied(error: Exception) -> AccessDenied | None:
    """The error of a call that the controller does not let this program make, else None."""
    refusals = (grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.PERMISSION_DENIED)
    if isinstance(error, grpc.Call) and error.code() in refusals:
        return AccessDenied(str(error.details()))
    return None


def await_controller(line: ReloadingChannel, timeout: float) -> None:
    """Waits until a controller answers.

    After two seconds that is said. Where this machine itself refuses the connection, there is no
    wait: whoever starts a controller here can start it first.

    Args:
        line: The channel to the controller.
        timeout: Seconds.

    Raises:
        AccessDenied: A controller answers, and one side refuses the other.
        ConnectionFailed: None answers.
        ThreadRefused: The system starts no thread for a call.
    """
    clock = RunClock(_LONGEST_S)
    with clock.turning():
        _probe(line, timeout, clock)


def _probe(line: ReloadingChannel, timeout: float, clock: RunClock) -> None:
    # Any call shows whether a controller answers; a channel's own ready future would keep
    # a polling thread for a while.
    probe = line.unary_unary(_METHOD)
    began = clock()
    first, wait, look, said = "", timeout, _FIRST_LOOK_S, False

    def tell() -> None:
        nonlocal said
        if not said:
            said = True
            say(f"waiting for a controller at {line.address} ({first or 'no answer yet'})")

    while True:
        quiet_s = max(_SAY_S - (clock() - began), 0.0)
        try:
            ask(
                probe,
                b"",
                timeout=max(wait, 0.0),
                quiet_s=quiet_s,
                on_wait=tell,
                wait_for_ready=bool(first),
            )
        except grpc.RpcError as error:
            if (refused := denied(error)) is not None:
                raise refused from None
            first = first or details(error)
            why = why_refused(line.address, line.credentials)
            if why is not None:
                msg = f"the controller at {line.address} cannot be spoken to: {why}"
                raise AccessDenied(msg) from None
        else:
            return
        waited = clock() - began
        if waited >= timeout or _nobody_listens(line.address):
            break
        wait, look = min(look, timeout - waited), look * 2
    here = "'disco local -- python program.py' runs a program with one on this machine; or "
    msg = (
        f"no controller answers at {line.address} (waited for {waited:.0f} s, {first}); "
        f"{here * _is_here(line.address)}start one: 'disco-controller --listen {line.address}', "
        "or correct the address (argument of connect(), or DISCO_ADDRESS)"
    )
    raise ConnectionFailed(msg)


def _is_here(address: str) -> bool:
    """Whether an address is one of this machine alone."""
    host = host_of(address)
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _nobody_listens(address: str) -> bool:
    """Whether this machine refuses connections to an address of its own."""
    if not _is_here(address):
        return False
    try:
        dial(address).close()
    except (ConnectionRefusedError, FileNotFoundError):
        return True
    except (OSError, ValueError):
        pass
    return False
