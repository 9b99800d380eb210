"""The files that clients uploaded to this node, by the SHA-256 of their content.

Every rank of every session on a node may use one folder at the same time. A file
in transfer is locked by its writer and has a temporary name until its content is
verified; then it is renamed atomically. A file in use has a shared lock, and the
least recently used one without a lock is evicted for another. Locks end with their
process, so what a killed one left behind is removed by the next.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import stat
import tempfile
import weakref
from collections.abc import Generator
from pathlib import Path

from disco_server.modules.base import FileRefused

__all__ = ["Incoming", "ModuleCache"]

_PART = ".incoming-"
_pins: dict[Path, int] = {}
"""The open files of the cache that this process uses, until it ends."""


class Incoming:
    """A file in transfer; an unfinished one leaves nothing behind."""

    def __init__(
        self, cache: ModuleCache, digest: str, suffix: str, size: int, fd: int, part: Path
    ) -> None:
        self._cache = cache
        self._digest = digest
        self._suffix = suffix
        self._size = size
        self._fd = fd
        self._part = part
        self._hash = hashlib.sha256()
        self._at = 0
        self._discard = weakref.finalize(self, _discard, fd, part)

    def append(self, data: memoryview) -> None:
        """Writes the next bytes.

        Raises:
            FileRefused: They are more than were announced.
            OSError: The disk is full or broken.
        """
        if self._at + len(data) > self._size:
            msg = f"expected a file of {self._size} bytes, got more"
            raise FileRefused(msg)
        self._hash.update(data)
        while data:
            written = os.pwrite(self._fd, data, self._at)
            self._at += written
            data = data[written:]

    def finish(self) -> Path:
        """Verifies the content and renames the file; this process may use it then.

        Raises:
            FileRefused: It is not what was announced.
        """
        got = self._hash.hexdigest()
        if (self._at, got) != (self._size, self._digest):
            self._discard()
            msg = (
                f"expected {self._size} bytes with SHA-256 {self._digest}, got {self._at} bytes "
                f"with {got}; did the file change meanwhile?"
            )
            raise FileRefused(msg)
        os.fsync(self._fd)
        final = self._cache.keep(self._digest, self._suffix, self._fd, self._part)
        self._discard.detach()
        return final


class ModuleCache:
    """One node's folder of files.

    Args:
        folder: Where it is; made where it is missing, and closed to other users.
        limit: How many bytes it may hold.
    """

    def __init__(self, folder: Path, limit: int) -> None:
        self._folder = folder
        self._limit = limit

    def find(self, digest: str, suffix: str) -> Path | None:
        """Returns a file whose content was just verified, or None.

        The file stays while this process lives. One that was damaged is removed.
        """
        path = self._folder / f"{digest}{suffix}"
        if path in _pins and path.exists():
            return path
        try:
            fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except OSError:
            return None
        fcntl.flock(fd, fcntl.LOCK_SH)
        with os.fdopen(os.dup(fd), "rb") as stream:
            good = hashlib.file_digest(stream, "sha256").hexdigest() == digest
        if not good or not os.fstat(fd).st_nlink:
            os.close(fd)
            if not good:
                path.unlink(missing_ok=True)
            return None
        os.utime(fd)
        _pin(path, fd)
        return path

    def begin(self, digest: str, suffix: str, size: int) -> Incoming:
        """Makes room for a file and begins to write it.

        Raises:
            FileRefused: It is larger than the cache, or what is in use leaves no
                room, or the folder is not this user's.
        """
        self._open_folder()
        with self._locked():
            self._make_room(size)
            fd, name = tempfile.mkstemp(prefix=_PART, dir=self._folder)
            fcntl.flock(fd, fcntl.LOCK_EX)
            # Counted in full from now on.
            os.truncate(fd, size)
        return Incoming(self, digest, suffix, size, fd, Path(name))

    def keep(self, digest: str, suffix: str, fd: int, part: Path) -> Path:
        """Renames a file, unless another session was faster; the cache owns both arguments now."""
        final = self._folder / f"{digest}{suffix}"
        with self._locked():
            if self.find(digest, suffix) is not None:
                _discard(fd, part)
                return final
            # From the writer's lock to a user's lock, which keeps it from being evicted.
            fcntl.flock(fd, fcntl.LOCK_SH)
            part.replace(final)
        _pin(final, fd)
        return final

    def _open_folder(self) -> None:
        try:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            found = self._folder.lstat()
            ours = stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid()
            if ours:
                self._folder.chmod(0o700)
        except OSError as error:
            msg = (
                f"cannot use the cache {str(self._folder)!r}: {error.strerror}; "
                "start disco-worker with another --module-cache"
            )
            raise FileRefused(msg) from None
        if not ours:
            msg = f"the cache {str(self._folder)!r} is not a folder of this user"
            raise FileRefused(msg)

    @contextlib.contextmanager
    def _locked(self) -> Generator[None]:
        fd = os.open(self._folder, os.O_RDONLY | os.O_CLOEXEC)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX)
            yield
        finally:
            os.close(fd)

    def _make_room(self, size: int) -> None:
        if size > self._limit:
            msg = (
                f"expected a file of at most {self._limit} bytes, got one of {size}; "
                "start disco-worker with a larger --module-cache-mib"
            )
            raise FileRefused(msg)
        files = [(path, path.lstat()) for path in self._folder.iterdir()]
        for path, _ in files:
            if path.name.startswith(_PART):
                _remove_unlocked(path)
        kept = [(found.st_mtime_ns, found.st_size, path) for path, found in files if path.exists()]
        excess = sum(nbytes for _, nbytes, _ in kept) + size - self._limit
        for _, nbytes, path in sorted(kept):
            if excess <= 0:
                return
            if _remove_unlocked(path):
                excess -= nbytes
        if excess > 0:
            msg = (
                f"no room for {size} bytes in the cache of {self._limit}: what it holds is in "
                "use; start disco-worker with a larger --module-cache-mib"
            )
            raise FileRefused(msg)


def _remove_unlocked(path: Path) -> bool:
    """Removes a file that no process uses; whether it did."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        path.unlink(missing_ok=True)
    except BlockingIOError:
        return False
    else:
        return True
    finally:
        os.close(fd)


def _pin(path: Path, fd: int) -> None:
    before = _pins.pop(path, None)
    if before is not None:
        os.close(before)
    _pins[path] = fd


def _discard(fd: int, part: Path) -> None:
    part.unlink(missing_ok=True)
    os.close(fd)
