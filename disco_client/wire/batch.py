"""Batches of commands, and the column of numbers in which their plain calls travel.

A plain call has nothing but references and small integers as arguments. Most calls are plain, so
a batch has them as rows of one column; ``Batch`` in commands.proto describes it. Workers execute
the column in a loop of their own (``Executor._run_column``), which tests hold against this reader.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from disco_client.errors import EncodingError
from disco_client.wire.codec import (
    Action,
    EncodedBatch,
    EncodedCommand,
    EnvelopeKind,
    envelope,
)

__all__ = [
    "Entry",
    "OutgoingBatch",
    "PlainCall",
    "SentBatch",
    "add_to_batch",
    "command_of",
    "parts_of",
    "plain_call",
    "read_batch",
    "write_column",
]


PlainCall: TypeAlias = tuple[int, ...]
"""A call as the column has it; see :func:`plain_call`."""

Entry: TypeAlias = "PlainCall | EncodedCommand"

_ELSEWHERE = -1
"""In the column: the next one of the commands that stand outside of it."""


@dataclass(frozen=True, slots=True)
class SentBatch:
    """Commands that are sent together, encoded.

    Attributes:
        first_seq, last_seq: The numbers of the first and the last of them.
        payload: They themselves.
        in_column: Whether that has a column of plain calls.
    """

    first_seq: int
    last_seq: int
    payload: bytes
    in_column: bool = False

    def envelope(self, session: int, worker: int | None = None) -> bytes:
        """Writes the envelope in which they travel.

        Args:
            session: The session's id.
            worker: The worker whose node alone gets them; None for all nodes.
        """
        return envelope(
            EnvelopeKind.BATCH,
            self.payload,
            session=session,
            worker=worker,
            first_seq=self.first_seq,
            last_seq=self.last_seq,
        )


@dataclass(frozen=True, slots=True)
class OutgoingBatch:
    """Commands that are sent together; they are encoded on request.

    Attributes:
        first_seq, last_seq: The numbers of the first and the last of them.
        calls: The column of plain calls, or empty.
        commands: The others.
        bulk: How many bytes of inline arrays and the like are among them.
    """

    first_seq: int
    last_seq: int
    calls: list[int]
    commands: list[EncodedCommand]
    bulk: int = 0

    @property
    def concerns(self) -> frozenset[int] | None:
        """The workers that have anything to do for them; None for all workers."""
        if self.calls or not all(each.workers and not each.released for each in self.commands):
            return None
        return frozenset(worker for each in self.commands for worker in each.workers)

    def encode(self) -> SentBatch:
        """Encodes them."""
        payload = EncodedBatch(commands=self.commands, calls=self.calls).SerializeToString()
        return SentBatch(self.first_seq, self.last_seq, payload, bool(self.calls))


def plain_call(released: Sequence[int], func: int, reg: int, args: Sequence[int]) -> PlainCall:
    """Writes a call as a row of the column.

    Args:
        released: The registers to release first.
        func: The function's register.
        reg: The result's register.
        args: A register as ``2 * register + 1``, an integer as ``2 * integer``.
    """
    return (len(released), *released, func, reg, len(args), *args)


def parts_of(call: PlainCall) -> tuple[PlainCall, int, int, PlainCall]:
    """What :func:`plain_call` was given."""
    head = 1 + call[0]
    return call[1:head], call[head], call[head + 1], call[head + 3 :]


def write_column(entries: Iterable[Entry]) -> tuple[list[int], list[EncodedCommand]]:
    """Writes the plain calls among commands into a column.

    Returns:
        The column, which is empty where there is no plain call, and the other commands.
    """
    calls: list[int] = []
    commands: list[EncodedCommand] = []
    some_plain = False
    for entry in entries:
        if isinstance(entry, tuple):
            some_plain = True
            calls += entry
        else:
            commands.append(entry)
            calls.append(_ELSEWHERE)
    return (calls if some_plain else []), commands


def add_to_batch(batch: EncodedBatch, entry: Entry, *, in_column: bool) -> None:
    """Appends a command that was read from another batch.

    Args:
        batch: The batch.
        entry: The command, as :func:`read_batch` yields it.
        in_column: Whether the other batch has a column, so that this one is to have one too.
    """
    calls, commands = write_column((entry,))
    batch.commands.extend(commands)
    batch.calls.extend(calls or (_ELSEWHERE,) if in_column else ())


def read_batch(first: int, batch: EncodedBatch) -> Iterator[tuple[int, Entry]]:
    """Reads the commands of a batch.

    Args:
        first: The number that the batch begins with.
        batch: The batch.

    Yields:
        The number of a command, and the command.

    Raises:
        EncodingError: The column breaks off, or has another number of commands beside it.
    """
    seq = first + batch.skipped
    if not batch.calls:
        yield from enumerate(batch.commands, seq)
        return
    calls, at, commands = list(batch.calls), 0, iter(batch.commands)
    while at < len(calls):
        if calls[at] < 0:
            command = next(commands, None)
            if command is None:
                break
            yield seq, command
            at += 1
        else:
            head = at + 1 + calls[at]
            if head + 3 > len(calls) or not 0 <= calls[head + 2] <= len(calls) - head - 3:
                break
            after = head + 3 + calls[head + 2]
            yield seq, tuple(calls[at:after])
            at = after
        seq += 1
    if at != len(calls):
        raise EncodingError(f"cannot read a batch of commands: its column breaks off at {at}")


def command_of(call: PlainCall) -> EncodedCommand:
    """A plain call as a command of its own."""
    released, func, reg, args = parts_of(call)
    command = EncodedCommand(
        action=Action.CALL_PACKED,  # type: ignore[arg-type]  (the numbers are the same)
        func=func,
        reg=reg,
        released=released,
    )
    for arg in args:
        if arg & 1:
            command.args.add().reg = arg >> 1
        else:
            command.args.add().int = arg >> 1
    return command
