"""What a controller says of a session besides replies: draining nodes, and limits of its time."""

from __future__ import annotations

from disco_client.clock import monotonic
from disco_client.output import logger_of
from disco_client.pb import controller_pb2
from disco_client.transport.base import Expiry
from disco_client.wire.codec import EncodedEnvelope
from disco_client.wire.overview import limit_name

__all__ = ["Notices"]

_logger = logger_of(__name__)


class Notices:
    """The newest of them.

    Attributes:
        draining: The session's nodes that take no new sessions.
        expiry: When a limit of the controller's will end the session, as far as it was told.
    """

    def __init__(self) -> None:
        self.draining: tuple[str, ...] = ()
        self.expiry: Expiry | None = None

    def note_draining(self, received: EncodedEnvelope, ready: controller_pb2.SessionReady) -> None:
        """Notes that the node of a worker takes no new sessions, or takes them again."""
        worker = received.worker_plus_one - 1
        nodes = [rank.node for rank in ready.ranks if rank.worker == worker]
        known = dict.fromkeys((*self.draining, *nodes))
        if controller_pb2.Cordon.FromString(received.payload).lifted:
            known = dict.fromkeys(node for node in known if node not in nodes)
        self.draining = tuple(known)

    def note_expiring(self, told: controller_pb2.SessionExpiring) -> None:
        """Notes when a limit ends the session, or that none will soon."""
        if not told.reason:
            self.expiry = None
            return
        at = monotonic() + told.seconds
        # Logged first, so that a program that sees it can rely on the log.
        _logger.warning("%s", told.message)
        self.expiry = Expiry(limit_name(told.reason), told.limit_s, at)
