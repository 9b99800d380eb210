"""What a worker daemon counts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from disco_client.tracing.ring import COLLECTIVES, CollectiveRecord, read_collectives
from disco_server.observe.http import Buckets

if TYPE_CHECKING:
    from disco_server.observe.rank_memory import RankMemory

__all__ = ["SIZES", "CollectiveCounters", "NodeCounters", "size_of"]


SIZES = {
    0: "0",
    4 << 10: "4KiB",
    64 << 10: "64KiB",
    1 << 20: "1MiB",
    16 << 20: "16MiB",
    256 << 20: "256MiB",
    1 << 62: "more",
}
"""The classes of array sizes, each with its upper bound in bytes."""


def size_of(nbytes: int) -> str:
    """The class of a size."""
    return next(name for limit, name in SIZES.items() if nbytes <= limit)


class CollectiveCounters:
    """Counts the collectives of ranks, from their flight recorders.

    A rank is counted from the first look at it; a collective that was overwritten since the
    last look is not timed, but counted as missed.

    Attributes:
        seconds: By operation and class of size, from entering a collective to leaving it.
        waits: The same, only until all ranks had entered.
        missed: How many were not timed.
    """

    def __init__(self) -> None:
        self.seconds: dict[tuple[str, str], Buckets] = {}
        self.waits: dict[tuple[str, str], Buckets] = {}
        self.missed = 0
        self._seen: dict[RankMemory, int] = {}

    def look(self, memories: Iterable[RankMemory]) -> None:
        """Counts what ranks have done since the last look; others are forgotten.

        Args:
            memories: Those of the ranks that run now, or have just ended.
        """
        seen: dict[RankMemory, int] = {}
        for memory in memories:
            since = self._seen.get(memory, 0)
            raw, _ = memory.read()
            count, records = read_collectives(raw, since)
            # The last one may be under way; it is looked at next time.
            over = [record for record in records if record.left_ns]
            running = len(records) - len(over) if records and not records[-1].left_ns else 0
            seen[memory] = count - min(running, 1)
            self.missed += max(0, count - since - COLLECTIVES + 1)
            for record in over:
                self._count(record)
        self._seen = seen

    def _count(self, record: CollectiveRecord) -> None:
        key = (record.name.partition("(")[0] or "unknown", size_of(record.nbytes))
        whole = (record.left_ns - record.entered_ns) / 1e9
        # Where data is sent along with the agreement, both end at once.
        wait = (record.met_ns - record.entered_ns) / 1e9 if record.met_ns else whole
        self.seconds.setdefault(key, Buckets()).observe(whole)
        self.waits.setdefault(key, Buckets()).observe(wait)


@dataclass(slots=True)
class NodeCounters:
    """Counts since the start.

    Attributes:
        commands, batches: Received for sessions here.
        exits: Ranks that ended before their session did, by the cause.
        connections: Registrations with a controller.
        keys: Keys of the rendezvous that ranks wrote or read.
        collectives: Of the ranks here.
    """

    commands: int = 0
    batches: int = 0
    exits: Counter[str] = field(default_factory=Counter[str])
    connections: int = 0
    keys: int = 0
    collectives: CollectiveCounters = field(default_factory=CollectiveCounters)
