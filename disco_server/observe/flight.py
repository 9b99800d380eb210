"""The flight recorder: each rank records what it executes, in memory that outlives it.

``disco_client.tracing.ring`` defines the layout. Nothing here takes a lock or makes a system
call, and a plain call costs two stores into shared memory: timing each would cost more than
all the rest, so as long as commands take microseconds one time is taken for several.
"""

from __future__ import annotations

import math
import mmap
from array import array
from collections.abc import Iterable, Iterator, Sequence

from disco_client.arrays.shared_memory import allocate
from disco_client.clock import monotonic_ns
from disco_client.descriptors import Descriptor
from disco_client.tracing import ring as layout
from disco_client.tracing.ring import Flag, Header, what_of

__all__ = [
    "CANCELLED_AT",
    "CAUSE_MARK",
    "SLOT_MASK",
    "STACK_BYTES",
    "FlightRecorder",
    "make_memory",
    "places_of",
]

SLOT_MASK = layout.SLOTS - 1
STACK_BYTES = 64 << 10
"""The room behind the records for the stack that a rank writes on request."""

CANCELLED_AT = layout.RING_BYTES + STACK_BYTES
"""Where the starter of a rank writes, a place for each slot, the numbers of cancelled commands."""

_ALL_BYTES = CANCELLED_AT + 8 * layout.SLOTS

CAUSE_MARK = b"\x01"
"""The first byte of a cause of the end in the stack's place; no stack begins with it."""

_MAX_CAUSE = 1000
_STRIDE = 32
_FAST_NS = 10_000
_CALM = 64
"""How many commands in a row must take less than 10 µs before times are taken in strides."""

_MAX_NAME = 200
_EMPTY_KINDS = memoryview(bytes(4 * layout.STEP)).cast("I")
_EMPTY_TIMES = memoryview(bytes(8 * layout.STEP)).cast("Q")
_COLLECTIVES, _COLLECTIVE_BYTES = layout.COLLECTIVES, layout.COLLECTIVE.size
_pack, _now = layout.COLLECTIVE.pack_into, monotonic_ns
_FORMS, _MOST_FORMS = layout.FORMS, (1 << 32) - 1
_MOST_BYTES = (1 << 64) - 1
# Looking up a member of an enum is a call, which counts where calls take microseconds.
_ENTERED, _BYTES = int(Header.COLLECTIVES), int(Header.BYTES)


def make_memory() -> Descriptor:
    """Makes memory for one rank that its starter shares with it; returns the descriptor.

    Raises:
        OSError: There is no room.
    """
    return allocate(_ALL_BYTES, "disco-flight")


def places_of(commands: Sequence[tuple[int, int]]) -> Iterator[tuple[int, array[int]]]:
    """Where the numbers of cancelled commands are written, and the numbers there.

    Args:
        commands: The first and the last of each run of them.
    """
    for first, last in commands:
        at = max(first, last - SLOT_MASK)  # no more are under way
        while at <= last:
            end = min(last, at | SLOT_MASK)
            yield at & SLOT_MASK, array("Q", range(at, end + 1))
            at = end + 1


class FlightRecorder:
    """Writes one rank's records; for its one thread.

    Args:
        fd: Memory from :func:`make_memory`; without it the records stay in this process,
            and :meth:`copy` returns them.

    Attributes:
        kinds: For the executor's loop, which itself writes there, at ``seq & SLOT_MASK``,
            what each command is when it begins.
        cancelled: At ``seq & SLOT_MASK``, the number of a command that the program has cancelled.
    """

    def __init__(self, fd: int = -1) -> None:
        # Not populated: pages are allocated when they are first written.
        self._memory = mmap.mmap(fd, _ALL_BYTES)
        whole = memoryview(self._memory)
        self.cancelled = whole[CANCELLED_AT:].cast("Q")
        self.cancelled[0] = 1  # no command of that place
        self._header = whole[: layout.STARTS_AT].cast("Q")
        self._starts = whole[layout.STARTS_AT : layout.ENDS_AT].cast("Q")
        self._ends = whole[layout.ENDS_AT : layout.KINDS_AT].cast("Q")
        self.kinds = whole[layout.KINDS_AT : layout.COLLECTIVES_AT].cast("I")
        self._collectives = whole[layout.COLLECTIVES_AT : layout.FORMS_AT]
        self._times = self._collectives.cast("Q")
        self._labels: dict[str, int] = {}
        self._names = 0
        self._emptied = 0
        self._forms = 0
        self._entered = 0
        self._sizes = [0] * layout.FORMS
        self._moved = 0
        self._open = -1
        self._last = 0
        self._last_ns = 0
        self._calm = 0
        self._header[Header.MAGIC] = layout.MAGIC

    def copy(self) -> tuple[bytes, int]:
        """Copies the records for ``read_flight``. May be called on any thread."""
        raw = self._memory[: layout.RING_BYTES]
        return raw, self._header[Header.EMPTIED]

    def read(self, at: int, size: int) -> bytes:
        """Copies a part of the records for ``cut_memory``. May be called on any thread."""
        return self._memory[at : at + size]

    def explain_end(self, text: str) -> None:
        """Writes why this process is about to end, for its starter to read afterwards.

        It takes the place of the stack, which is not requested after the end.
        """
        raw = b"".join((CAUSE_MARK, text.encode("utf-8", "replace")[:_MAX_CAUSE], b"\0"))
        self._memory[layout.RING_BYTES : layout.RING_BYTES + len(raw)] = raw

    def lose_communicator(self) -> None:
        """Records when the communicator was lost, which ends this process; on any thread."""
        self._header[Header.LOST] = _now()

    @property
    def interrupts(self) -> tuple[int, int]:
        """Up to which commands the starter of this process says that it is interrupted."""
        return self._header[Header.INTERRUPTED], self._header[Header.ENDS]

    def cancel(self, commands: Sequence[tuple[int, int]]) -> None:
        """Notes that commands are cancelled, where no other process starts the rank.

        Args:
            commands: The first and the last of each run of them.
        """
        for place, numbers in places_of(commands):
            self.cancelled[place : place + len(numbers)] = memoryview(numbers)

    # Names --------------------------------------------------------------------------------

    def label(self, name: str) -> int:
        """The number of a name; 0, the empty one, where there is no more room for names."""
        found = self._labels.get(name)
        if found is None:
            raw = name.encode("utf-8", "replace")[:_MAX_NAME]
            after = self._names + 2 + len(raw)
            found = 0
            if name and after <= layout.NAMES_BYTES:
                at = layout.NAMES_AT + self._names
                self._memory[at : at + 2 + len(raw)] = len(raw).to_bytes(2, "little") + raw
                self._header[Header.NAMES] = self._names = after
                found = len(self._labels) + 1
                self._labels[name] = found
        return found

    def label_of(self, action: int, name: str) -> int:
        """The slot's value for commands of this action on the object of this name."""
        return what_of(action, self.label(name))

    # Commands -----------------------------------------------------------------------------

    def begin(self, seq: int) -> int:
        """A rank that was idle begins a command; returns when to :meth:`stamp` next."""
        self._make_room(seq)
        self._last, self._last_ns = seq - 1, monotonic_ns()
        self._starts[seq & SLOT_MASK] = self._last_ns
        return seq | _STRIDE - 1 if self._calm >= _CALM else seq

    def stamp(self, seq: int) -> int:
        """A command has ended; returns the next one after whose end to call this again."""
        now = monotonic_ns()
        self._ends[seq & SLOT_MASK] = now
        count = seq - self._last
        if now - self._last_ns < count * _FAST_NS:
            self._calm += count
        else:
            self._calm = 0
        self._last, self._last_ns = seq, now
        if seq + 2 * _STRIDE >= self._emptied:
            self._make_room(seq)
        return seq + 1 | _STRIDE - 1 if self._calm >= _CALM else seq + 1

    def finish(self, seq: int) -> None:
        """The last command of a batch has ended."""
        if seq > self._last:
            self.stamp(seq)

    def mark(self, seq: int, flag: Flag) -> None:
        """Adds a flag to a command that runs."""
        self.kinds[seq & SLOT_MASK] |= flag

    def _make_room(self, seq: int) -> None:
        """Empties slots for the commands to come."""
        step = layout.STEP
        if seq >= self._emptied + layout.SLOTS:
            self._emptied = seq - seq % step  # commands were left out
        while seq + 2 * _STRIDE >= self._emptied:
            at = self._emptied & SLOT_MASK
            self.kinds[at : at + step] = _EMPTY_KINDS
            self._starts[at : at + step] = _EMPTY_TIMES
            self._ends[at : at + step] = _EMPTY_TIMES
            # Last, so that no reader takes the old record for a newer command.
            self._header[Header.EMPTIED] = self._emptied = self._emptied + step

    # Collectives --------------------------------------------------------------------------

    def describe(
        self, op: str, dtype: str, itemsize: int, members: Iterable[int], shape: tuple[int, ...]
    ) -> int:
        """Records what collectives have in common; returns the number of that form.

        The last ``FORMS`` of them may be entered.

        Args:
            op: The operation.
            dtype: The name of the dtype; empty for none.
            itemsize: Bytes of an element.
            members: The workers that take part.
            shape: Of the array.
        """
        if len(shape) > layout.MAX_DIMS:
            kept = layout.MAX_DIMS - 1
            shape = (*shape[:kept], math.prod(shape[kept:]))
        # Never 0, which unwritten memory holds.
        self._forms = form = self._forms % _MOST_FORMS + 1
        self._sizes[form % layout.FORMS] = itemsize * math.prod(shape)
        layout.FORM.pack_into(
            self._memory,
            layout.FORMS_AT + form % layout.FORMS * layout.FORM.size,
            form,
            self.label(op),
            self.label(dtype),
            self.label(",".join(map(str, members))),
            len(shape),
            itemsize,
            *shape,
            *(0,) * (layout.MAX_DIMS - len(shape)),
        )
        return form

    def enter(self, form: int, number: int, seq: int, nth: int) -> None:
        """The rank enters a collective.

        Args:
            form: What :meth:`describe` returned for it.
            number: Its number among this group's collectives on this rank, from 1.
            seq: The command.
            nth: Its number among this group's collectives in the command, from 0.
        """
        entered = self._entered
        at = entered % _COLLECTIVES * _COLLECTIVE_BYTES
        _pack(self._collectives, at, number, seq, nth, form, _now(), 0, 0, 0)
        self._open = at >> 3
        header, moved = self._header, (self._moved + self._sizes[form % _FORMS]) & _MOST_BYTES
        header[_ENTERED] = self._entered = entered + 1
        header[_BYTES] = self._moved = moved

    def meet(self) -> None:
        """All ranks have entered the collective that was entered last, and it begins."""
        self._times[self._open + 5] = _now()

    def leave(self) -> None:
        """The rank leaves the collective that it entered last, if it is in one."""
        if self._open >= 0:
            self._times[self._open + 6] = _now()
            self._open = -1
