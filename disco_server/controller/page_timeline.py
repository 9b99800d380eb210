"""The last seconds of each rank, in so many parts of equal length as a screen can show."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Final

from disco_client.flight import Flight, RankFlight
from disco_client.wire.inspection import Inspection, what_is_done

__all__ = ["PARTS", "SECONDS", "timeline"]

SECONDS: Final = 10.0
PARTS: Final = 200
_NAMED: Final = 40
"""Of so many of the longest commands the name is told."""

_PART_NS: Final = round(SECONDS * 1e9) // PARTS
Span = tuple[int, int]


def timeline(found: Inspection, now_ns: int | None = None) -> list[dict[str, object]]:
    """Says of each rank how much of each part of the last `SECONDS` went into what.

    Args:
        found: With the records of the ranks.
        now_ns: The controller's monotonic clock, for which times were corrected.

    Returns:
        For each rank ``busy``, ``wait`` and ``collective``, each `PARTS` shares from 0 to 1:
        of commands, of waiting for others in collectives, and of collectives once all had
        come; and ``longest``, the longest commands, with names and seconds ago.
    """
    now = time.monotonic_ns() if now_ns is None else now_ns
    try:
        ranks = Flight.of(found).ranks
    except ValueError:  # a rank's own code wrote into its records
        return []
    return [_of_rank(rank, now) for rank in ranks]


def _of_rank(rank: RankFlight, now: int) -> dict[str, object]:
    begin = now - PARTS * _PART_NS
    commands = [c for c in rank.commands if (c.end_ns or now) > begin]
    collectives = [c for c in rank.collectives if (c.left_ns or now) > begin]
    waits = [(c.entered_ns, c.met_ns or c.left_ns or now) for c in collectives]
    moves = [(c.met_ns, c.left_ns or now) for c in collectives if c.met_ns]
    longest = sorted(commands, key=lambda c: c.start_ns - (c.end_ns or now))[:_NAMED]
    return {
        "worker": rank.worker,
        "node": rank.node,
        "busy": _shares(((c.start_ns, c.end_ns or now) for c in commands), begin),
        "wait": _shares(waits, begin),
        "collective": _shares(moves, begin),
        "longest": [
            {
                "what": what_is_done(command.action, command.name),
                "seq": command.seq,
                "ago": (now - command.start_ns) / 1e9,
                "seconds": ((command.end_ns or now) - command.start_ns) / 1e9,
                "running": not command.end_ns,
            }
            for command in longest
        ],
    }


def _shares(spans: Iterable[Span], begin: int) -> list[float]:
    """How much of each part is covered; commands that were timed together count once."""
    filled = [0] * PARTS
    last = begin
    for start, end in spans:
        at, stop = max(start, last), min(end, begin + PARTS * _PART_NS)
        last = max(last, stop)
        while at < stop:
            part = (at - begin) // _PART_NS
            edge = min(begin + (part + 1) * _PART_NS, stop)
            filled[part] += edge - at
            at = edge
    return [round(each / _PART_NS, 3) for each in filled]
