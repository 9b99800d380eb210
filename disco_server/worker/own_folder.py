"""A folder that belongs to one living daemon, which keeps it locked.

What a killed daemon left behind, nobody has locked; the next one of its user removes it.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
from pathlib import Path

__all__ = ["OwnFolder"]


class OwnFolder:
    """Makes a folder that only this user enters, and removes those of killed daemons.

    Args:
        prefix: How the names of all such folders begin.
        parent: Where; None for the system's folder of temporary files.

    Attributes:
        path: The folder.

    Raises:
        OSError: That is not possible.
    """

    def __init__(self, prefix: str, parent: Path | None = None) -> None:
        parent = Path(tempfile.gettempdir()) if parent is None else parent
        parent.mkdir(parents=True, exist_ok=True)
        _sweep(parent, prefix)
        self.path, self._lock = _made(parent, prefix)

    def remove(self) -> None:
        """Removes it with all that is in it; once."""
        shutil.rmtree(self.path, ignore_errors=True)
        os.close(self._lock)


def _made(parent: Path, prefix: str) -> tuple[Path, int]:
    """Makes a folder of its own name and locks it.

    Another daemon that sweeps may come in between, and remove it; then this makes another.
    """
    while True:
        root = Path(tempfile.mkdtemp(prefix=prefix, dir=parent))
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


def _sweep(parent: Path, prefix: str) -> None:
    """Removes the folders of daemons that were killed."""
    for folder in parent.glob(f"{prefix}*"):
        with contextlib.suppress(OSError):
            if folder.lstat().st_uid == os.geteuid():
                fd = _locked(folder)
                shutil.rmtree(folder, ignore_errors=True)
                os.close(fd)
