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

import struct
from dataclasses import dataclass
from enum import IntFlag
from typing import NamedTuple

__all__ = [
    "COLLECTIVE",
    "COLLECTIVES",
    "COLLECTIVES_AT",
    "COMMANDS",
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
    "RING_BYTES",
    "SLOTS",
    "STARTS_AT",
    "STEP",
    "CollectiveRecord",
    "CommandRecord",
    "Flag",
    "FlightRecord",
    "Header",
    "open_memory",
    "read_collectives",
    "read_commands",
    "read_flight",
    "read_form",
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
    INTERRUPTED = 6
    """Up to which command the program has interrupted it; its starter writes this."""
    ENDS = 7
    """Up to which command it also ends one that has begun; as above."""
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
        read_commands(raw, header[Header.EMPTIED], max(oldest, first, 1), names, most)[-most:],
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


def read_commands(
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
        what = read_form(raw, form, names, groups)
        found.append(CollectiveRecord(number, seq, nth, *what, entered, met, left))
    return tuple(found)


def read_form(
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
