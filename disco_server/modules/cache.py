"""The files that clients uploaded to this node, by the SHA-256 of their content.

Every rank of every session on a node may use one folder at the same time. A file
in transfer is locked by its writer and has a temporary name until its content is
verified; then it is renamed atomically. A file in use has a shared lock, and the
least recently used one without a lock is evicted for another. Locks end with their
process, so what a killed one left behind is removed by the next.

What an owner's sessions use, or are bringing, is at most half of the cache, so that none of them
can keep all others from bringing theirs. It is counted by files without content, one for each
owner and file, which are locked in the same way.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import secrets
import stat
import tempfile
import weakref
from collections.abc import Generator, Iterator
from dataclasses import dataclass
from pathlib import Path

from disco_server.modules.base import FileRefused

__all__ = ["Incoming", "ModuleCache"]

_PART = ".incoming-"
_OWNED = ".owner-"


@dataclass(frozen=True, slots=True)
class _Claim:
    """A file that is counted as in use by an owner.

    Attributes:
        fd: Holds the lock by which it is counted.
        path: The file without content that is locked.
    """

    fd: int
    path: Path

    def release(self) -> None:
        """Counts it no longer, unless another process uses it."""
        os.close(self.fd)
        _remove_unlocked(self.path)


@dataclass(frozen=True, slots=True)
class _Pin:
    """A file of the cache that this process uses.

    Attributes:
        fd: Holds the lock that keeps it.
        claim: Counts it for the owner.
    """

    fd: int
    claim: _Claim

    def release(self) -> None:
        """Uses it no longer."""
        os.close(self.fd)
        self.claim.release()


_pins: dict[Path, _Pin] = {}
"""The files that this process uses, until it ends."""


class Incoming:
    """A file in transfer; an unfinished one leaves nothing behind."""

    def __init__(
        self,
        cache: ModuleCache,
        digest: str,
        suffix: str,
        size: int,
        fd: int,
        part: Path,
        claim: _Claim,
    ) -> None:
        self._cache = cache
        self._digest = digest
        self._suffix = suffix
        self._size = size
        self._fd = fd
        self._part = part
        self._claim = claim
        self._hash = hashlib.sha256()
        self._at = 0
        self._discard = weakref.finalize(self, _discard, fd, part, claim)

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
        final = self._cache.keep(self._digest, self._suffix, self._fd, self._part, self._claim)
        self._discard.detach()
        return final


class ModuleCache:
    """One node's folder of files.

    Args:
        folder: Where it is; made where it is missing, and closed to other users.
        limit: How many bytes it may hold.
        owner: Who uses what this process uses of it.
    """

    def __init__(self, folder: Path, limit: int, owner: str = "") -> None:
        self._folder = folder
        self._limit = limit
        self._owned = f"{_OWNED}{hashlib.sha256(owner.encode()).hexdigest()[:16]}-"

    def find(self, digest: str, suffix: str) -> Path | None:
        """Returns a file whose content was just verified, or None.

        The file stays while this process lives. One that was damaged is removed.

        Raises:
            FileRefused: The owner uses half of the cache already.
        """
        path = self._folder / f"{digest}{suffix}"
        if path in _pins and path.exists():
            return path
        try:
            size = path.lstat().st_size
        except OSError:
            return None
        with self._locked():
            claim = self._claim(path.name, size)
        if self._take(path, digest, claim):
            return path
        claim.release()
        return None

    def _take(self, path: Path, digest: str, claim: _Claim) -> bool:
        """Uses a file from now on, if it is there and has its content; whether it is so."""
        try:
            fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except OSError:
            return False
        fcntl.flock(fd, fcntl.LOCK_SH)
        with os.fdopen(os.dup(fd), "rb") as stream:
            good = hashlib.file_digest(stream, "sha256").hexdigest() == digest
        if not good or not os.fstat(fd).st_nlink:
            os.close(fd)
            if not good:
                path.unlink(missing_ok=True)
            return False
        os.utime(fd)
        _pin(path, _Pin(fd, claim))
        return True

    def begin(self, digest: str, suffix: str, size: int) -> Incoming:
        """Makes room for a file and begins to write it.

        Raises:
            FileRefused: It is larger than the cache, or what is in use leaves no
                room, or the owner would use more than half of it, or the folder is not this
                user's.
        """
        self._open_folder()
        with self._locked():
            # A name of its own, because one that is brought twice is there twice meanwhile.
            claim = self._claim(secrets.token_hex(8), size)
            try:
                self._make_room(size)
                fd, name = tempfile.mkstemp(prefix=_PART, dir=self._folder)
            except OSError:
                claim.release()
                raise
            fcntl.flock(fd, fcntl.LOCK_EX)
            # Counted in full from now on.
            os.truncate(fd, size)
        return Incoming(self, digest, suffix, size, fd, Path(name), claim)

    def keep(self, digest: str, suffix: str, fd: int, part: Path, claim: _Claim) -> Path:
        """Renames a file, unless another session was faster; the cache owns the arguments now."""
        final = self._folder / f"{digest}{suffix}"
        with self._locked():
            if final in _pins and final.exists():
                _discard(fd, part, claim)
                return final
            size = os.fstat(fd).st_size
            claim.release()
            claim = self._claim(final.name, size)
            if self._take(final, digest, claim):
                _discard(fd, part)
                return final
            # From the writer's lock to a user's lock, which keeps it from being evicted.
            fcntl.flock(fd, fcntl.LOCK_SH)
            part.replace(final)
        _pin(final, _Pin(fd, claim))
        return final

    def _claim(self, name: str, size: int) -> _Claim:
        """Counts a file as used by the owner; the folder is locked.

        Raises:
            FileRefused: The owner would use more than half of the cache.
        """
        path = self._folder / f"{self._owned}{size}-{name}"
        most = self._limit // 2
        if size > most:
            msg = (
                f"expected a file of at most {most} bytes, half of the cache, got one of {size};"
                " start disco-worker with a larger --module-cache-mib"
            )
            raise FileRefused(msg)
        used = sum(nbytes for other, nbytes in self._claimed() if other != path)
        if used + size > most:
            msg = (
                f"no room for {size} bytes in the {most} of the cache that an owner's sessions may"
                f" use at a time, half of it: yours use {used}; end some of them, or start"
                " disco-worker with a larger --module-cache-mib"
            )
            raise FileRefused(msg)
        while True:
            fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
            fcntl.flock(fd, fcntl.LOCK_SH)
            if os.fstat(fd).st_nlink:
                return _Claim(fd, path)
            os.close(fd)  # whoever used it last has just removed it

    def _claimed(self) -> Iterator[tuple[Path, int]]:
        """What the owner's sessions use, and how many bytes each has."""
        for path in list(self._folder.iterdir()):
            if path.name.startswith(self._owned) and not _remove_unlocked(path):
                yield path, int(path.name.split("-")[2])

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
        files = [(path, path.lstat()) for path in self._folder.iterdir()]
        for path, _ in files:
            if path.name.startswith((_PART, _OWNED)):
                _remove_unlocked(path)
        kept = [
            (found.st_mtime_ns, found.st_size, path)
            for path, found in files
            if path.exists() and not path.name.startswith(_OWNED)
        ]
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


def _pin(path: Path, pin: _Pin) -> None:
    before = _pins.pop(path, None)
    if before is not None:
        before.release()
    _pins[path] = pin


def _discard(fd: int, part: Path, claim: _Claim | None = None) -> None:
    part.unlink(missing_ok=True)
    os.close(fd)
    if claim is not None:
        claim.release()
