"""Folders of sessions on one node: where their ranks work, and what goes with them.

All of them are in one folder of the daemon, which is locked as long as the daemon lives.
What a killed daemon left behind, nobody has locked; the next one of its user removes it.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
from pathlib import Path

from disco_server.limits import Account

__all__ = ["WorkFolders"]

_PREFIX = "disco-work-"
_ENTER = 0o711
"""Others may pass through, because ranks may be another user's, and see no names."""


class WorkFolders:
    """Makes folders, and removes them.

    Args:
        parent: Where; None for the system's folder of temporary files.
        account: Whom the folders are for, if not this process's user.
    """

    def __init__(self, parent: Path | None = None, account: Account | None = None) -> None:
        self._parent = parent
        self._account = account
        self._root: Path | None = None
        self._lock = -1

    def make(self, session: int, worker: int) -> str:
        """Makes the folder of a rank.

        Raises:
            OSError: That is not possible.
        """
        folder = self._of(session)
        folder.mkdir(exist_ok=True)
        mine = folder / f"worker-{worker}"
        mine.mkdir(mode=0o700)
        if self._account is not None:
            folder.chmod(_ENTER)
            os.chown(mine, self._account.uid, self._account.gid)
        return str(mine)

    def remove(self, session: int) -> None:
        """Removes all that the ranks of a session left in theirs; they have ended."""
        if self._root is not None:
            shutil.rmtree(self._of(session), ignore_errors=True)

    def close(self) -> None:
        """Removes everything; idempotent."""
        root, self._root = self._root, None
        if root is not None:
            shutil.rmtree(root, ignore_errors=True)
            os.close(self._lock)

    def _of(self, session: int) -> Path:
        if self._root is None:
            parent = Path(tempfile.gettempdir()) if self._parent is None else self._parent
            parent.mkdir(parents=True, exist_ok=True)
            _sweep(parent)
            self._root, self._lock = _made(parent)
            if self._account is not None:
                self._root.chmod(_ENTER)
        return self._root / f"session-{session:016x}"


def _made(parent: Path) -> tuple[Path, int]:
    """Makes a folder of its own name and locks it.

    Another daemon that sweeps may come in between, and remove it; then this makes another.
    """
    while True:
        root = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=parent))
        try:
            lock = _locked(root)
        except (BlockingIOError, FileNotFoundError):
            continue
        if os.fstat(lock).st_nlink:
            return root, lock
        os.close(lock)


def _locked(folder: Path) -> int:
    """Opens a folder and locks it; the lock ends with the process.

    Raises:
        BlockingIOError: Somebody else has locked it.
    """
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(fd)
        raise
    return fd


def _sweep(parent: Path) -> None:
    """Removes the folders of daemons that were killed."""
    for folder in parent.glob(f"{_PREFIX}*"):
        with contextlib.suppress(OSError):
            if folder.lstat().st_uid == os.geteuid():
                fd = _locked(folder)
                shutil.rmtree(folder, ignore_errors=True)
                os.close(fd)
