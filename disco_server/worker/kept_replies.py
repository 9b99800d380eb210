"""Replies of ranks that the client may not have yet, because a connection may break.

Each rank numbers its replies. The client acknowledges them now and then up to a number, and
they are dropped here; after a lost connection it does so too, and gets those that follow.
So every reply arrives, and the client knows which it has seen.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence

__all__ = ["FULL_BYTES", "KeptReplies"]

FULL_BYTES = 64 << 20
"""With more than this no further replies are read from the ranks, which then block."""


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
            worker: The rank.
            number: The reply's number on this rank.
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

    def waiting(self, after: Mapping[int, int] | None = None) -> Iterable[bytes]:
        """The envelopes that the client may not have.

        Args:
            after: Of each worker, the number of the newest reply that is not wanted; by
                default all are.
        """
        known = after or {}
        return [raw for worker, number, raw in self._kept if number > known.get(worker, 0)]

    def sent(self, workers: Iterable[int]) -> list[int]:
        """How many replies each of some ranks has sent."""
        return [self._sent.get(worker, 0) for worker in workers]
