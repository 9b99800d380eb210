"""Cuts of a flight recorder's memory: what was added since the one before.

A trace fetches the records of a rank many times a second, so a cut holds what is new and
nothing else, is made by a few reads of the memory, and is only parsed when the trace is
over. The times of commands are sparse, because several are timed together; they are
stored with their places.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from disco_client.tracing.ring import (
    COLLECTIVE,
    COLLECTIVES,
    COLLECTIVES_AT,
    ENDS_AT,
    FORM,
    FORMS,
    FORMS_AT,
    KINDS_AT,
    MAGIC,
    NAMES_AT,
    NAMES_BYTES,
    RING_BYTES,
    SLOTS,
    STARTS_AT,
    FlightRecord,
    Header,
    read_flight,
)

__all__ = ["CUT_MAGIC", "FlightDelta", "Since", "cut_memory"]


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
