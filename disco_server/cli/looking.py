"""What commands share that look into a session of a controller."""

from __future__ import annotations

from typing import TYPE_CHECKING

from disco_server.cli.options import Controller

if TYPE_CHECKING:
    from disco_client.wire.inspection import Inspection

__all__ = ["look_into"]


def look_into(controller: Controller, session: str, *, stacks: bool, flights: bool) -> Inspection:
    """Asks a controller about a session.

    Args:
        controller: The controller.
        session: The session's name or id.
        stacks: Whether to fetch the ranks' stacks.
        flights: Whether to fetch what their flight recorders hold.

    Raises:
        AccessDenied: The session is somebody else's, or one of both refuses the other.
        ConnectionFailed: No controller answers there.
        SessionError: It knows no such session.
    """
    # `disco doctor` must also run where gRPC is broken, and help need not load it.
    from disco_client.transport.inspecting import ask_for_inspection

    with controller.dialled() as line:
        return ask_for_inspection(line, session, stacks=stacks, flights=flights)
