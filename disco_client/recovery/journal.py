"""What a session keeps so that other workers can replay it.

Its encoded commands, and the arrays that were sent to workers beside them. Commands
keep their numbers: if some are left out, the following batch says how many.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from disco_client.errors import EncodingError
from disco_client.wire.batch import Entry, SentBatch, add_to_batch, command_of, read_batch
from disco_client.wire.codec import (
    INTERRUPTIBLE,
    Action,
    EncodedBatch,
    EncodedCommand,
    InterruptedAt,
    registers_in,
    tickets_in,
)

__all__ = [
    "Journal",
    "PrunePlan",
    "PruneRequest",
    "ReplayStep",
    "Segment",
    "Upload",
    "maker_of",
    "plan_pruning",
    "split_at_waits",
]


_SEGMENT_COMMANDS = 2048
_SEGMENT_BYTES = 1 << 20
_SEGMENT_COST = 300
"""The memory overhead of a segment, in bytes."""

_QUESTIONS = frozenset((Action.DEBUG_GET_FROM_REMOTE, Action.COPY_FROM_WORKER0))
_SYNC: Any = Action.SYNC_WORKER


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

    def entries(self) -> Iterator[tuple[int, Entry]]:
        """Its commands with their numbers."""
        return read_batch(self.first, EncodedBatch.FromString(bytes(self.payload)))


@dataclass(slots=True)
class Upload:
    """An array that was sent to a worker, or was to be sent.

    Attributes:
        ticket: Names it in its command.
        worker: The receiver.
        data: Its bytes, which uploads of one ticket share; None for one that was given up before
            they were copied.
        incarnation: The number of the incarnation that has it, or is about to get it.
        replayed: Whether a replay sends it there, rather than the program's own thread.
        given_up: Why the program's thread did not send all of it, as far as that knows.
    """

    ticket: int
    worker: int
    data: bytes | None = field(repr=False)
    incarnation: int = 0
    replayed: bool = False
    given_up: str | None = None


class Journal:
    """The commands and arrays of a session since its start, or since its last checkpoint.

    Its owner's lock guards it.

    Args:
        limit: How many bytes it may keep. An array that would exceed it is not kept,
            nor any later one, and those that are there are dropped; commands that would
            exceed it end the journal altogether.

    Attributes:
        nbytes: How many bytes it keeps.
        last_seq: The number of the newest recorded command.
        arrays_dropped, dropped: Whether the arrays, or everything, were dropped.
        segments: The commands.
        uploads: The arrays by their tickets.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.nbytes: int = 0
        self.last_seq: int = 0
        self.arrays_dropped: bool = False
        self.dropped: bool = False
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

    def append(self, batch: SentBatch) -> None:
        """Records a batch; one that is there already changes nothing."""
        if self.dropped or batch.last_seq <= self.last_seq:
            return
        self.last_seq: int = batch.last_seq
        payload, last = batch.payload, self.segments[-1] if self.segments else None
        if (
            last is not None
            and last.in_column == batch.in_column
            and last.last + 1 == batch.first_seq
            and batch.last_seq - last.first < _SEGMENT_COMMANDS
            and len(last.payload) + len(payload) <= _SEGMENT_BYTES
        ):
            last.payload += payload  # batches one behind the other are one batch
            last.last = batch.last_seq
        else:
            self.segments.append(
                Segment(batch.first_seq, batch.last_seq, bytearray(payload), batch.in_column)
            )
            self.nbytes += _SEGMENT_COST
        self.nbytes += len(payload)
        self._keep_to_limit()

    def copy_of(self, ticket: int, data: memoryview) -> bytes | memoryview:
        """Copies an array that is about to be recorded, once; needs no lock."""
        known = self._data_of(ticket)
        if known is not None:
            return known
        too_much = self.arrays_dropped or self.nbytes + len(data) > self.limit
        return data if too_much else bytes(data)

    def add_upload(
        self, ticket: int, worker: int, data: bytes | memoryview, incarnation: int
    ) -> Upload | None:
        """Records an array; None where it is not kept."""
        if self.arrays_dropped:
            return None
        held, more = self._data_of(ticket), 0
        if held is None:
            held, more = bytes(data), len(data)
        if self.nbytes + more > self.limit:
            self._drop_arrays()
            return None
        return self._add(Upload(ticket, worker, held, incarnation), more)

    def give_up(self, ticket: int, worker: int, why: str, incarnation: int) -> Upload:
        """Records that an array was not sent completely, as far as the program's thread knows.

        The worker may have all of it nevertheless, so what was recorded of it stays.

        Args:
            ticket: Names it in its command.
            worker: The receiver.
            why: The reason.
            incarnation: Whose workers are told of it, where the array was not recorded.
        """
        for each in self.uploads.get(ticket, ()):
            if each.worker == worker:
                each.given_up = why
                return each
        held = self._data_of(ticket)
        return self._add(Upload(ticket, worker, held, incarnation, given_up=why), 0)

    def leave_out(self, commands: Mapping[int, InterruptedAt]) -> None:
        """Lets a replay leave commands out, because the program has interrupted them.

        Args:
            commands: Their numbers, each with how far workers had come with it.
        """
        first, last = min(commands, default=1), max(commands, default=0)
        for place, segment in enumerate(self.segments):
            if segment.first <= last and first <= segment.last:
                self.segments[place] = marked = _mark(segment, commands)
                self.nbytes += len(marked.payload) - len(segment.payload)

    def interruptible(self, among: Collection[int]) -> list[int]:
        """The numbers of those commands that an interrupt may end or leave out.

        Args:
            among: Those that it concerns.
        """
        first, last = min(among, default=1), max(among, default=0)
        return [
            seq
            for segment in self.segments
            if segment.first <= last and first <= segment.last
            for seq, command in segment.entries()
            if seq in among and (isinstance(command, tuple) or command.action in INTERRUPTIBLE)
        ]

    def _data_of(self, ticket: int) -> bytes | None:
        found = (each.data for each in self.uploads.get(ticket, ()))
        return next((data for data in found if data is not None), None)

    def _add(self, upload: Upload, nbytes: int) -> Upload:
        uploads = [*self.uploads.get(upload.ticket, ()), upload]
        # Nothing interrupts the thread of the program between these.
        self.nbytes += nbytes
        self.uploads[upload.ticket] = uploads
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
        self.nbytes -= self._array_bytes()
        self.uploads.clear()

    def _array_bytes(self) -> int:
        return sum(len(self._data_of(ticket) or b"") for ticket in self.uploads)

    def prune(self, segments: Iterable[Segment], tickets: set[int], after: int) -> None:
        """Forgets what a checkpoint has made superfluous.

        Args:
            segments: The commands that restore everything up to a command.
            tickets: The arrays for that.
            after: The command.
        """
        kept = [_behind(segment, after) for segment in self.segments if segment.last > after]
        self.segments = [*segments, *kept]
        for segment in kept:
            for _, command in segment.entries():
                if not isinstance(command, tuple):
                    tickets |= set(tickets_in(command.args))
        self.uploads = {t: found for t, found in self.uploads.items() if t in tickets}
        self.arrays_dropped = self.dropped = False
        self.nbytes = sum(len(segment.payload) + _SEGMENT_COST for segment in self.segments)
        self.nbytes += self._array_bytes()


def _mark(segment: Segment, commands: Mapping[int, InterruptedAt]) -> Segment:
    """A segment in which some commands say that they were interrupted."""
    batch = EncodedBatch(skipped=segment.skipped)
    for seq, entry in segment.entries():
        mark = commands.get(seq)
        if mark is not None:
            entry = command_of(entry) if isinstance(entry, tuple) else entry  # noqa: PLW2901
            entry.interrupted = mark  # type: ignore[assignment]  (the numbers are the same)
        add_to_batch(batch, entry, in_column=segment.in_column)
    return replace(segment, payload=bytearray(batch.SerializeToString()))


def _behind(segment: Segment, after: int) -> Segment:
    """The part of a segment after a command."""
    if segment.first > after:
        return segment
    batch = EncodedBatch()
    for seq, command in segment.entries():
        if seq > after:
            add_to_batch(batch, command, in_column=segment.in_column)
    payload = bytearray(batch.SerializeToString())
    return Segment(after + 1, segment.last, payload, segment.in_column)


@dataclass(slots=True)
class ReplayStep:
    """Commands that may be replayed at once, when all before them are done.

    Attributes:
        first, last: The numbers of the first and the last of them.
        batch: They themselves.
        tickets: The arrays that travel beside them, with the numbers of their commands.
        awaited: Whether the program waited for the last of them before continuing.
        by: The one worker that was awaited; None for all.
    """

    first: int
    last: int
    batch: EncodedBatch
    tickets: dict[int, int] = field(default_factory=dict[int, int])
    awaited: bool = False
    by: int | None = None

    def encode(self) -> SentBatch:
        """Encodes it for sending."""
        return SentBatch(self.first, self.last, self.batch.SerializeToString())


def split_at_waits(
    segment: Segment, is_open: Callable[[int], bool], executed: int
) -> Iterator[ReplayStep]:
    """Cuts commands to be replayed at the points where the program had waited.

    Side effects of workers may depend on that. Queries that were answered are not repeated;
    in their place workers acknowledge that they have reached that command.

    Args:
        segment: The commands.
        is_open: Whether a caller still waits for the answer to a command.
        executed: Up to this command all have been executed, on all workers. They are not limited
            again: workers that are slower would lack what the program may have seen.
    """
    whole = EncodedBatch.FromString(bytes(segment.payload))
    piece = ReplayStep(segment.first, 0, EncodedBatch(skipped=whole.skipped))
    in_column = bool(whole.calls)
    for seq, command in read_batch(segment.first, whole):
        piece.last = seq
        if isinstance(command, tuple):
            add_to_batch(piece.batch, command, in_column=in_column)
            continue
        if seq <= executed:
            command.limit_s = 0.0
        piece.tickets.update(dict.fromkeys(tickets_in(command.args), seq))
        if command.action in _QUESTIONS and not is_open(seq):
            released, by = list(command.released), list(command.workers)
            command.Clear()
            command.action = _SYNC
            command.workers.extend(by)
            command.released.extend(released)
        add_to_batch(piece.batch, command, in_column=in_column)
        if command.action == _SYNC and not is_open(seq):
            piece.awaited = True
            piece.by = command.workers[0] if command.workers else None
            yield piece
            piece = ReplayStep(seq + 1, 0, EncodedBatch())
    if piece.last:
        yield piece


# Which commands of a journal must be replayed if a checkpoint has the arrays.
#
# A checkpoint holds values: arrays, numbers, texts. It does not hold functions, modules
# and programs; these are restored by the commands that made them, with the arguments of
# those commands.


_PLAN_COMMANDS = 1024

_EFFECTS = frozenset(
    "runtime.disco." + name
    for name in (
        "_import_python_module",
        "_load_source",
        "_offer_source",
        "_include",
        "_offer_included",
        "_execute_cell",
        "init_ccl",
        "_compare_shapes",
        "bind_worker_to_cpu_core",
        "_begin_file",
        "_append_file",
        "_finish_file",
    )
)
"""Functions with side effects on a worker, so that each call counts."""

_PUBLISH = "runtime.disco._publish"
_CREATE = "runtime.disco.create_object"


@dataclass(frozen=True, slots=True)
class PruneRequest:
    """What pruning has to keep.

    Attributes:
        made: Registers whose content is to be made again.
        published: Names under which there is such content.
        failed: Commands that failed; those that only have an effect are left out.
        last: The command up to which the journal counts.
    """

    made: Collection[int]
    published: Collection[str]
    failed: Collection[int]
    last: int


@dataclass(frozen=True, slots=True)
class PrunePlan:
    """Commands that restore what a checkpoint does not hold.

    Attributes:
        commands: The commands with their numbers, in order.
        tickets: The arrays that travel beside them.
        written: The registers that they write.
    """

    commands: list[tuple[int, EncodedCommand]]
    tickets: set[int]
    written: set[int]

    def segments(self, after: Iterable[tuple[int, EncodedCommand]]) -> list[Segment]:
        """The commands, and others after them, as segments of a journal."""
        made: list[Segment] = []
        for seq, command in (*self.commands, *after):
            # Batches one behind the other are one batch.
            last = made[-1].last if made else 0
            count = last - made[-1].first - made[-1].skipped + 1 if made else 0
            if made and seq == last + 1 and count < _PLAN_COMMANDS:
                made[-1].payload += EncodedBatch(commands=[command]).SerializeToString()
                made[-1].last = seq
            else:
                skipped = seq - last - 1
                raw = EncodedBatch(commands=[command], skipped=skipped).SerializeToString()
                made.append(Segment(last + 1, seq, bytearray(raw), skipped=skipped))
        return made


def plan_pruning(journal: Journal, wanted: PruneRequest) -> PrunePlan:
    """Finds the commands.

    Raises:
        EncodingError: They are not known, or depend on commands that are not kept any more.
    """
    segments = [segment for segment in journal.segments if segment.first <= wanted.last]
    keep, created = _find_effects(segments, wanted)
    kept = _find_makers(segments, wanted, keep)
    lost = next((created[seq] for seq, _ in kept if seq in created), None)
    if lost is not None:
        raise EncodingError(
            f"cannot save the session: made again, an object of class {lost!r} would not be as it"
            " is; let it go and what was made of it, or give the class __disco_state__ and"
            " __disco_load__"
        )
    tickets = {ticket for _, command in kept for ticket in tickets_in(command.args)}
    if tickets - journal.uploads.keys():
        raise EncodingError(
            "cannot save the session: arrays of which functions were made are not kept any"
            " more, because they were beyond recover_limit_bytes"
        )
    written = {register for _, command in kept for register in _written(command)}
    return PrunePlan(kept, tickets, written)


def maker_of(journal: Journal, register: int) -> str:
    """The name of the function that wrote a register last; empty where that is not known."""
    func = 0
    for segment in reversed(journal.segments):
        for _, command in reversed(list(_all_commands(segment))):
            if (func or register) not in _written(command):
                continue
            if func:
                return command.args[0].str if command.action == Action.GET_GLOBAL_FUNC else ""
            if command.action != Action.CALL_PACKED:
                return ""
            func = command.func
    return ""


def _find_effects(
    segments: Iterable[Segment], wanted: PruneRequest
) -> tuple[set[int], dict[int, str]]:
    """The commands that count even if their result is not needed; searched forwards.

    Returns:
        Those, and the commands that create objects, with the names of their classes.
    """
    names: dict[int, str] = {}
    keep: set[int] = set()
    created: dict[int, str] = {}
    publishers: dict[str, int] = {}
    after_effect = False
    for segment in segments:
        for seq, command in _all_commands(segment):
            name = names.get(command.func, "") if command.action == Action.CALL_PACKED else ""
            if name == _PUBLISH:
                publishers[command.args[0].str] = seq
            elif name == _CREATE:
                created[seq] = command.args[0].str
            elif name and seq not in wanted.failed:
                keep.add(seq)
            # The wait of the program for it is kept, too.
            if command.action == Action.SYNC_WORKER and after_effect:
                keep.add(seq)
            else:
                after_effect = seq in keep
            for register in _written(command):
                names.pop(register, None)
            if command.action == Action.GET_GLOBAL_FUNC:
                name = command.args[0].str
                if name in _EFFECTS or name in (_PUBLISH, _CREATE):
                    names[command.reg] = name
    keep.update(publishers[name] for name in wanted.published if name in publishers)
    return keep, created


def _find_makers(
    segments: list[Segment], wanted: PruneRequest, keep: set[int]
) -> list[tuple[int, EncodedCommand]]:
    """The commands that make what is wanted, and their dependencies; searched backwards."""
    made = set(wanted.made)
    needed = set(made)
    kept: list[tuple[int, EncodedCommand]] = []
    for segment in reversed(segments):
        for seq, command in reversed(list(_all_commands(segment))):
            if seq > wanted.last:
                continue
            written = set(_written(command)) & needed
            given = set(registers_in(command.args))
            # A command may have changed its arguments.
            touched = given & (needed - made)
            if not (written or touched or seq in keep):
                continue
            if command.action == Action.RUN_PROGRAM:
                raise EncodingError(
                    "cannot save the session: it has a function that a captured program made;"
                    " make functions outside of captures"
                )
            if written and _replaces(command):
                needed -= written
                made -= written
            if command.action == Action.DEFINE_PROGRAM:
                needed |= set(command.program.registers) & set(wanted.made)
            else:
                needed |= given
                if command.func:
                    needed.add(command.func)
            kept.append((seq, command))
    if needed:
        raise EncodingError(
            "cannot save the session: it has functions made of values that only the"
            " checkpoint before has; make them again, or let them go"
        )
    kept.reverse()
    return kept


def _replaces(command: EncodedCommand) -> bool:
    """Whether a command writes its register anew on every worker, rather than into it."""
    if command.action == Action.COPY_TO_WORKER0:
        return command.args[1].bool
    return command.action != Action.DEBUG_SET_REGISTER


def _written(command: EncodedCommand) -> Iterator[int]:
    if command.action in _WRITERS and command.reg:
        yield command.reg
    yield from command.results


_WRITERS = frozenset(
    (
        Action.GET_GLOBAL_FUNC,
        Action.CALL_PACKED,
        Action.COPY_TO_WORKER0,
        Action.DEBUG_SET_REGISTER,
        Action.DEFINE_PROGRAM,
    )
)


def _all_commands(segment: Segment) -> Iterator[tuple[int, EncodedCommand]]:
    """The commands of a segment with their numbers; those of the column are spelled out."""
    for seq, command in segment.entries():
        yield seq, command_of(command) if isinstance(command, tuple) else command
