"""The folder of a checkpoint, for the worker that leads a save.

A save makes the folder of a new generation beside the one in use, fills it, and then
replaces the old index by its own with a single rename. Until then the old checkpoint
is the checkpoint, from then on the new one. What an interrupted save left behind is
in no index; the next save removes it.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import math
import os
import shutil
import time
import weakref
from collections.abc import Generator, Iterable, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path

from disco_client.clock import monotonic
from disco_client.wire.partition import Bounds, shape_within
from disco_server.storage.checkpoint_read import (
    GENERATION,
    INDEX,
    MAX_INDEX,
    Entry,
    Index,
    StoredFile,
    decode_index,
    encode_index,
    file_name,
)
from disco_server.storage.files import FileError, absolute_path, check_allowed, reason
from disco_server.storage.safetensors import FileLayout, lay_out

__all__ = [
    "CheckpointFolder",
    "Save",
    "current_generation",
    "open_folder",
    "refused_writes",
    "sync_folder",
    "write_whole",
]


_LOCK_WAIT_S = 30.0
"""For so long a save waits for another one: a controller that has lost a client ends its
workers after ten seconds, and until then they are saving."""

_LOCK_POLL_S = 0.05
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_NEW_TEXT = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_NEW_INDEX = "index.json"


class CheckpointFolder:
    """A folder locked for a new generation, so that no other save writes there meanwhile.

    Args:
        path: The folder; made where it is missing.
        allowed: Where that is allowed (see `file_allowed`).
        generation: The name of the new generation.
        lock_wait_s: How long to wait where another save is under way.

    Attributes:
        path: Where the folder really is.
        generation_fd: The folder of the new generation, opened.

    Raises:
        FileNotAllowed: The allow-list does not cover it.
        FileError: It cannot be written, holds something else, or another save is
            under way.
    """

    def __init__(
        self,
        path: Path,
        allowed: Sequence[str],
        generation: str,
        lock_wait_s: float = _LOCK_WAIT_S,
    ) -> None:
        check_allowed(path, allowed, write=True)
        self.path = Path(os.path.realpath(path))
        self._generation = generation
        with refused_writes(self.path), ExitStack() as opened:
            _make_folders(self.path)
            self._fd = open_folder(self.path)
            opened.callback(os.close, self._fd)
            _lock(self._fd, self.path, lock_wait_s)
            self._sweep(self._current())
            os.mkdir(generation, dir_fd=self._fd)
            self.generation_fd = open_folder(generation, self._fd)
            opened.callback(os.close, self.generation_fd)
            os.fsync(self._fd)
            # The lock ends with the descriptor, however this ends.
            self._close = weakref.finalize(self, opened.pop_all().close)

    def room(self) -> int | None:
        """How many bytes may still be written here; None where the system does not report it."""
        status = os.fstatvfs(self._fd)
        return status.f_bavail * status.f_frsize if status.f_blocks else None

    def swap(self, index: bytes) -> None:
        """Makes the new generation the checkpoint, when all its files are durable.

        Args:
            index: The bytes of its index.

        Raises:
            FileError: That failed; the old generation is the checkpoint still, or,
                where only the last step failed, the new one is.
        """
        with refused_writes(self.path / INDEX):
            fd = os.open(_NEW_INDEX, _NEW_TEXT, 0o666, dir_fd=self.generation_fd)
            try:
                write_whole(fd, memoryview(index), 0)
                os.fsync(fd)
            finally:
                os.close(fd)
            os.fsync(self.generation_fd)
            os.rename(_NEW_INDEX, INDEX, src_dir_fd=self.generation_fd, dst_dir_fd=self._fd)
            os.fsync(self._fd)
            os.fsync(self.generation_fd)
        with contextlib.suppress(OSError):
            self._sweep(self._generation)

    def discard(self) -> None:
        """Removes the new generation."""
        _remove(self._generation, self._fd)

    def close(self) -> None:
        """Unlocks the folder for other saves; idempotent."""
        self._close()

    def _current(self) -> str | None:
        """The generation in use.

        Raises:
            FileError: There is an index that cannot be read, so that it is unknown
                which files belong to it.
        """
        try:
            fd = os.open(INDEX, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=self._fd)
        except FileNotFoundError:
            return None
        with os.fdopen(fd, "rb") as file:
            content = file.read(MAX_INDEX)
        try:
            return decode_index(self.path / INDEX, content).generation
        except FileError as error:
            raise FileError(
                self.path,
                "what is here is no checkpoint that this version can replace; remove it or save"
                f" elsewhere: {error}",
            ) from None

    def _sweep(self, kept: str | None) -> None:
        """Removes what belongs to no index; what cannot be removed is left to the next save."""
        for name in os.listdir(self._fd):  # noqa: PTH208  (of a descriptor)
            if GENERATION.fullmatch(name) and name != kept:
                _remove(name, self._fd)


def current_generation(path: Path) -> str | None:
    """The generation that is the checkpoint at a path; None where it cannot be determined."""
    with contextlib.suppress(OSError, FileError), (path / INDEX).open("rb") as file:
        return decode_index(path / INDEX, file.read(MAX_INDEX)).generation
    return None


def open_folder(path: str | Path, parent: int | None = None) -> int:
    """Opens a folder that is no link."""
    return os.open(path, _FOLDER, dir_fd=parent)


def sync_folder(path: Path) -> None:
    """Makes durable which names are in a folder."""
    fd = open_folder(path)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def write_whole(fd: int, data: memoryview, offset: int) -> None:
    """Writes all of some bytes."""
    at = 0
    while at < len(data):
        at += os.pwrite(fd, data[at:], offset + at)


@contextlib.contextmanager
def refused_writes(path: Path) -> Generator[None]:
    """Turns errors of the system into errors that name the file."""
    try:
        yield
    except FileError:
        raise
    except OSError as error:
        raise FileError(path, f"cannot be written: {reason(error)}") from None


def _make_folders(path: Path) -> None:
    missing: list[Path] = []
    at = path
    while not at.exists():
        missing.append(at)
        at = at.parent
    for folder in reversed(missing):
        folder.mkdir(exist_ok=True)
        sync_folder(folder.parent)


def _lock(fd: int, path: Path, wait_s: float) -> None:
    deadline = monotonic() + wait_s
    while True:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if monotonic() > deadline:
                raise FileError(path, "another session is saving here at this moment") from None
            time.sleep(_LOCK_POLL_S)
        except OSError as error:
            if error.errno not in (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP):
                raise
            return  # a file system without locks
        else:
            return


def _remove(name: str, parent: int) -> None:
    shutil.rmtree(name, ignore_errors=True, dir_fd=parent)


# One worker's part in saving a checkpoint.
#
# The steps, of which each is done on all workers before the next begins on any:
#
# 1. The leader makes the folder of a new generation (`Save`).
# 2. All are given what is to be saved (`add`), make their files (`start`), write their parts
#    (`write`), and make them durable (`finish`).
# 3. The leader checks that every file is there, and puts the index in its place
#    (`commit`).
#
# `close` at any time before the last step leaves the checkpoint as it was.


_NEW_PARTS = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_SHARED = "a checkpoint needs a folder that all workers share, such as one of a network file system"


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
        self._done = current_generation(where) == generation
        leads = leads and not self._done
        self._folder = CheckpointFolder(where, allowed, generation) if leads else None
        self._path = Path(os.path.realpath(where)) / generation
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
        try:
            folder = open_folder(self._path)
        except (FileNotFoundError, NotADirectoryError):
            problem = f"worker 0 made this folder, and worker {self._worker} does not see it"
            raise FileError(self._path, f"{problem}: {_SHARED}") from None
        self._opened.callback(os.close, folder)
        with refused_writes(file):
            self._fd = os.open(file.name, _NEW_PARTS, 0o666, dir_fd=folder)
            self._opened.callback(os.close, self._fd)
            write_whole(self._fd, memoryview(layout.head), 0)
        self._folder_fd = folder
        self._layout = layout
        for (number, bounds), offset in zip(mine, layout.offsets, strict=True):
            self._offsets[number] = offset, _nbytes(self._entries[number], bounds)

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
                write_whole(self._fd, piece[: nbytes - at], offset + at)
                at += len(piece)
        if at != nbytes:
            name = self._entries[number].name
            raise FileError(file, f"expected {nbytes} bytes of its part, got {at}", tensor=name)
        del self._offsets[number]

    def finish(self) -> None:
        """Makes this worker's file durable.

        Raises:
            FileError: The disk failed, or something was not written.
        """
        if self._layout is None:
            return
        file = self._path / file_name(self._worker)
        if self._offsets:
            name = self._entries[min(self._offsets)].name
            raise FileError(file, "its part was not written", tensor=name)
        with refused_writes(file):
            os.fsync(self._fd)
            os.fsync(self._folder_fd)

    def commit(self) -> None:
        """Makes what was written the checkpoint, when all have finished; the leader does.

        Raises:
            FileError: A file of another worker is not there as it should be, or the
                index could not be written; the previous checkpoint stays.
        """
        if self._folder is None:
            self._committed = True  # from here on the leader decides whether the files stay
            return
        files: dict[int, StoredFile] = {}
        for worker in self._parts:
            layout = self._lay_out(worker)
            self._check_file(worker, layout, self._folder.generation_fd)
            digest = hashlib.sha256(layout.head).hexdigest()
            files[worker] = StoredFile(layout.nbytes, digest)
        index = encode_index(Index(self._generation, files, tuple(self._entries)))
        # From here on the index may name these files, whatever happens.
        self._committed = True
        self._folder.swap(index)
        self._folder.close()

    def close(self) -> None:
        """Ends the save; without `commit`, what was written is removed. Idempotent."""
        if not self._committed and self._layout is not None:
            with suppress(OSError):
                os.unlink(file_name(self._worker), dir_fd=self._folder_fd)
        self._layout = None
        self._release()
        if self._folder is not None:
            if not self._committed:
                self._folder.discard()
            self._folder.close()
            self._folder = None
        elif not (self._committed or self._done):
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

    def _check_file(self, worker: int, layout: FileLayout, folder: int) -> None:
        file = self._path / file_name(worker)
        try:
            fd = os.open(file.name, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
        except FileNotFoundError:
            problem = f"worker {worker} wrote this file, and worker 0 does not see it"
            raise FileError(file, f"{problem}: {_SHARED}") from None
        with os.fdopen(fd, "rb") as written:
            size, head = os.fstat(fd).st_size, written.read(len(layout.head))
        if (size, head) != (layout.nbytes, layout.head):
            problem = f"expected {layout.nbytes} bytes that worker {worker} wrote, got {size}"
            raise FileError(file, f"{problem} or others: {_SHARED}")


def _nbytes(entry: Entry, bounds: Bounds) -> int:
    return math.prod(shape_within(bounds)) * entry.dtype.itemsize
