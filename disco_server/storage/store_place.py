"""The place of a store of arrays, and the new store that is made beside it until it is complete.

The new store has a name of its own, ``.NAME.TOKEN``, and is locked while it is made. So the next
save at the place can tell a store that is being made from one that a killed process has left.
"""

from __future__ import annotations

import ctypes
import errno
import os
import re
import shutil
import weakref
from contextlib import suppress
from pathlib import Path

from disco_client.clock import monotonic
from disco_server.storage.files import FileError, reason
from disco_server.storage.folders import LocalFolder, lock_descriptor, make_folders, sync_folder

__all__ = ["StorePlace"]

_WAIT_S = 30.0
"""For so long a save waits for another one: a controller that has lost a client ends its workers
after ten seconds, and until then they are saving."""

_AT_FDCWD = -100
_RENAME_EXCHANGE = 2
_NO_EXCHANGE = (errno.ENOSYS, errno.EINVAL, errno.EOPNOTSUPP)


class StorePlace:
    """Where a store is to be, for the worker that makes it, and where others write it.

    Args:
        path: The place. The folder around it must be allowed, too.
        token: 16 digits that name the new store.

    Attributes:
        path: The place.
        beside: The new store until it is complete.
    """

    def __init__(self, path: Path, token: str) -> None:
        self.path = path
        self.beside = path.with_name(f".{path.name}.{token}")
        self._remove: weakref.finalize[..., StorePlace] | None = None

    def make(self, *, folder: bool, wait_s: float = _WAIT_S) -> None:
        """Makes an empty store, and removes what killed saves have left here.

        Args:
            folder: Whether it is a folder; else it is a file.
            wait_s: How long to wait where another save is under way.

        Raises:
            FileError: Another save is under way.
            OSError: It cannot be made.
        """
        deadline = monotonic() + wait_s
        make_folders(self.path.parent)
        while (rival := self._try_to_make(folder, deadline)) is not None:
            self._lock(rival, deadline)
            os.close(rival)

    def _try_to_make(self, folder: bool, deadline: float) -> int | None:
        """Makes the store, or returns the descriptor of one that is being made."""
        parent = LocalFolder(self.path.parent)
        try:
            # Held for a moment: no store is seen before it is locked.
            self._lock(parent.fileno(), deadline)
            rival = self._sweep()
            if rival is not None:
                return rival
            if folder:
                self.beside.mkdir()
            else:
                self.beside.touch(exist_ok=False)
            held = _open(self.beside)
            self._remove = weakref.finalize(self, _remove_locked, self.beside, held)
            lock_descriptor(held, 0)
        finally:
            parent.close()
        return None

    def _lock(self, fd: int, deadline: float) -> None:
        try:
            lock_descriptor(fd, deadline - monotonic())
        except BlockingIOError as error:
            raise FileError(self.path, reason(error)) from None

    def _sweep(self) -> int | None:
        """Removes stores that were not completed; or the descriptor of one that is being made."""
        own = re.compile(rf"\.{re.escape(self.path.name)}\.[0-9a-f]{{16}}(\.former)?")
        left = [each for each in self.path.parent.iterdir() if own.fullmatch(each.name)]
        abandoned: list[Path] = []
        for each in left:
            try:
                fd = _open(each)
            except OSError:  # a link, which no save makes
                continue
            try:
                if lock_descriptor(fd, 0):
                    abandoned.append(each)
            except BlockingIOError:
                return fd
            os.close(fd)
        for each in abandoned:
            if each.suffix == ".former" and not os.path.lexists(self.path):
                each.rename(self.path)
            else:
                _remove(each)
        return None

    def put(self) -> None:
        """Moves the new store to its place, and removes the one that was there.

        The place has the one or the other at any time where the file system can exchange two
        names. Where it cannot, as NFS, a folder's place is empty for a moment; if the process
        ends then, the next save puts the former store back.

        Raises:
            OSError: That failed; what was there before stays.
        """
        if not self.path.is_dir():
            self.beside.replace(self.path)
        elif not _exchange(self.beside, self.path):
            former = self.beside.with_name(f"{self.beside.name}.former")
            self.path.rename(former)
            try:
                self.beside.rename(self.path)
            except OSError:
                former.rename(self.path)
                raise
            _remove(former)
        sync_folder(self.path.parent)
        self.close()

    def close(self) -> None:
        """Removes what lies beside the place. Idempotent."""
        if self._remove is not None:
            self._remove()


def _open(path: Path) -> int:
    return os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)


def _exchange(one: Path, other: Path) -> bool:
    """Exchanges two names in one step; False where that cannot be done."""
    rename = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)  # not in musl
    if rename is None:
        return False
    if rename(_AT_FDCWD, bytes(one), _AT_FDCWD, bytes(other), _RENAME_EXCHANGE) == 0:
        return True
    code = ctypes.get_errno()
    if code in _NO_EXCHANGE:
        return False
    raise OSError(code, os.strerror(code), str(other))


def _remove_locked(path: Path, fd: int) -> None:
    _remove(path)
    os.close(fd)


def _remove(path: Path) -> None:
    shutil.rmtree(path, ignore_errors=True)
    with suppress(OSError):
        path.unlink()
