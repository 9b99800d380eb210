"""What ranks have replied and the client may not have yet, because a connection may break.

Each rank numbers its replies. The client says now and then up to which number it has
them, and they are forgotten here; after a lost connection it says so too, and gets what
came after. So every reply arrives, and the client knows which it has seen.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence

__all__ = ["KeptReplies"]

FULL_BYTES = 64 << 20
"""With more than this nobody reads further replies from the ranks, which then wait."""


class KeptReplies:
    """The replies of one session's ranks on one node, in the order in which they came.

    Attributes:
        nbytes: How large they are together.
    """

    def __init__(self) -> None:
        self._kept: deque[tuple[int, int, bytes]] = deque()
        self._sent: dict[int, int] = {}
        self.nbytes = 0

    def add(self, worker: int, number: int, raw: bytes) -> None:
        """Keeps a reply.

        Args:
            worker: Whose it is.
            number: How many replies that is from this rank.
            raw: The encoded envelope.
        """
        self._kept.append((worker, number, raw))
        self._sent[worker] = number
        self.nbytes += len(raw)

    def forget(self, received: Sequence[int]) -> None:
        """Drops what the client has.

        Args:
            received: The number of the newest reply that it has of each of the session's
                workers; empty for a client that wants none of these.
        """
        before, self._kept, self.nbytes = self._kept, deque(), 0
        if not received:
            return
        for worker, number, raw in before:
            if worker >= len(received) or number > received[worker]:
                self._kept.append((worker, number, raw))
                self.nbytes += len(raw)

    @property
    def full(self) -> bool:
        """Whether no more should be added for now."""
        return self.nbytes > FULL_BYTES

    def waiting(self) -> Iterable[bytes]:
        """The envelopes that the client may not have."""
        return [raw for _, _, raw in self._kept]

    def sent(self, workers: Iterable[int]) -> list[int]:
        """How many replies each of some ranks has sent."""
        return [self._sent.get(worker, 0) for worker in workers]
