"""Which commands of a journal must be done again where a checkpoint has the arrays.

A checkpoint holds values: arrays, numbers, texts. Functions, modules and programs it
does not, and they are brought back by the commands that made them, with what those
commands were given.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass

from disco_client.errors import EncodingError
from disco_client.transport.journal import Journal, Segment, tickets_in
from disco_client.wire.codec import Action, EncodedBatch, EncodedCommand, EncodedValue

__all__ = ["Base", "Slice", "cut"]

_SEGMENT_COMMANDS = 1024

_EFFECTS = frozenset(
    "runtime.disco." + name
    for name in (
        "_import_python_module",
        "init_ccl",
        "_compare_shapes",
        "bind_worker_to_cpu_core",
        "_begin_file",
        "_append_file",
        "_finish_file",
    )
)
"""Functions that change a worker beside their result, so that each call counts."""

_PUBLISH = "runtime.disco._publish"


@dataclass(frozen=True, slots=True)
class Slice:
    """What is to be found.

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
class Base:
    """Commands that bring back what a checkpoint does not hold.

    Attributes:
        commands: The commands with their numbers, in order.
        tickets: The arrays that travel beside them.
        written: The registers that they write.
    """

    commands: list[tuple[int, EncodedCommand]]
    tickets: set[int]
    written: set[int]

    def segments(self, after: Iterable[tuple[int, EncodedCommand]]) -> list[Segment]:
        """The commands, and others behind them, as they stand in a journal."""
        made: list[Segment] = []
        for seq, command in (*self.commands, *after):
            # Batches one behind the other are one batch.
            last = made[-1].last if made else 0
            count = last - made[-1].first - made[-1].skipped + 1 if made else 0
            if made and seq == last + 1 and count < _SEGMENT_COMMANDS:
                made[-1].payload += EncodedBatch(commands=[command]).SerializeToString()
                made[-1].last = seq
            else:
                skipped = seq - last - 1
                raw = EncodedBatch(commands=[command], skipped=skipped).SerializeToString()
                made.append(Segment(last + 1, seq, bytearray(raw), skipped=skipped))
        return made


def cut(journal: Journal, wanted: Slice) -> Base:
    """Finds the commands.

    Raises:
        EncodingError: They are not known, or would need what is known no more.
    """
    segments = [segment for segment in journal.segments if segment.first <= wanted.last]
    keep = _find_effects(segments, wanted)
    kept = _find_makers(segments, wanted, keep)
    tickets = {ticket for _, command in kept for ticket in tickets_in(command)}
    if tickets - journal.uploads.keys():
        raise EncodingError(
            "cannot save the session: arrays of which functions were made are not kept any"
            " more, because they were beyond recover_limit_bytes"
        )
    written = {register for _, command in kept for register in _written(command)}
    return Base(kept, tickets, written)


def _find_effects(segments: Iterable[Segment], wanted: Slice) -> set[int]:
    """The commands that count whatever becomes of their result; looked for forwards."""
    names: dict[int, str] = {}
    keep: set[int] = set()
    publishers: dict[str, int] = {}
    after_effect = False
    for segment in segments:
        for seq, command in _all_commands(segment):
            name = names.get(command.func, "") if command.action == Action.CALL_PACKED else ""
            if name == _PUBLISH:
                publishers[command.args[0].str] = seq
            elif name and seq not in wanted.failed:
                keep.add(seq)
            # Also that the program waited until it was done.
            if command.action == Action.SYNC_WORKER and after_effect:
                keep.add(seq)
            else:
                after_effect = seq in keep
            for register in _written(command):
                names.pop(register, None)
            if command.action == Action.GET_GLOBAL_FUNC:
                name = command.args[0].str
                if name in _EFFECTS or name == _PUBLISH:
                    names[command.reg] = name
    keep.update(publishers[name] for name in wanted.published if name in publishers)
    return keep


def _find_makers(
    segments: list[Segment], wanted: Slice, keep: set[int]
) -> list[tuple[int, EncodedCommand]]:
    """The commands that make what is wanted, and what they need; looked for backwards."""
    made = set(wanted.made)
    needed = set(made)
    kept: list[tuple[int, EncodedCommand]] = []
    for segment in reversed(segments):
        for seq, command in reversed(list(_all_commands(segment))):
            if seq > wanted.last:
                continue
            written = set(_written(command)) & needed
            given = set(_given(command))
            # What was given to a command may have been changed by it.
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


def _given(command: EncodedCommand) -> Iterator[int]:
    """The registers among a command's arguments."""
    for value in command.args:
        yield from _registers(value)


def _registers(value: EncodedValue) -> Iterator[int]:
    kind = value.WhichOneof("kind")
    if kind == "reg":
        yield value.reg
    elif kind == "list":
        for item in value.list.items:
            yield from _registers(item)
    elif kind == "map":
        for item in value.map.items.values():
            yield from _registers(item)


def _all_commands(segment: Segment) -> Iterator[tuple[int, EncodedCommand]]:
    """The commands of a segment with their numbers; those of the column are spelled out."""
    for seq, command, record in segment.entries():
        yield seq, _spelled_out(record) if command is None else command


def _spelled_out(record: list[int]) -> EncodedCommand:
    head = 1 + record[0]
    command = EncodedCommand(
        action=Action.CALL_PACKED,  # type: ignore[arg-type]  (the numbers are the same)
        func=record[head],
        reg=record[head + 1],
        released=record[1:head],
    )
    for arg in record[head + 3 :]:
        if arg & 1:
            command.args.add().reg = arg >> 1
        else:
            command.args.add().int = arg >> 1
    return command
