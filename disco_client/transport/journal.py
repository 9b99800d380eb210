"""What a session keeps of itself so that other workers can do it again.

Its commands as they were encoded, and the arrays that went to workers beside them. The
numbers of commands hold: where some are left out, the batch behind them says how many.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from disco_client.transport.base import OutgoingBatch
from disco_client.wire.codec import Action, EncodedBatch, EncodedCommand, EncodedValue

__all__ = ["Journal", "KeptBatch", "Piece", "Segment", "Upload", "cut_in_pieces", "tickets_in"]

_SEGMENT_COMMANDS = 2048
_SEGMENT_BYTES = 1 << 20
_SEGMENT_COST = 300
"""What a segment takes besides its bytes."""

_QUESTIONS = frozenset((Action.DEBUG_GET_FROM_REMOTE, Action.COPY_FROM_WORKER0))
_SYNC: Any = Action.SYNC_WORKER


@dataclass(frozen=True, slots=True)
class KeptBatch(OutgoingBatch):
    """Commands that leave together, encoded already."""

    encoded: bytes = b""

    def payload(self) -> bytes:
        """Returns them as they were encoded."""
        return self.encoded


@dataclass(slots=True)
class Segment:
    """Commands that follow each other.

    Attributes:
        first, last: The numbers of the first and the last of them.
        payload: They themselves, as one batch.
        in_column: Whether that has a column of plain calls.
        skipped: How many numbers before its commands stand for none.
    """

    first: int
    last: int
    payload: bytearray
    in_column: bool = False
    skipped: int = 0

    def entries(self) -> Iterator[tuple[int, EncodedCommand | None, list[int]]]:
        """Its commands; see :func:`entries`."""
        return entries(self.first, EncodedBatch.FromString(bytes(self.payload)))


@dataclass(slots=True)
class Upload:
    """An array that went to a worker.

    Attributes:
        ticket: Names it in its command.
        worker: To whom it went.
        data: Its bytes; uploads of one ticket share them.
        life: The number of the workers that have it, or are about to get it.
    """

    ticket: int
    worker: int
    data: bytes = field(repr=False)
    life: int = 0


class Journal:
    """The commands and arrays of a session since its start, or since its last checkpoint.

    Its owner's lock guards it.

    Args:
        limit: How many bytes it may keep. An array that would be too much is not kept,
            nor any later one, and those that are there are let go; commands that would
            be too much end it altogether.

    Attributes:
        nbytes: How many bytes it keeps.
        arrays_dropped, dropped: Whether the arrays, or all, were let go.
        segments: The commands.
        uploads: The arrays by their tickets.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.nbytes = 0
        self.arrays_dropped = self.dropped = False
        self.segments: list[Segment] = []
        self.uploads: dict[int, list[Upload]] = {}

    @property
    def whole(self) -> bool:
        """Whether everything is there."""
        return not self.arrays_dropped

    @property
    def commands(self) -> int:
        """How many commands it has."""
        return sum(each.last - each.first + 1 - each.skipped for each in self.segments)

    def append(self, batch: OutgoingBatch, session: int) -> OutgoingBatch:
        """Writes a batch down.

        Args:
            batch: Commands of the program.
            session: For which session they leave.

        Returns:
            The batch as it should leave, so that it is encoded once.
        """
        if self.dropped:
            return replace(batch, session=session)
        payload = batch.payload()
        in_column = bool(batch.calls)
        last = self.segments[-1] if self.segments else None
        if (
            last is not None
            and last.in_column == in_column
            and last.last + 1 == batch.first_seq
            and batch.last_seq - last.first < _SEGMENT_COMMANDS
            and len(last.payload) + len(payload) <= _SEGMENT_BYTES
        ):
            last.payload += payload  # batches one behind the other are one batch
            last.last = batch.last_seq
        else:
            self.segments.append(
                Segment(batch.first_seq, batch.last_seq, bytearray(payload), in_column)
            )
            self.nbytes += _SEGMENT_COST
        self.nbytes += len(payload)
        self._keep_to_limit()
        return KeptBatch(session, batch.first_seq, batch.last_seq, [], [], batch.bulk, payload)

    def copy_of(self, ticket: int, data: memoryview) -> bytes | memoryview:
        """Copies an array that is about to be written down, once; needs no lock."""
        known = self.uploads.get(ticket)
        if known:
            return known[0].data
        too_much = self.arrays_dropped or self.nbytes + len(data) > self.limit
        return data if too_much else bytes(data)

    def add_upload(
        self, ticket: int, worker: int, data: bytes | memoryview, life: int
    ) -> Upload | None:
        """Writes an array down; None where it is not kept."""
        if self.arrays_dropped:
            return None
        known = self.uploads.get(ticket)
        if known is None:
            if self.nbytes + len(data) > self.limit:
                self._drop_arrays()
                return None
            self.nbytes += len(data)
            known = self.uploads[ticket] = []
        held = known[0].data if known else bytes(data)
        upload = Upload(ticket, worker, held, life)
        known.append(upload)
        return upload

    def _keep_to_limit(self) -> None:
        if self.nbytes > self.limit:
            self._drop_arrays()
        if self.nbytes > self.limit:
            self.dropped = True
            self.segments.clear()
            self.nbytes = 0

    def _drop_arrays(self) -> None:
        self.arrays_dropped = True
        self.nbytes -= sum(len(each[0].data) for each in self.uploads.values())
        self.uploads.clear()

    def begin_again(self, segments: Iterable[Segment], tickets: set[int], after: int) -> None:
        """Forgets what a checkpoint has made superfluous.

        Args:
            segments: What brings back all up to a command.
            tickets: The arrays for that.
            after: The command.
        """
        kept = [_behind(segment, after) for segment in self.segments if segment.last > after]
        self.segments = [*segments, *kept]
        for segment in kept:
            for _, command, _ in segment.entries():
                tickets |= set(tickets_in(command)) if command is not None else set()
        self.uploads = {t: found for t, found in self.uploads.items() if t in tickets}
        self.arrays_dropped = self.dropped = False
        self.nbytes = sum(len(segment.payload) + _SEGMENT_COST for segment in self.segments)
        self.nbytes += sum(len(each[0].data) for each in self.uploads.values())


def _behind(segment: Segment, after: int) -> Segment:
    """What of a segment comes after a command."""
    if segment.first > after:
        return segment
    batch = EncodedBatch()
    for seq, command, record in segment.entries():
        if seq <= after:
            continue
        if command is not None:
            batch.commands.append(command)
        if segment.in_column:
            batch.calls.extend(record if command is None else (-1,))
    payload = bytearray(batch.SerializeToString())
    return Segment(after + 1, segment.last, payload, segment.in_column)


@dataclass(slots=True)
class Piece:
    """Commands that may be done at once, when all before them are done.

    Attributes:
        first, last: The numbers of the first and the last of them.
        batch: They themselves.
        tickets: The arrays that travel beside them.
        awaited: Whether somebody waited for the last of them before going on.
        by: The one worker that was waited for; None for all.
    """

    first: int
    last: int
    batch: EncodedBatch
    tickets: list[int] = field(default_factory=list[int])
    awaited: bool = False
    by: int | None = None

    def leave(self, session: int) -> OutgoingBatch:
        """Returns it as it leaves for a session."""
        encoded = self.batch.SerializeToString()
        return KeptBatch(session, self.first, self.last, [], [], encoded=encoded)


def cut_in_pieces(segment: Segment, is_open: Callable[[int], bool]) -> Iterator[Piece]:
    """Cuts commands that are done again where the program had waited.

    What workers do beside their results may depend on that. Questions that were answered
    are not asked again; in their place workers say that they are there.

    Args:
        segment: The commands.
        is_open: Whether somebody still waits for the answer to a command.
    """
    whole = EncodedBatch.FromString(bytes(segment.payload))
    piece = Piece(segment.first, 0, EncodedBatch(skipped=whole.skipped))
    for seq, command, record in entries(segment.first, whole):
        piece.last = seq
        if command is None:
            piece.batch.calls.extend(record)
            continue
        if whole.calls:
            piece.batch.calls.append(-1)
        piece.tickets += tickets_in(command)
        if command.action in _QUESTIONS and not is_open(seq):
            released, by = list(command.released), command.worker_plus_one
            command.Clear()
            command.action = _SYNC
            command.worker_plus_one = by
            command.released.extend(released)
        piece.batch.commands.append(command)
        if command.action == _SYNC and not is_open(seq):
            piece.awaited = True
            piece.by = command.worker_plus_one - 1 if command.worker_plus_one else None
            yield piece
            piece = Piece(seq + 1, 0, EncodedBatch())
    if piece.last:
        yield piece


def entries(
    first: int, batch: EncodedBatch
) -> Iterator[tuple[int, EncodedCommand | None, list[int]]]:
    """The commands of a batch with their numbers.

    Args:
        first: The number that the batch begins with.
        batch: The commands.

    Yields:
        The number, and either the command or its record in the column of calls.
    """
    seq = first + batch.skipped
    if not batch.calls:
        for number, command in enumerate(batch.commands, seq):
            yield number, command, []
        return
    calls, at, commands = list(batch.calls), 0, iter(batch.commands)
    while at < len(calls):
        if calls[at] < 0:
            yield seq, next(commands), []
            at += 1
        else:
            head = at + 1 + calls[at]
            after = head + 3 + calls[head + 2]
            yield seq, None, calls[at:after]
            at = after
        seq += 1


def tickets_in(command: EncodedCommand) -> Iterator[int]:
    """The arrays that travel beside a command."""
    for value in command.args:
        yield from _tickets(value)


def _tickets(value: EncodedValue) -> Iterator[int]:
    kind = value.WhichOneof("kind")
    if kind == "array":
        if value.array.WhichOneof("data") == "ticket":
            yield value.array.ticket
    elif kind == "list":
        for item in value.list.items:
            yield from _tickets(item)
    elif kind == "map":
        for item in value.map.items.values():
            yield from _tickets(item)
