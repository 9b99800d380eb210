"""What a rank does at this moment, from the memory of its flight recorder: the end of it alone.

Reading all of it takes some ten milliseconds, which is too much for who asks every second.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from disco_client.wire.flight import (
    COLLECTIVE,
    COLLECTIVES,
    COLLECTIVES_AT,
    ENDS_AT,
    KINDS_AT,
    SLOTS,
    STARTS_AT,
    CollectiveRecord,
    FlightRecord,
    Header,
    _read_commands,
    _read_form,
    open_memory,
)

__all__ = ["FlightNow", "read_now"]

_ANCHORS = 3
"""So many times from the end on the last command that has ended is between two of them."""


@dataclass(frozen=True, slots=True)
class FlightNow:
    """The end of what one rank has recorded.

    Attributes:
        record: Its last commands, among them the one that runs and the last that has
            ended, and its last collective.
        collectives: How many it has entered.
        collective_bytes: The bytes of its arrays in them.
    """

    record: FlightRecord = field(default_factory=FlightRecord)
    collectives: int = 0
    collective_bytes: int = 0


def read_now(raw: bytes | bytearray, emptied: int = 0) -> FlightNow:
    """Reads the end of a copy of a rank's memory; takes what ``read_flight`` does.

    Raises:
        ValueError: This is no such memory.
    """
    opened = open_memory(raw)
    if opened is None:
        return FlightNow()
    raw, header, names = opened
    first = max(emptied, header[Header.EMPTIED]) - SLOTS
    first = _near_the_end(raw, header[Header.EMPTIED], max(first, 1))
    count = header[Header.COLLECTIVES]
    return FlightNow(
        FlightRecord(
            _read_commands(raw, header[Header.EMPTIED], first, names),
            _last_collective(raw, count, names),
        ),
        count,
        header[Header.BYTES],
    )


def _near_the_end(raw: bytes | bytearray, emptied: int, first: int) -> int:
    """The command from which on it is enough to read."""
    view = memoryview(raw)
    starts = view[STARTS_AT:ENDS_AT].cast("Q")
    ends = view[ENDS_AT:KINDS_AT].cast("Q")
    anchors = 0
    # What is not used yet has no times.
    for seq in range(emptied - 1, max(first, emptied - SLOTS) - 1, -1):
        slot = seq % SLOTS
        anchors += bool(starts[slot]) + bool(ends[slot])
        if anchors >= _ANCHORS:
            return seq
    return first


def _last_collective(
    raw: bytes | bytearray, count: int, names: list[str]
) -> tuple[CollectiveRecord, ...]:
    if not count:
        return ()
    at = COLLECTIVES_AT + (count - 1) % COLLECTIVES * COLLECTIVE.size
    number, seq, nth, form, entered, met, left, _ = COLLECTIVE.unpack_from(raw, at)
    what = _read_form(raw, form, names, {})
    return (CollectiveRecord(number, seq, nth, *what, entered, met, left),)
