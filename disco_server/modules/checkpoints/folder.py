"""The folder of a checkpoint, as the worker sees it that leads a save.

A save makes the folder of a new generation beside the one in use, fills it, and then
puts its index in the place of the old one by a single rename. Until that moment the
old checkpoint is the checkpoint, from then on the new one. What a save that was cut
off left behind, no index names; the next save removes it.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import shutil
import time
import weakref
from collections.abc import Generator, Sequence
from contextlib import ExitStack
from pathlib import Path

from disco_server.modules.checkpoints.index import GENERATION, INDEX, MAX_INDEX, decode_index
from disco_server.modules.weights.errors import FileError
from disco_server.modules.weights.files import check_allowed, reason

__all__ = [
    "CheckpointFolder",
    "current_generation",
    "open_folder",
    "refused_writes",
    "sync_folder",
    "write_whole",
]

_LOCK_WAIT_S = 30.0
"""For so long a save waits for another one: a controller that hears no more of a client
ends its workers after ten seconds, and until then they are saving."""

_LOCK_POLL_S = 0.05
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_NEW_FILE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_NEW_INDEX = "index.json"


class CheckpointFolder:
    """A folder with room for a new generation, which nobody else writes meanwhile.

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
        """How many bytes may still be written here; None where the system does not say."""
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
            fd = os.open(_NEW_INDEX, _NEW_FILE, 0o666, dir_fd=self.generation_fd)
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
        """Lets others save here; idempotent."""
        self._close()

    def _current(self) -> str | None:
        """The generation in use.

        Raises:
            FileError: There is an index that cannot be read, so that nobody knows
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
    """The generation that is the checkpoint at a path; None where none can be told."""
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
    """Says of what the system refuses which file it is about."""
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
    deadline = time.monotonic() + wait_s
    while True:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > deadline:
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
