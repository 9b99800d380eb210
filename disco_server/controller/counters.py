"""What a controller counts while it relays."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from disco_server.core.session_state import EndReason
from disco_server.observe.http import Buckets

__all__ = ["ControllerCounters"]


@dataclass(slots=True)
class ControllerCounters:
    """Counts since the start; plain numbers, because each batch updates them.

    Attributes:
        commands, batches: Of clients, relayed to nodes.
        to_workers, to_clients: Bytes relayed, of batches and of replies and output.
        created: Sessions asked for.
        resumed: Connections of clients that came back or attached to a session.
        ended: Sessions that are over, by the reason.
        joined: Registrations of nodes.
        node_round_trip: Seconds from a heartbeat to the node's answer.
    """

    commands: int = 0
    batches: int = 0
    to_workers: int = 0
    to_clients: int = 0
    created: int = 0
    resumed: int = 0
    ended: Counter[EndReason] = field(default_factory=Counter[EndReason])
    joined: int = 0
    node_round_trip: Buckets = field(default_factory=Buckets)
