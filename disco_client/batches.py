"""The batches of a session's commands, from the oldest that workers may not have executed.

Their owner's lock guards them. An exception may come out of any bytecode; between two steps that
nothing interrupts they are consistent, and the next thread goes on from there.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Mapping
from typing import TypeAlias

from disco_client.call_sites import Site
from disco_client.reentry import move
from disco_client.scopes import Scope
from disco_client.transport.progress import Progress
from disco_client.wire.batch import Entry, OutgoingBatch, write_column

__all__ = ["MAX_BATCH_BYTES", "MAX_BATCH_COMMANDS", "Batches", "PlacedEntry"]

MAX_BATCH_COMMANDS = 2048
MAX_BATCH_BYTES = 128 << 10
"""Of arrays in commands. Other sessions' commands wait behind a batch wherever it is
read, copied and written in one go."""

_INTERRUPTS = 8
"""Of how many interrupts it is remembered where their commands were issued."""

PlacedEntry: TypeAlias = "tuple[Site, Entry]"
"""A command, and the position in the program that issued it."""


class _Batch:
    """Commands that are sent together, each with the line that issued it.

    Args:
        first_seq: The number of the first of them.
        before: How many bytes all commands before them have together.
        beside_before: How many bytes of arrays travel beside those.

    Attributes:
        entries: The commands that have not left, each with the position that issued it. One
            append makes a command part of the log, so a call that is interrupted has either
            happened or not.
        sites: The positions, once they have left.
        nbytes: How many bytes of arrays and the like are in them.
        beside: How many bytes of arrays travel beside them.
        questions: The numbers of those that workers answer.
        leaving: What is sent.
        next: The batch that follows.
    """

    __slots__ = (
        "before",
        "beside",
        "beside_before",
        "entries",
        "first_seq",
        "leaving",
        "nbytes",
        "next",
        "questions",
        "sites",
    )

    next: _Batch

    def __init__(self, first_seq: int, before: int = 0, beside_before: int = 0) -> None:
        self.first_seq: int = first_seq
        self.before: int = before
        self.beside_before: int = beside_before
        self.questions: list[int] = []
        self.entries: list[PlacedEntry] = []
        self.sites: list[Site] = []
        self.nbytes: int = 0
        self.beside: int = 0
        self.leaving: OutgoingBatch | None = None

    @property
    def next_seq(self) -> int:
        """The number of the command after the last one."""
        return self.first_seq + (len(self.entries) or len(self.sites))

    def follow(self) -> _Batch:
        """Makes the batch that follows."""
        return _Batch(self.next_seq, self.before + self.nbytes, self.beside_before + self.beside)

    def leave(self) -> OutgoingBatch:
        """Returns the commands for sending; only the lines that issued them are kept."""
        if self.leaving is not None:
            return self.leaving
        sites, entries = map(list, zip(*self.entries, strict=True))
        calls, commands = write_column(entries)
        last = self.next_seq - 1
        leaving = OutgoingBatch(self.first_seq, last, calls, commands, self.nbytes)
        left: list[PlacedEntry] = []
        self.sites = sites
        self.entries = left
        self.leaving = leaving
        return leaving

    def scopes(self) -> set[Scope]:
        """The scopes that issued its commands."""
        return {site[2] for site, _ in self.entries} | {site[2] for site in self.sites}

    def site(self, seq: int) -> Site | None:
        """The line that issued one of its commands."""
        index = seq - self.first_seq
        if 0 <= index < len(self.entries):
            return self.entries[index][0]
        return self.sites[index] if 0 <= index < len(self.sites) else None


class Batches:
    """A chain of batches: commands are appended to the last, and the first ones are forgotten.

    Args:
        num_workers: How many workers execute them.
        first_seq: The number of the first command.

    Attributes:
        oldest: The oldest that workers may not have executed.
        leaving: The oldest that may not have left.
        filling: The one that grows.
        newest: The number of the last command, perhaps without those that are put aside.
        interrupted: The lines of commands that were interrupted, also once they are over.
        aside: Commands that a thread has issued inside of another one; they follow that.
        done: How far the workers are.
    """

    __slots__ = ("aside", "done", "filling", "interrupted", "leaving", "newest", "oldest")

    oldest: _Batch
    leaving: _Batch
    filling: _Batch

    def __init__(self, num_workers: int, first_seq: int) -> None:
        self.oldest = self.leaving = self.filling = _Batch(first_seq)
        self.newest: int = first_seq - 1
        self.aside: deque[PlacedEntry] = deque()
        self.done: Progress = Progress(num_workers, first_seq - 1)
        self.interrupted: deque[Mapping[int, Site]] = deque(maxlen=_INTERRUPTS)

    def __iter__(self) -> Generator[_Batch]:
        """Those that workers may not have executed, the one that grows included."""
        batch = self.oldest
        while True:
            yield batch
            if batch is self.filling:
                return
            batch = batch.next

    @property
    def last_seq(self) -> int:
        """The number of the last command, without those that are put aside."""
        return self.filling.next_seq - 1

    @property
    def nbytes(self) -> int:
        """How many bytes are in batches that are full, and not executed everywhere."""
        return self.filling.before - self.oldest.before

    @property
    def beside(self) -> int:
        """How many bytes of arrays travel beside commands that are not executed everywhere."""
        filling = self.filling
        return filling.beside_before + filling.beside - self.oldest.beside_before

    @property
    def some_to_send(self) -> bool:
        """Whether there are commands that have not left."""
        return self.leaving is not self.filling or bool(self.leaving.entries or self.aside)

    def append(self, site: Site, entry: Entry) -> None:
        """Appends a command."""
        batch = self.filling
        entries = batch.entries
        entries.append((site, entry))
        self.newest = batch.first_seq + len(entries) - 1
        if len(entries) >= MAX_BATCH_COMMANDS or batch.nbytes >= MAX_BATCH_BYTES:
            self.seal()

    def take_aside(self) -> None:
        """Appends the commands that were put aside."""
        move(self.aside, len(self.aside), self.filling.entries)
        self.newest = self.last_seq

    def seal(self) -> None:
        """Begins another batch, unless the last one is empty."""
        batch = self.filling
        if batch.entries:
            following = batch.follow()
            batch.next = following
            self.filling = following

    def next_to_leave(self) -> _Batch | None:
        """What is to be sent next, the same until it has :meth:`left`; None where there is none."""
        batch = self.leaving
        if batch is self.filling:
            self.seal()
        return None if batch is self.filling else batch

    def left(self, seq: int) -> None:
        """Notes that the batch up to a command is on its way."""
        batch = self.leaving
        if batch.leaving is not None and batch.leaving.last_seq == seq:
            self.leaving = batch.next

    def trim(self) -> None:
        """Forgets what all workers have executed."""
        batch, done_by_all = self.oldest, self.done.slowest
        while batch is not self.filling and batch.next_seq - 1 <= done_by_all:
            batch = batch.next
        self.oldest = batch

    def drop(self, last: int) -> None:
        """Forgets all commands; the next one has the number after ``last``."""
        self.aside.clear()
        self.oldest = self.leaving = self.filling = _Batch(last + 1)
        self.newest = last

    def restart(self, num_workers: int) -> int:
        """Forgets all commands, as other workers are there now; returns the last one's number."""
        last = self.last_seq + len(self.aside)
        self.drop(last)
        self.done = Progress(num_workers, last)
        return last

    def scopes(self) -> set[Scope]:
        """The scopes that issued commands that workers may not have executed."""
        aside = {site[2] for site, _ in self.aside}
        return aside.union(*(batch.scopes() for batch in self))

    def sites(self, after: int) -> list[Site]:
        """The lines that issued the commands after one, none of which was executed everywhere."""
        found: list[Site] = []
        for batch in self:
            if batch.next_seq > after + 1:
                sites = batch.sites or [site for site, _ in batch.entries]
                found += sites[max(after + 1 - batch.first_seq, 0) :]
        return found

    def questions(self) -> set[int]:
        """The commands that workers answer, and may not have executed."""
        return {seq for batch in self for seq in batch.questions}

    def site(self, seq: int) -> Site | None:
        """The line that issued a command that workers may not have executed, or was interrupted."""
        for batch in self:
            site = batch.site(seq)
            if site is not None:
                return site
        return next((sites[seq] for sites in self.interrupted if seq in sites), None)
