"""The folder of a checkpoint, for the worker that leads a save.

A save takes the number behind that of the newest index, fills the folder of a new generation, and
then makes the index of that number, where there is none. Until then the former checkpoint is the
checkpoint, from then on the new one. Of two savers that take the same number, one makes the index,
and the other one's checkpoint never is. Before its generation, a save makes a claim, a file whose
name has its number: what belongs to a number that some index has reached can be in no later index,
so the next save removes it. All of that holds on a disk and in a store. On a disk a lock also
keeps a second saver waiting.
"""

from __future__ import annotations

import hashlib
import math
import os
import re
import weakref
from collections.abc import Collection, Generator, Iterable, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from disco_client.wire.partition import Bounds, shape_within
from disco_server.storage.checkpoint_read import (
    GENERATION,
    MAX_INDEX,
    Entry,
    Index,
    StoredFile,
    decode_index,
    encode_index,
    file_name,
    index_name,
    indices_of,
)
from disco_server.storage.files import FileError, absolute_path, check_allowed, reason
from disco_server.storage.folders import Folder, Where, open_folder
from disco_server.storage.safetensors import FileLayout, lay_out

__all__ = ["CheckpointFolder", "Save", "remove_checkpoint"]


_LOCK_WAIT_S = 30.0
"""For so long a save waits for another one: a controller that has lost a client ends its
workers after ten seconds, and until then they are saving."""

_CLAIM = re.compile(r"disco-checkpoint-([0-9]{10,18})\.([0-9a-f]{16})")


class CheckpointFolder:
    """The folder of a checkpoint, with a new generation in it.

    Args:
        path: The folder; made where it is missing.
        allowed: Where that is allowed (see `file_allowed`).
        generation: The name of the new generation.
        lock_wait_s: How long to wait where another save is under way.

    Attributes:
        path: Where the folder really is.
        files: The folder of the new generation.

    Raises:
        FileNotAllowed: The allow-list does not cover it.
        FileError: It cannot be written, holds something else, or another save is
            under way.
    """

    def __init__(
        self,
        path: Where,
        allowed: Sequence[str],
        generation: str,
        lock_wait_s: float = _LOCK_WAIT_S,
    ) -> None:
        check_allowed(path, allowed, write=True)
        self.path = _real(path)
        self._generation = generation
        with refused_writes(self.path), ExitStack() as opened:
            self._folder = open_folder(self.path, make=True)
            opened.callback(self._folder.close)
            try:
                self._alone = self._folder.lock(lock_wait_s)
            except BlockingIOError as error:
                raise FileError(self.path, reason(error)) from None
            newest, current = self._find_current()
            self._sweep(newest, current)
            self._number = newest + 1
            self._claim = f"{index_name(self._number)[:-5]}.{generation[-16:]}"
            self._folder.remove(generation)  # of a session that repeats its commands
            self._folder.claim(self._claim)
            self.files = self._folder.make(generation)
            opened.callback(self.files.close)
            # The lock ends with the descriptor, however this ends.
            self._close = weakref.finalize(self, opened.pop_all().close)

    def room(self) -> int | None:
        """How many bytes may still be written here; None where the system does not report it."""
        return self._folder.room()

    def complete(self, index: bytes) -> bool:
        """Makes the new generation the checkpoint, when all its files are durable.

        Args:
            index: The bytes of its index.

        Returns:
            Whether it is; False where another save was faster.

        Raises:
            FileError: That failed; the former generation is the checkpoint still, or,
                where only the last step failed, the new one is.
        """
        name = index_name(self._number)
        with refused_writes(self.path / name):
            try:
                new = self._folder.put_new(name, index, self._claim)
            except OSError:
                # The answer may have been lost, or it may still arrive.
                if not self._holds(name, index):
                    raise
                new = True
            # A request that was sent again found what it had made before.
            if not (new or self._holds(name, index)):
                return False
            # One of a lower number, which was removed since, could be made again.
            if self.is_overtaken(self._number + 1):
                self._folder.remove(name)
                return False
        with suppress(OSError):
            self._sweep(self._number, self._generation)
        return True

    def is_overtaken(self, number: int = 0) -> bool:
        """Whether there is an index of that number or a later one; by default of this save's."""
        indices = indices_of(self._folder.names())
        return bool(indices) and indices[-1][0] >= (number or self._number)

    def discard(self) -> None:
        """Removes the new generation."""
        with suppress(OSError):
            self._folder.remove(self._generation)
            self._folder.remove(self._claim)

    def close(self) -> None:
        """Unlocks the folder for other saves; idempotent."""
        self._close()

    def _holds(self, name: str, content: bytes) -> bool:
        """Whether a file is there and has that content."""
        with suppress(OSError):
            return _read(self._folder, name, len(content) + 1) == content
        return False

    def _find_current(self) -> tuple[int, str | None]:
        """The number of the newest index, and the generation in use.

        Raises:
            FileError: There is an index that cannot be read, so that it is unknown
                which files belong to it.
        """
        while True:
            indices = indices_of(self._folder.names())
            if not indices:
                return 0, None
            number, name = indices[-1]
            try:
                return number, self._generation_of(name)
            except FileNotFoundError:
                if not self.is_overtaken(number + 1):
                    raise
                # Another saver replaced it after it was listed.

    def _generation_of(self, name: str) -> str:
        content = _read(self._folder, name, MAX_INDEX)
        try:
            return decode_index(self.path / name, content).generation
        except FileError as error:
            raise FileError(
                self.path,
                "what is here is no checkpoint that this version can replace; remove it or save"
                f" elsewhere: {error}",
            ) from None

    def _sweep(self, newest: int, kept: str | None) -> None:
        """Removes what belongs to no index and never will; what stays is left to the next save."""
        names = self._folder.names()
        former = [name for number, name in indices_of(names) if number < newest]
        claims = [(int(match[1]), match) for match in map(_CLAIM.fullmatch, names) if match]
        over = [match for number, match in claims if self._alone or number <= newest]
        left = {f"generation-{match[2]}" for match in over}
        for name in former:
            with suppress(FileError, FileNotFoundError):  # another saver removes it as well
                left.add(self._generation_of(name))
        if self._alone:
            left.update(name for name in names if GENERATION.fullmatch(name))
        for name in [*sorted(left - {kept}), *former, *(match[0] for match in over)]:
            self._folder.remove(name)


def remove_checkpoint(path: Where, allowed: Sequence[str]) -> None:
    """Removes a checkpoint that is not needed any more, and its folder where nothing else is in it.

    Raises:
        FileNotAllowed: The allow-list does not cover it.
        FileError: It cannot be removed.
    """
    check_allowed(path, allowed, write=True)
    real = _real(path)
    with refused_writes(real), ExitStack() as opened:
        try:
            folder = open_folder(real)
            opened.callback(folder.close)
            names = folder.names()
        except (FileNotFoundError, NotADirectoryError):
            return
        indices = [name for _, name in indices_of(names)]
        if not indices:
            return
        # In this order, so that none of the former ones is the checkpoint for a moment.
        for name in indices:
            folder.remove(name)
        for name in names:
            if GENERATION.fullmatch(name) or _CLAIM.fullmatch(name):
                folder.remove(name)
    if isinstance(real, Path):
        with suppress(OSError):
            real.rmdir()


def _current_generation(path: Where) -> str | None:
    """The generation that is the checkpoint at a path; None where it cannot be determined."""
    with suppress(OSError, FileError), ExitStack() as opened:
        folder = open_folder(path)
        opened.callback(folder.close)
        name = indices_of(folder.names())[-1:]
        if name:
            return decode_index(path, _read(folder, name[0][1], MAX_INDEX)).generation
    return None


def _real(path: Where) -> Where:
    return Path(os.path.realpath(path)) if isinstance(path, Path) else path


def _read(folder: Folder, name: str, most: int) -> bytes:
    """The first bytes of a file."""
    content = folder.open_bytes(name)
    try:
        out = bytearray(min(most, content.size))
        for _ in content.read_pieces([(memoryview(out), 0)]):
            pass
        return bytes(out)
    except EOFError as error:
        raise OSError(str(error)) from None
    finally:
        content.close()


@contextmanager
def refused_writes(path: Where) -> Generator[None]:
    """Turns errors of the system into errors that name the file."""
    try:
        yield
    except FileError:
        raise
    except OSError as error:
        raise FileError(path, f"cannot be written: {reason(error)}") from None


# One worker's part in saving a checkpoint.
#
# The steps, of which each is done on all workers before the next begins on any:
#
# 1. The leader makes the folder of a new generation (`Save`).
# 2. All are given what is to be saved (`add`), make their files (`start`), write their parts
#    (`write`), and make them durable (`finish`).
# 3. The leader checks that every file is there, and makes the index (`commit`).
#
# `close` at any time before the last step leaves the checkpoint as it was.


_SHARED = "a checkpoint needs a folder that all workers share, such as one of a network file system"
_FASTER = "another session saved here meanwhile, and its checkpoint is kept; save once more"


class Save:
    """One worker's side of a save.

    Args:
        path: The checkpoint's folder, as clients send it.
        allowed: Where sessions may save (see `file_allowed`).
        generation: The name of the new generation, the same for all workers.
        worker: This worker's number.
        leads: Whether this is the worker that makes the folder and the index.

    Raises:
        FileNotAllowed: The allow-list does not cover the folder.
        FileError: It cannot be written, holds something else, or another save is
            under way.
    """

    def __init__(
        self, path: str, allowed: Sequence[str], generation: str, worker: int, *, leads: bool
    ) -> None:
        where = absolute_path(path)
        check_allowed(where, allowed, write=True)
        # A session that repeats its commands saves what it has saved.
        self._root = _real(where)
        self._done = _current_generation(self._root) == generation
        leads = leads and not self._done
        self._folder = CheckpointFolder(where, allowed, generation) if leads else None
        self._path = self._root / generation
        self._generation = generation
        self._worker = worker
        self._entries: list[Entry] = []
        self._parts: dict[int, list[tuple[int, Bounds]]] = {}
        self._layout: FileLayout | None = None
        self._offsets: dict[int, tuple[int, int]] = {}
        self._committed = False
        self._opened = ExitStack()
        self._release = weakref.finalize(self, self._opened.close)

    @property
    def entries(self) -> Sequence[Entry]:
        """What is saved, in order."""
        return self._entries

    def add(self, entries: Iterable[Entry]) -> None:
        """Adds tensors that are to be saved."""
        for entry in entries:
            for worker, bounds in entry.parts:
                self._parts.setdefault(worker, []).append((len(self._entries), bounds))
            self._entries.append(entry)

    def start(self) -> None:
        """Makes this worker's file, where it has parts of what is saved.

        Raises:
            FileError: It cannot be made; there is no room for all files; or this
                worker does not see the folder that the leader made.
        """
        if self._folder is not None:
            self._check_room(self._folder)
        mine = self._parts.get(self._worker)
        if mine is None or self._done:
            return
        layout = self._lay_out(self._worker)
        file = self._path / file_name(self._worker)
        with refused_writes(file):
            folder = self._open_generation()
            self._opened.callback(folder.close)
            self._writer = folder.create(file.name, layout.nbytes)
            self._opened.callback(self._writer.close)
            self._writer.write(memoryview(layout.head), 0)
        self._files = folder
        self._layout = layout
        for (number, bounds), offset in zip(mine, layout.offsets, strict=True):
            self._offsets[number] = offset, _nbytes(self._entries[number], bounds)

    def _open_generation(self) -> Folder:
        try:
            return open_folder(self._path)
        except (FileNotFoundError, NotADirectoryError):
            problem = f"worker 0 made this folder, and worker {self._worker} does not see it"
            raise FileError(self._path, f"{problem}: {_SHARED}") from None

    def has(self, number: int) -> bool:
        """Whether this worker writes a part of a tensor, which it has not written yet."""
        return number in self._offsets

    def write(self, number: int, pieces: Iterable[memoryview]) -> None:
        """Writes this worker's part of a tensor.

        Args:
            number: Of the tensor.
            pieces: Its bytes in C order; each is valid until the next is requested.

        Raises:
            FileError: The write failed, or they are not as many as expected.
        """
        offset, nbytes = self._offsets[number]
        at, file = 0, self._path / file_name(self._worker)
        with refused_writes(file):
            for piece in pieces:
                self._writer.write(piece[: nbytes - at], offset + at)
                at += len(piece)
        self._check_came(number, at)
        del self._offsets[number]

    def _check_came(self, number: int, nbytes: int) -> None:
        expected = self._offsets[number][1]
        if nbytes != expected:
            file, name = self._path / file_name(self._worker), self._entries[number].name
            problem = f"expected {expected} bytes of its part, got {nbytes}"
            raise FileError(file, problem, tensor=name)

    def finish(self) -> None:
        """Makes this worker's file durable.

        Raises:
            FileError: The disk failed, or something was not written.
        """
        if self._layout is None:
            return
        file = self._path / file_name(self._worker)
        self._check_all(())
        with refused_writes(file):
            self._writer.finish()

    def _check_all(self, kept: Collection[int]) -> None:
        """Makes sure that every part was written, or is kept to be."""
        missing = self._offsets.keys() - kept
        if missing:
            file, name = self._path / file_name(self._worker), self._entries[min(missing)].name
            raise FileError(file, "its part was not written", tensor=name)

    def commit(self) -> None:
        """Makes what was written the checkpoint, when all have finished; the leader does.

        Raises:
            FileError: A file of another worker is not there as it should be, or the
                index could not be written; the previous checkpoint stays.
        """
        if self._folder is None:
            self._committed = True  # from here on the leader decides whether the files stay
            return
        try:
            files = {worker: self._check_file(worker, self._folder.files) for worker in self._parts}
        except FileError:
            if self._folder.is_overtaken():  # which has removed them
                raise FileError(self._root, _FASTER) from None
            raise
        index = encode_index(Index(self._generation, files, tuple(self._entries)))
        # From here on the index may name these files, whatever happens.
        self._committed = True
        if not self._folder.complete(index):
            self._committed = False
            raise FileError(self._root, _FASTER)
        self._folder.close()

    def close(self) -> None:
        """Ends the save; without `commit`, what was written is removed. Idempotent."""
        if not self._committed and self._layout is not None:
            with suppress(OSError):
                self._files.remove(file_name(self._worker))
        self._layout = None
        self._release()
        if self._folder is not None:
            if not self._committed:
                self._folder.discard()
            self._folder.close()
            self._folder = None
        elif not (self._committed or self._done) and isinstance(self._path, Path):
            with suppress(OSError):
                self._path.rmdir()  # the leader could not, while a file was in it

    def _lay_out(self, worker: int) -> FileLayout:
        """A worker's file."""
        entries = ((self._entries[number], bounds) for number, bounds in self._parts[worker])
        return lay_out(
            [(entry.name, entry.dtype, shape_within(bounds)) for entry, bounds in entries],
            {"disco.generation": self._generation, "disco.worker": str(worker)},
        )

    def _check_room(self, folder: CheckpointFolder) -> None:
        needed = sum(_nbytes(entry, bounds) for entry in self._entries for _, bounds in entry.parts)
        room = folder.room()
        if room is not None and needed > room:
            raise FileError(
                folder.path,
                f"no space left on device: {needed:,} bytes are to be written, and there is room"
                f" for {room:,} beside the previous checkpoint",
            )

    def _check_file(self, worker: int, folder: Folder) -> StoredFile:
        layout = self._lay_out(worker)
        file = self._path / file_name(worker)
        with refused_writes(file):
            try:
                written = folder.open_bytes(file.name)
            except FileNotFoundError:
                problem = f"worker {worker} wrote this file, and worker 0 does not see it"
                raise FileError(file, f"{problem}: {_SHARED}") from None
            written.close()
            head = _read(folder, file.name, len(layout.head))
        if (written.size, head) != (layout.nbytes, layout.head):
            problem = f"expected {layout.nbytes} bytes that worker {worker} wrote"
            raise FileError(file, f"{problem}, got {written.size} or others: {_SHARED}")
        return StoredFile(layout.nbytes, hashlib.sha256(layout.head).hexdigest())


def _nbytes(entry: Entry, bounds: Bounds) -> int:
    return math.prod(shape_within(bounds)) * entry.dtype.itemsize
