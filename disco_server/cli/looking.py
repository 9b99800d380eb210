"""What commands share that look into a session of a controller."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, ParamSpec, TypeVar

import click

from disco_client.errors import ConnectionFailed
from disco_server.config import DEFAULT_ADDRESS

if TYPE_CHECKING:
    from disco_client.wire.inspection import Inspection

__all__ = ["address_option", "look_into"]

_CONNECT_S = 5.0

_P = ParamSpec("_P")
_R = TypeVar("_R")


def address_option(command: Callable[_P, _R]) -> Callable[_P, _R]:
    """Adds ``--address``, which arrives as ``address: str``."""
    return click.option(
        "--address",
        metavar="HOST:PORT",
        envvar="DISCO_ADDRESS",
        default=DEFAULT_ADDRESS,
        show_default=True,
        help="The controller.",
    )(command)


def look_into(address: str, session: str, *, stacks: bool, flights: bool) -> Inspection:
    """Asks a controller about a session.

    Args:
        address: The controller.
        session: The session's name or id.
        stacks: Whether to fetch the ranks' stacks.
        flights: Whether to fetch what their flight recorders hold.

    Raises:
        ConnectionFailed: No controller answers there.
        SessionError: It knows no such session.
    """
    # `disco doctor` must also run where gRPC is broken, and help need not load it.
    import grpc

    from disco_client.transport.inspecting import ask_for_inspection
    from disco_client.transport.options import CHANNEL_OPTIONS, target

    with grpc.insecure_channel(target(address), options=CHANNEL_OPTIONS) as channel:
        try:
            grpc.channel_ready_future(channel).result(timeout=_CONNECT_S)
        except grpc.FutureTimeoutError:
            msg = f"no controller answers at {address} within {_CONNECT_S:g} s; see --address"
            raise ConnectionFailed(msg) from None
        return ask_for_inspection(channel, session, stacks=stacks, flights=flights)
