"""The flight recorder's memory: where everything is in it, and how to read it.

Each rank writes what it executes into memory of this layout, and any process that holds
the memory can read it at any moment, without a lock, also after the rank has died. It has
a slot for each of the last commands, records of the last collectives, and the names of
functions, operations, dtypes and groups of ranks, to which all else refers by number.

Command ``seq`` has slot ``seq % SLOTS``: what it is, when it began, and when it ended.
The writer empties slots ahead of the command that it executes, so the last one that is
not empty is the last that began. A time of 0 says that it was not taken: commands that
follow each other without a pause begin when the one before ends, and those that take
microseconds are timed in groups of a few.

A collective's record refers by number to its form, which says what is the same each time:
the operation, the dtype, the group and the shape. Forms have a ring of their own; a
writer refers only to those that are still in it.

A reader copies the memory first. What was overwritten meanwhile is known from a counter
that the writer moves before it empties slots, and is left out. This relies on a
processor that shows stores in the order in which they were made, as x86 does; on others
the record of the latest instant may be incomplete.
"""

from __future__ import annotations

import itertools
import struct
from bisect import bisect
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from enum import IntFlag
from operator import itemgetter
from typing import Any, NamedTuple, TypeAlias

import numpy as np

__all__ = [
    "COLLECTIVE",
    "COLLECTIVES",
    "COLLECTIVES_AT",
    "COMMANDS",
    "CUT_MAGIC",
    "ENDS_AT",
    "FORM",
    "FORMS",
    "FORMS_AT",
    "KINDS_AT",
    "LABEL_MASK",
    "MAGIC",
    "MAX_DIMS",
    "NAMES_AT",
    "NAMES_BYTES",
    "NO_DIFFERENCE",
    "RING_BYTES",
    "SLOTS",
    "STARTS_AT",
    "STEP",
    "Clock",
    "ClockSample",
    "CollectiveRecord",
    "CommandRecord",
    "Flag",
    "FlightDelta",
    "FlightNow",
    "FlightRecord",
    "Header",
    "Since",
    "clock_offset",
    "cut_memory",
    "open_memory",
    "read_collectives",
    "read_flight",
    "read_now",
    "what_of",
]


COMMANDS = 10_000
"""How many of the last commands are guaranteed to be there."""

SLOTS = 1 << 16
_TOGETHER = 64
"""More commands than are ever timed together."""

STEP = 1 << 10
"""How many slots are emptied at once."""

COLLECTIVES = 1 << 12
COLLECTIVE = struct.Struct("<8Q")
"""Number, command, which of the command, form; entered, met, left; nothing."""

FORMS = 1 << 9
FORM = struct.Struct("<6I5Q")
"""Its own number, operation, dtype, group, number of dimensions, bytes of an element;
the first extents."""

MAX_DIMS = 5
MAGIC = int.from_bytes(b"DISCOFR3", "little")


class Header:
    """Which of the numbers at the beginning says what."""

    MAGIC = 0
    EMPTIED = 1
    """All slots of commands before this one have been emptied once for them."""
    COLLECTIVES = 2
    """How many collectives were recorded."""
    NAMES = 3
    """How many bytes of names there are."""
    BYTES = 4
    """How many bytes the rank's arrays had, in all collectives together."""
    LOST = 5
    """When the rank lost its communicator, on the monotonic clock in ns; 0 if it did not."""
    COUNT = 8


_HEADER = struct.Struct(f"<{Header.COUNT}Q")
STARTS_AT = 128
ENDS_AT = STARTS_AT + 8 * SLOTS
KINDS_AT = ENDS_AT + 8 * SLOTS
COLLECTIVES_AT = KINDS_AT + 4 * SLOTS
FORMS_AT = COLLECTIVES_AT + COLLECTIVES * COLLECTIVE.size
NAMES_AT = FORMS_AT + FORMS * FORM.size
NAMES_BYTES = 64 << 10
RING_BYTES = NAMES_AT + NAMES_BYTES

LABEL_MASK = (1 << 20) - 1
_DIGITS = 10
_ACTION_SHIFT, _ACTION_MASK = 20, 0xFF


class Flag(IntFlag):
    """What else a slot says of its command."""

    FAILED = 1 << 28
    SKIPPED = 1 << 29
    ELSEWHERE = 1 << 30
    """It concerned another worker; this one only counted it."""


# As plain numbers, because they are looked for in each of many commands.
_FAILED, _SKIPPED, _ELSEWHERE = map(int, Flag)


def what_of(action: int, label: int = 0) -> int:
    """What a slot says of a command: never 0.

    Args:
        action: Its DiscoAction.
        label: The number of the name of what it calls; 0 for none.
    """
    return (action + 1) << _ACTION_SHIFT | label


class CommandRecord(NamedTuple):
    """One command that a rank began.

    Attributes:
        seq: Its number.
        action: Its DiscoAction.
        name: What it calls; empty where that has no name.
        start_ns: When it began, by the node's CLOCK_MONOTONIC.
        end_ns: When it ended; 0 while it runs.
        group: How many commands these two times are of.
        failed: It reported a failure.
        skipped: It read the result of one that had failed, and did nothing.
        elsewhere: It concerned another worker.
    """

    seq: int
    action: int
    name: str
    start_ns: int
    end_ns: int
    group: int = 1
    failed: bool = False
    skipped: bool = False
    elsewhere: bool = False


class CollectiveRecord(NamedTuple):
    """One collective that a rank entered.

    Attributes:
        number: Which collective of its group this was on this rank, from 1.
        seq: The command in which it happened.
        nth: Which collective of its group in that command, from 0.
        name: The operation: "allreduce(sum)".
        dtype: The name of the dtype; empty for none.
        shape: Of this rank's array; the first extents where it has very many.
        nbytes: Of this rank's array.
        members: The group: the workers that take part, in order.
        entered_ns: When this rank entered.
        met_ns: When all had entered and agreed; 0 while it waits for them, and where that was
            not taken: small collectives go without it.
        left_ns: When it left; 0 where that was not taken.
    """

    number: int
    seq: int
    nth: int
    name: str
    dtype: str
    shape: tuple[int, ...]
    nbytes: int
    members: tuple[int, ...]
    entered_ns: int
    met_ns: int
    left_ns: int


@dataclass(frozen=True, slots=True)
class FlightRecord:
    """What one rank has recorded.

    Attributes:
        commands: The last ones, oldest first; only the last may be running.
        collectives: The last ones, oldest first.
    """

    commands: tuple[CommandRecord, ...] = ()
    collectives: tuple[CollectiveRecord, ...] = ()

    @property
    def current(self) -> CommandRecord | None:
        """The command that runs, if one does."""
        last = self.commands[-1] if self.commands else None
        return last if last is not None and not last.end_ns else None

    @property
    def finished(self) -> CommandRecord | None:
        """The last command that has ended, or None."""
        return next((each for each in reversed(self.commands) if each.end_ns), None)

    @property
    def collective(self) -> CollectiveRecord | None:
        """The collective that the rank is in, if it is in one."""
        last, current = (self.collectives[-1] if self.collectives else None), self.current
        if last is None or last.left_ns or current is None or last.seq != current.seq:
            return None
        return last


def read_flight(
    raw: bytes | bytearray,
    emptied: int = 0,
    *,
    first: int = 1,
    first_collective: int = 0,
    most: int = COMMANDS,
) -> FlightRecord:
    """Reads a copy of a rank's memory.

    Args:
        raw: ``RING_BYTES`` of it, or less where nothing was recorded.
        emptied: The header's number of that name after the copy was made; 0 where
            the rank wrote nothing meanwhile.
        first: Nothing before this command is wanted.
        first_collective: Nor before this collective, counted from 0.
        most: How many commands to return, the last ones.

    Raises:
        ValueError: This is no such memory.
    """
    opened = open_memory(raw)
    if opened is None:
        return FlightRecord()
    raw, header, names = opened
    oldest = max(emptied, header[Header.EMPTIED]) - SLOTS
    entered = header[Header.COLLECTIVES]
    # The oldest slot may be in the middle of being used again.
    collectives = range(max(first_collective, entered - COLLECTIVES + 1), entered)
    return FlightRecord(
        _read_commands(raw, header[Header.EMPTIED], max(oldest, first, 1), names, most)[-most:],
        _read_collectives(raw, collectives, names),
    )


def open_memory(
    raw: bytes | bytearray,
) -> tuple[bytes | bytearray, tuple[int, ...], list[str]] | None:
    """Reads of a copy of a rank's memory what the rest is read with.

    Returns:
        The copy in full length, its header, and the names; None where the rank has not begun.

    Raises:
        ValueError: This is no such memory.
    """
    if len(raw) < RING_BYTES:
        raw = raw.ljust(RING_BYTES, b"\0")
    header = _HEADER.unpack_from(raw)
    if header[Header.MAGIC] == 0:
        return None
    if header[Header.MAGIC] != MAGIC:
        msg = "expected the memory of a flight recorder of this version"
        raise ValueError(msg)
    return (
        raw,
        header,
        _read_names(raw[NAMES_AT : NAMES_AT + min(header[Header.NAMES], NAMES_BYTES)]),
    )


def _read_names(raw: bytes | bytearray) -> list[str]:
    names, at = [""], 0
    while at + 2 <= len(raw):
        size = int.from_bytes(raw[at : at + 2], "little")
        names.append(raw[at + 2 : at + 2 + size].decode("utf-8", "replace"))
        at += 2 + size
    return names


def _read_commands(
    raw: bytes | bytearray, emptied: int, first: int, names: list[str], most: int = SLOTS
) -> tuple[CommandRecord, ...]:
    """Reads at least the last ``most`` commands, or all since ``first``."""
    view = memoryview(raw)
    starts = view[STARTS_AT:ENDS_AT].cast("Q")
    ends = view[ENDS_AT:KINDS_AT].cast("Q")
    kinds = view[KINDS_AT:COLLECTIVES_AT].cast("I")
    last = emptied - 1
    while last >= first and not kinds[last % SLOTS]:
        last -= 1
    found: list[CommandRecord] = []
    group: list[int] = []
    since = 0
    for seq in range(_begin(kinds, max(first, last - SLOTS + 1), last, most), last + 1):
        slot = seq % SLOTS
        if starts[slot]:
            # The commands before it, if their end was not taken, were interrupted.
            found += _group_of(kinds, group, since, starts[slot], names)
            group, since = [], starts[slot]
        if not kinds[slot]:
            continue
        group.append(seq)
        if ends[slot]:
            if since:  # otherwise it began before the oldest slot
                found += _group_of(kinds, group, since, ends[slot], names)
            group, since = [], ends[slot]
    if group and since:
        *before, running = group
        found += _group_of(kinds, before, since, since, names)
        found += _group_of(kinds, [running], since, 0, names)
    return tuple(found)


def _begin(kinds: memoryview[int], first: int, last: int, most: int) -> int:
    """From which command on there are so many, and those that are timed with the first of them."""
    wanted = most + _TOGETHER
    for seq in range(last, first - 1, -1):
        wanted -= bool(kinds[seq % SLOTS])
        if not wanted:
            return seq
    return first


def _group_of(
    kinds: memoryview[int], group: list[int], start: int, end: int, names: list[str]
) -> list[CommandRecord]:
    found: list[CommandRecord] = []
    for seq in group:
        what = kinds[seq % SLOTS]
        label = what & LABEL_MASK
        found.append(
            CommandRecord(
                seq,
                (what >> _ACTION_SHIFT & _ACTION_MASK) - 1,
                names[label] if label < len(names) else "",
                start,
                end,
                len(group),
                bool(what & _FAILED),
                bool(what & _SKIPPED),
                bool(what & _ELSEWHERE),
            )
        )
    return found


def read_collectives(raw: bytes, since: int) -> tuple[int, tuple[CollectiveRecord, ...]]:
    """Reads the collectives that a rank has recorded since a while ago.

    Args:
        raw: A copy of its memory.
        since: How many there were then.

    Returns:
        How many there are now, and those of them that are there; of more than
        ``COLLECTIVES`` the oldest are not.
    """
    if len(raw) < RING_BYTES:
        return 0, ()
    header = _HEADER.unpack_from(raw)
    names = _read_names(raw[NAMES_AT : NAMES_AT + min(header[Header.NAMES], NAMES_BYTES)])
    count = header[Header.COLLECTIVES]
    # The oldest slot may be in the middle of being used again.
    which = range(max(since, count - COLLECTIVES + 1), count)
    return count, _read_collectives(raw, which, names)


def _read_collectives(
    raw: bytes | bytearray, which: range, names: list[str]
) -> tuple[CollectiveRecord, ...]:
    groups: dict[int, tuple[int, ...]] = {}
    found: list[CollectiveRecord] = []
    for index in which:
        at = COLLECTIVES_AT + index % COLLECTIVES * COLLECTIVE.size
        number, seq, nth, form, entered, met, left, _ = COLLECTIVE.unpack_from(raw, at)
        what = _read_form(raw, form, names, groups)
        found.append(CollectiveRecord(number, seq, nth, *what, entered, met, left))
    return tuple(found)


def _read_form(
    raw: bytes | bytearray, form: int, names: list[str], groups: dict[int, tuple[int, ...]]
) -> tuple[str, str, tuple[int, ...], int, tuple[int, ...]]:
    """Reads name, dtype, shape, bytes and members; all empty if others took its place."""

    def name(label: int) -> str:
        return names[label] if label < len(names) else ""

    its_own, op, dtype, group, ndim, nbytes, *dims = FORM.unpack_from(
        raw, FORMS_AT + form % FORMS * FORM.size
    )
    if its_own != form:
        return "", "", (), 0, ()
    shape = tuple(dims[: min(ndim, MAX_DIMS)])
    for extent in shape:
        nbytes *= extent
    if group not in groups:  # read once, because every record may name the longest
        parts = name(group).split(",")
        groups[group] = tuple(int(p) for p in parts if p.isdecimal() and len(p) < _DIGITS)
    return name(op), name(dtype), shape, nbytes, groups[group]


# What a rank does at this moment, from the memory of its flight recorder: the end of it alone.
#
# Reading all of it takes some ten milliseconds, which is too much for polling every second.


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
            _read_commands(raw, header[Header.EMPTIED], first, names),
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
        what = _read_form(raw, form, names, groups)
        found = CollectiveRecord(number, seq, nth, *what, entered, met, left)
        last.pop(found.members, None)
        last[found.members] = found
    return tuple(last.values())


# Cuts of a flight recorder's memory: what was added since the one before.
#
# A trace fetches the records of a rank many times a second, so a cut holds what is new and
# nothing else, is made by a few reads of the memory, and is only parsed when the trace is
# over. The times of commands are sparse, because several are timed together; they are
# stored with their places.


CUT_MAGIC = b"DISCOFC1"
_HEAD = struct.Struct("<8s11Q")
_MASK = SLOTS - 1
_FORM_BYTES = FORM.size

_Numbers: TypeAlias = "np.ndarray[Any, np.dtype[Any]]"


class Since(NamedTuple):
    """How far a rank was followed.

    Attributes:
        worker: Which.
        pid: Its process; of another one all is new.
        seq: The last command whose end is known.
        collectives: How many collectives were received that the rank has left.
    """

    worker: int
    pid: int
    seq: int = 0
    collectives: int = 0


def cut_memory(read: Callable[[int, int], bytes], seq: int, collectives: int) -> bytes:
    """Cuts out what is new; empty where nothing was recorded.

    Args:
        read: Gets an offset and a size, and returns that much of the memory.
        seq: As in :class:`Since`.
        collectives: Likewise.

    Raises:
        ValueError: This is no such memory.
    """
    header = _read_header(read)
    if header is None:
        return b""
    emptied, entered = header[Header.EMPTIED], header[Header.COLLECTIVES]
    first = min(max(seq, emptied - SLOTS, 1), emptied)
    kinds = _slots(read, KINDS_AT, "<u4", first, emptied - first)
    used = np.flatnonzero(kinds)
    count = int(used[-1]) + 1 if used.size else 0
    starts = _slots(read, STARTS_AT, "<u8", first, count)
    ends = _slots(read, ENDS_AT, "<u8", first, count)
    # The oldest slot may be in the middle of being used again.
    begin = max(min(collectives, entered), entered - COLLECTIVES + 1, 0)
    size = COLLECTIVE.size
    rows = _ring(read, COLLECTIVES_AT, size, COLLECTIVES, begin, entered - begin)
    forms = read(FORMS_AT, FORMS * _FORM_BYTES).rstrip(b"\0") if rows else b""
    after = _read_header(read) or header
    names = read(NAMES_AT, min(after[Header.NAMES], NAMES_BYTES))
    started, ended = np.flatnonzero(starts), np.flatnonzero(ends)
    head = _HEAD.pack(
        CUT_MAGIC,
        emptied,
        after[Header.EMPTIED],
        first,
        count,
        started.size,
        ended.size,
        begin,
        entered,
        len(forms),
        len(names),
        0,
    )
    columns = (
        kinds[:count],
        started.astype("<u4"),
        ended.astype("<u4"),
        starts[started],
        ends[ended],
    )
    return b"".join((head, *(each.tobytes() for each in columns), rows, forms, names))


def _read_header(read: Callable[[int, int], bytes]) -> tuple[int, ...] | None:
    raw = read(0, 8 * Header.COUNT)
    if len(raw) < 8 * Header.COUNT:
        return None
    header = struct.unpack(f"<{Header.COUNT}Q", raw)
    if header[Header.MAGIC] == 0:
        return None  # the rank has not begun
    if header[Header.MAGIC] != MAGIC:
        msg = "expected the memory of a flight recorder of this version"
        raise ValueError(msg)
    return header


def _slots(
    read: Callable[[int, int], bytes], at: int, dtype: str, first: int, count: int
) -> _Numbers:
    size = np.dtype(dtype).itemsize
    return np.frombuffer(_ring(read, at, size, SLOTS, first, count), dtype)


def _ring(
    read: Callable[[int, int], bytes], at: int, size: int, places: int, first: int, count: int
) -> bytes:
    """Reads consecutive entries of a ring, which may go over its end."""
    place = first % places
    before = min(count, places - place)
    raw = read(at + place * size, before * size)
    return raw + read(at, (count - before) * size) if before < count else raw


@dataclass(frozen=True, slots=True)
class FlightDelta:
    """A received cut.

    Attributes:
        emptied: The header's number before the cut was made.
        emptied_after: The same after it.
        first: The first command that may be in it.
        kinds: What each of them is; 0 for none.
        starts_at, ends_at: Which of them have times.
        starts, ends: Those times.
        first_collective: The number of its first collective.
        collectives: How many the rank had entered.
        rows: The collectives.
        forms: What is the same of them each time.
        names: What all refers to.
    """

    emptied: int
    emptied_after: int
    first: int
    kinds: _Numbers
    starts_at: _Numbers
    ends_at: _Numbers
    starts: _Numbers
    ends: _Numbers
    first_collective: int
    collectives: int
    rows: bytes
    forms: bytes
    names: bytes

    @classmethod
    def of(cls, raw: bytes) -> FlightDelta:
        """Reads what :func:`cut_memory` has made.

        Raises:
            ValueError: It is something else.
        """
        if len(raw) < _HEAD.size or not raw.startswith(CUT_MAGIC):
            msg = "expected a cut of a flight recorder's memory"
            raise ValueError(msg)
        _, emptied, after, first, count, started, ended, begin, entered, forms, names, _ = (
            _HEAD.unpack_from(raw)
        )
        sizes = [4 * count, 4 * started, 4 * ended, 8 * started, 8 * ended]
        sizes += [(entered - begin) * COLLECTIVE.size, forms, names]
        parts: list[bytes] = []
        at = _HEAD.size
        for size in sizes:
            parts.append(raw[at : at + size] if size >= 0 else b"")
            at += size
        kinds, starts_at, ends_at = (np.frombuffer(part, "<u4") for part in parts[:3])
        fits = at == len(raw) and count <= SLOTS
        fits = fits and not (starts_at >= count).any() and not (ends_at >= count).any()
        if not fits or entered - begin >= COLLECTIVES:
            msg = "expected a whole cut of a flight recorder's memory"
            raise ValueError(msg)
        starts, ends = (np.frombuffer(part, "<u8") for part in parts[3:5])
        columns = kinds, starts_at, ends_at, starts, ends
        return cls(emptied, after, first, *columns, begin, entered, *parts[5:])

    @property
    def oldest(self) -> int:
        """The first command that was surely there while the cut was made."""
        return max(self.first, self.emptied_after - SLOTS)

    def follow(self, since: Since) -> Since:
        """How far the rank was followed with this cut, made from ``since`` on."""
        seq = self.first + int(self.ends_at[-1]) if self.ends_at.size else since.seq
        count = self.collectives
        if self.rows and not COLLECTIVE.unpack(self.rows[-COLLECTIVE.size :])[6]:
            count -= 1  # the rank is in it
        return since._replace(seq=max(seq, since.seq), collectives=count)

    def record(self) -> FlightRecord:
        """What is in it; commands timed together with earlier ones are left out."""
        raw = bytearray(RING_BYTES)
        numbers = np.frombuffer(raw, "<u8", Header.COUNT)
        numbers[Header.MAGIC] = MAGIC
        numbers[Header.EMPTIED] = self.emptied
        numbers[Header.COLLECTIVES] = self.collectives
        numbers[Header.NAMES] = len(self.names)
        start = self.first & _MASK  # numbers of commands grow beyond those of an array's dtype
        slots = (start + np.arange(len(self.kinds))) & _MASK
        np.frombuffer(raw, "<u4", SLOTS, KINDS_AT)[slots] = self.kinds
        times = (
            (STARTS_AT, self.starts_at, self.starts),
            (ENDS_AT, self.ends_at, self.ends),
        )
        for at, places, values in times:
            np.frombuffer(raw, "<u8", SLOTS, at)[(start + places) & _MASK] = values
        size = COLLECTIVE.size
        for index in range(self.first_collective, self.collectives):
            source = (index - self.first_collective) * size
            target = COLLECTIVES_AT + index % COLLECTIVES * size
            raw[target : target + size] = self.rows[source : source + size]
        raw[FORMS_AT : FORMS_AT + len(self.forms)] = self.forms
        raw[NAMES_AT : NAMES_AT + len(self.names)] = self.names
        return read_flight(
            raw,
            self.emptied_after,
            first=self.first,
            first_collective=self.first_collective,
            most=SLOTS,
        )


# Clocks of several machines on one axis: what is known of their differences, and how well.
#
# A request and its reply give four times. As in NTP, the difference of the two clocks
# is taken from the midpoints, and its error is at most half of the travel time.


def clock_offset(asked_ns: int, received_ns: int, sent_ns: int, heard_ns: int) -> tuple[int, int]:
    """Compares two clocks by one request and its reply.

    Args:
        asked_ns: When the request was sent, by our clock.
        received_ns: When it arrived, by theirs.
        sent_ns: When the reply was sent, by theirs.
        heard_ns: When it arrived, by ours.

    Returns:
        What to add to their times for ours, and by how much that may be wrong.
    """
    offset = ((asked_ns - received_ns) + (heard_ns - sent_ns)) // 2
    error = max(((heard_ns - asked_ns) - (sent_ns - received_ns) + 1) // 2, 0)
    return offset, error


@dataclass(frozen=True, slots=True, order=True)
class ClockSample:
    """The result of one comparison of two clocks.

    Attributes:
        at_ns: When, by the clock that is to be corrected.
        offset_ns: What to add to its times.
        error_ns: By how much that may be wrong.
    """

    at_ns: int
    offset_ns: int
    error_ns: int


NO_DIFFERENCE = ClockSample(0, 0, 0)
"""Of two programs on one machine."""


class Clock:
    """Brings the times of a clock to those of another one.

    As long as one difference explains every comparison, that is taken, and it is none
    where none explains them: two programs of one machine have the same clock. Otherwise
    one of the clocks is the faster one, and the difference changes from each comparison
    to the next.

    Args:
        samples: The comparisons; without any the clocks are the same.

    Attributes:
        offset_ns: What to add to times; the first, where that changes.
        error_ns: By how much corrected times may be wrong.
        same: Whether times stay as they are.
        samples: How many comparisons there were.
    """

    def __init__(self, samples: Iterable[ClockSample] = ()) -> None:
        known = sorted(samples)
        self.samples: int = len(known)
        self._at = [0]
        self._offsets = [0]
        self.error_ns = 0
        if known:
            low = max(sample.offset_ns - sample.error_ns for sample in known)
            high = min(sample.offset_ns + sample.error_ns for sample in known)
            if low <= high:
                offset = 0 if low <= 0 <= high else (low + high) // 2
                self._offsets = [offset]
                self.error_ns = max(offset - low, high - offset)
            else:
                self._at = [sample.at_ns for sample in known]
                self._offsets = [sample.offset_ns for sample in known]
                self.error_ns: int = max(sample.error_ns for sample in known)
        self.offset_ns: int = self._offsets[0]
        self.same: bool = not any(self._offsets)

    def correct(self, at_ns: int) -> int:
        """A time of this clock by the other one; 0, which says that none was taken, stays."""
        return at_ns + self._offset(at_ns) if at_ns else 0

    def _offset(self, at_ns: int) -> int:
        after = bisect(self._at, at_ns)
        if after == 0 or after == len(self._at):
            return self._offsets[min(after, len(self._at) - 1)]
        begin, end = self._at[after - 1], self._at[after]
        first, last = self._offsets[after - 1], self._offsets[after]
        return first + (last - first) * (at_ns - begin) // (end - begin)
