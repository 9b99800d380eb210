"""What a rank does at this moment, from the memory of its flight recorder: the end of it alone.

Reading all of it takes some ten milliseconds, which is too much for polling every second.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from operator import itemgetter

import numpy as np

from disco_client.tracing.ring import (
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
    open_memory,
    read_commands,
    read_form,
)

__all__ = ["FlightNow", "read_now"]


_COLUMNS, _FORM_COLUMN = COLLECTIVE.size // 8, 3

_ANCHORS = 3
"""This many times, counted from the end, enclose the last command that has ended."""


@dataclass(frozen=True, slots=True)
class FlightNow:
    """The end of what one rank has recorded.

    Attributes:
        record: Its last commands, among them the one that runs and the last that has
            ended, and the last collective of each group.
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
            read_commands(raw, header[Header.EMPTIED], first, names),
            _last_collectives(raw, count, names),
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


def _last_collectives(
    raw: bytes | bytearray, count: int, names: list[str]
) -> tuple[CollectiveRecord, ...]:
    """Reads the last collective of each group, in the order in which they were entered."""
    places = np.arange(max(0, count - COLLECTIVES + 1), count) % COLLECTIVES
    rows = np.frombuffer(raw, "<u8", COLLECTIVES * _COLUMNS, COLLECTIVES_AT)
    forms = rows.reshape(-1, _COLUMNS)[places, _FORM_COLUMN].tolist()
    last: dict[tuple[int, ...], CollectiveRecord] = {}
    groups: dict[int, tuple[int, ...]] = {}
    for form, index in sorted(dict(zip(forms, itertools.count())).items(), key=itemgetter(1)):
        at = COLLECTIVES_AT + int(places[index]) * COLLECTIVE.size
        number, seq, nth, _, entered, met, left, _ = COLLECTIVE.unpack_from(raw, at)
        what = read_form(raw, form, names, groups)
        found = CollectiveRecord(number, seq, nth, *what, entered, met, left)
        last.pop(found.members, None)
        last[found.members] = found
    return tuple(last.values())
