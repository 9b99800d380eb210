"""Which replies of each worker have come, so that none is missed, and none is handled twice."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

__all__ = ["ReceivedReplies"]

_CONFIRM_EVERY = 256
_CONFIRM_BYTES = 1 << 20


class ReceivedReplies:
    """Counts the replies of each worker, over one stream after another.

    Args:
        nodes: The node of each worker.

    Attributes:
        numbers: Of each worker, the number of the last reply that was handled.
    """

    def __init__(self, nodes: Sequence[str]) -> None:
        self.numbers: list[int] = [0] * len(nodes)
        self._nodes = nodes
        self._gaps: dict[int, int] = {}
        self._unconfirmed: Counter[int] = Counter()
        self._unconfirmed_bytes: Counter[str] = Counter()

    def is_next(self, worker: int, number: int) -> bool:
        """Whether a reply is the next one of its worker."""
        return number == self.numbers[worker] + 1

    def opens_gap(self, worker: int, number: int) -> bool:
        """Whether a reply shows, for the first time, that others before it are missing."""
        expected = self.numbers[worker] + 1
        if number <= expected or self._gaps.get(worker) == expected:
            return False
        self._gaps[worker] = expected
        return True

    def handled(self, worker: int, number: int, nbytes: int) -> bool:
        """Notes that a reply was handled.

        Returns:
            Whether the nodes are to be told, so that they need not keep what has come. When is a
            matter of one worker, and of its node: the numbers of all go to every node.
        """
        self.numbers[worker] = number
        node = self._nodes[worker]
        self._unconfirmed[worker] += 1
        self._unconfirmed_bytes[node] += nbytes
        enough = self._unconfirmed[worker] >= _CONFIRM_EVERY
        if not enough and self._unconfirmed_bytes[node] < _CONFIRM_BYTES:
            return False
        self._unconfirmed.clear()
        self._unconfirmed_bytes.clear()
        return True
