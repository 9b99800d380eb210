"""Finds the session that somebody names, if it is his."""

from __future__ import annotations

from disco_server.controller.streams import MAX_NAME, NotYours, not_yours
from disco_server.core.access import Identity
from disco_server.core.cluster import Cluster
from disco_server.core.session_state import SessionTable

__all__ = ["find_session", "unknown_session"]

_NAMED = 5


def find_session(
    cluster: Cluster, name: str, who: Identity, *, ended: bool = False
) -> SessionTable:
    """Finds a session by its name or its id in hexadecimal.

    Args:
        cluster: Where.
        name: Which.
        who: Who asks.
        ended: Whether one that is over will do where none is there.

    Raises:
        LookupError: There is none; the text says which there are.
        NotYours: It is somebody else's.
    """
    found = cluster.find(name, who, ended=ended)
    if found is None:
        raise LookupError(unknown_session(cluster, name, who, ended=ended))
    if not who.owns(found.principal):
        raise NotYours(not_yours(found.name))
    return found


def unknown_session(cluster: Cluster, name: str, who: Identity, *, ended: bool = True) -> str:
    """What is said to who asks for a session that nobody knows."""
    known = [repr(s.name) for s in cluster.sessions.values() if who.owns(s.principal)]
    names = ", ".join(known[:_NAMED]) + ", ..." * (len(known) > _NAMED)
    over = ", or that ended within the last minutes," if ended else ","
    return (
        f"expected a session that runs{over} got {name[:MAX_NAME]!r}; there run: {names or 'none'}"
    )
