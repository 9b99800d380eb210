"""Folders in which checkpoints are saved: on this worker's disk, and in stores."""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import stat
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path

from disco_client.clock import monotonic
from disco_server.storage.stores import ObjectFolder, ObjectPath, ObjectWriter, list_objects

__all__ = [
    "PART",
    "FileBytes",
    "FileWriter",
    "Folder",
    "LocalFolder",
    "Where",
    "Writer",
    "list_names",
    "lock_descriptor",
    "make_folders",
    "open_folder",
    "sync_folder",
    "write_whole",
]

Where = Path | ObjectPath
"""Where a file or folder is."""


PART = ".part"
"""What follows the name of a file until it is finished."""

_MOST_AT_ONCE = 1 << 30
"""Linux reads at most 2 GiB in one call."""

_LOCK_POLL_S = 0.05
_REMOVALS = 16
"""How often a folder is removed in which a worker may still give a file its name, each its own."""
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_NEW = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_OLD = os.O_NOFOLLOW | os.O_CLOEXEC
_NO_LINKS = (errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS)


class FileBytes:
    """One open file, of which ranges are read.

    Args:
        fd: Its descriptor, which is this one's from now on.

    Attributes:
        size: Its bytes when it was opened.
        is_file: Whether it is a regular file.
    """

    def __init__(self, fd: int) -> None:
        status = os.fstat(fd)
        self.size = status.st_size
        self.is_file = stat.S_ISREG(status.st_mode)
        self._fd = fd

    def read_pieces(self, pieces: Iterable[tuple[memoryview, int]]) -> Iterator[int]:
        """Fills buffers from offsets; yields how many bytes came.

        Raises:
            EOFError: The file ends before.
            OSError: The read failed.
        """
        for out, offset in pieces:
            at = 0
            while at < len(out):
                came = os.preadv(self._fd, [out[at : at + _MOST_AT_ONCE]], offset + at)
                if not came:
                    msg = f"expected {len(out)} bytes from offset {offset}"
                    raise EOFError(f"{msg}, the file ends after {at} of them")
                at += came
                yield came

    def close(self) -> None:
        """Closes it."""
        os.close(self._fd)


class FileWriter:
    """A new file, which has its name, and is durable, when it is finished.

    Args:
        folder: The descriptor of the folder, which stays open as long.
        name: Its name there.
    """

    def __init__(self, folder: int, name: str) -> None:
        self._folder = folder
        self._name, self._part = name, f"{name}{PART}"
        self._finished = False
        self._fd = os.open(self._part, _NEW, 0o666, dir_fd=folder)

    def write(self, data: memoryview, offset: int) -> None:
        """Writes bytes."""
        write_whole(self._fd, data, offset)

    def finish(self) -> None:
        """Makes the file durable, and gives it its name."""
        os.fsync(self._fd)
        os.rename(self._part, self._name, src_dir_fd=self._folder, dst_dir_fd=self._folder)
        self._finished = True
        os.fsync(self._folder)

    def close(self) -> None:
        """Closes the file; without `finish` it is removed."""
        os.close(self._fd)
        if not self._finished:
            with suppress(OSError):
                os.unlink(self._part, dir_fd=self._folder)


class LocalFolder:
    """A folder on this worker's disk, opened.

    Args:
        path: Where it really is.
        parent: The descriptor of the folder in which that path is a name.

    Raises:
        OSError: There is none, or it is a link.
    """

    def __init__(self, path: str | Path, parent: int | None = None) -> None:
        self._fd = os.open(path, _FOLDER, dir_fd=parent)
        self._locked = False

    def lock(self, wait_s: float) -> bool:
        """Keeps other savers out until it is closed; see `lock_descriptor`."""
        self._locked = lock_descriptor(self._fd, wait_s)
        return self._locked

    def fileno(self) -> int:
        """Its descriptor."""
        return self._fd

    def room(self) -> int | None:
        """How many bytes may still be written here; None where the system does not report it."""
        status = os.fstatvfs(self._fd)
        return status.f_bavail * status.f_frsize if status.f_blocks else None

    def names(self) -> list[str]:
        """What is in it."""
        return os.listdir(self._fd)  # noqa: PTH208  (of a descriptor)

    def open_bytes(self, name: str) -> FileBytes:
        """A file of it that is no link, to be read."""
        return FileBytes(os.open(name, os.O_RDONLY | _OLD, dir_fd=self._fd))

    def make(self, name: str) -> LocalFolder:
        """A new folder in it."""
        os.mkdir(name, dir_fd=self._fd)
        os.fsync(self._fd)
        return LocalFolder(name, self._fd)

    def create(self, name: str, _nbytes: int) -> FileWriter:
        """A new file in it."""
        return FileWriter(self._fd, name)

    def claim(self, name: str) -> None:
        """Makes an empty file."""
        os.close(os.open(name, os.O_WRONLY | os.O_CREAT | _OLD, 0o666, dir_fd=self._fd))

    def put_new(self, name: str, content: bytes, claim: str) -> bool:
        """Makes a file, durably and whole, where there is none of that name.

        Args:
            name: Its name.
            content: Its bytes.
            claim: An empty file in this folder, which is used up.

        Returns:
            Whether there was none of that name.
        """
        fd = os.open(claim, os.O_WRONLY | _OLD, dir_fd=self._fd)
        try:
            write_whole(fd, memoryview(content), 0)
            os.fsync(fd)
        finally:
            os.close(fd)
        try:
            os.link(claim, name, src_dir_fd=self._fd, dst_dir_fd=self._fd, follow_symlinks=False)
        except FileExistsError:
            return False
        except OSError as error:
            if error.errno not in _NO_LINKS:
                raise
            if not self._locked:
                problem = "the file system has neither hard links nor locks, and a save needs one"
                raise OSError(error.errno, problem) from None
            if name in self.names():
                return False
            os.rename(claim, name, src_dir_fd=self._fd, dst_dir_fd=self._fd)
        os.fsync(self._fd)
        return True

    def remove(self, name: str) -> None:
        """Removes a file, or a folder with all that is in it, as far as possible."""
        try:
            os.unlink(name, dir_fd=self._fd)
        except FileNotFoundError:
            pass
        except OSError:  # a folder
            with suppress(FileNotFoundError):
                for _ in range(_REMOVALS):
                    shutil.rmtree(name, ignore_errors=True, dir_fd=self._fd)
                    os.stat(name, dir_fd=self._fd, follow_symlinks=False)

    def close(self) -> None:
        """Closes and unlocks it."""
        os.close(self._fd)


Folder = LocalFolder | ObjectFolder
Writer = FileWriter | ObjectWriter


def open_folder(path: Where, *, make: bool = False) -> Folder:
    """Opens a folder for a save.

    Args:
        path: Where it really is.
        make: Whether it is made where it is missing.

    Raises:
        OSError: There is none, or it cannot be made.
    """
    if isinstance(path, ObjectPath):
        return ObjectFolder(path)
    if make:
        make_folders(path)
    return LocalFolder(path)


def lock_descriptor(fd: int, wait_s: float) -> bool:
    """Locks a file or folder until it is closed; False where the file system cannot.

    Args:
        fd: Its descriptor.
        wait_s: How long to wait, in seconds.

    Raises:
        BlockingIOError: Another saver had it for so long.
    """
    deadline = monotonic() + wait_s
    while True:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if monotonic() >= deadline:
                problem = "another session is saving here at this moment"
                raise BlockingIOError(errno.EAGAIN, problem) from None
            time.sleep(_LOCK_POLL_S)
        except OSError as error:
            if error.errno not in (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP):
                raise
            return False
        else:
            return True


def list_names(path: Where) -> list[str]:
    """What is in a folder.

    Raises:
        OSError: There is none, or it cannot be read.
    """
    return list_objects(path) if isinstance(path, ObjectPath) else os.listdir(path)  # noqa: PTH208


def make_folders(path: Path) -> None:
    """Makes a folder durably, with those above it, where they are missing."""
    missing: list[Path] = []
    at = path
    while not at.exists():
        missing.append(at)
        at = at.parent
    for folder in reversed(missing):
        folder.mkdir(exist_ok=True)
        sync_folder(folder.parent)


def sync_folder(path: Path) -> None:
    """Makes the names in a folder durable."""
    fd = os.open(path, _FOLDER)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def write_whole(fd: int, data: memoryview, offset: int) -> None:
    """Writes all of some bytes from an offset."""
    at = 0
    while at < len(data):
        at += os.pwrite(fd, data[at:], offset + at)
