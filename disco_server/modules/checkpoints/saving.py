"""One worker's part in saving a checkpoint.

The steps, of which each is done on all workers before the next begins on any:

1. The leader makes the folder of a new generation (`Save`).
2. All learn what is to be saved (`add`), make their files (`start`), write their parts
   (`write`), and make them durable (`finish`).
3. The leader looks whether every file is there, and puts the index in its place
   (`commit`).

`close` at any time before the last step leaves the checkpoint as it was.
"""

from __future__ import annotations

import hashlib
import math
import os
import weakref
from collections.abc import Iterable, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path

from disco_client.wire.layout import Bounds, shape_within
from disco_server.modules.checkpoints.folder import (
    CheckpointFolder,
    current_generation,
    open_folder,
    refused_writes,
    write_whole,
)
from disco_server.modules.checkpoints.index import (
    Entry,
    Index,
    StoredFile,
    encode_index,
    file_name,
)
from disco_server.modules.weights.errors import FileError
from disco_server.modules.weights.files import absolute_path, check_allowed
from disco_server.modules.weights.safetensors_writing import FileLayout, lay_out

__all__ = ["Save"]

_NEW_FILE = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
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
        # A session that does its commands again saves what it has saved.
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
        """Learns of tensors that are to be saved."""
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
            self._fd = os.open(file.name, _NEW_FILE, 0o666, dir_fd=folder)
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
            pieces: Its bytes in C order; each is good until the next is asked for.

        Raises:
            FileError: The disk does not take them, or they are not as many as expected.
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
            self._committed = True  # from here on the leader decides what becomes of the files
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
