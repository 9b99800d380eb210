"""Folders of sessions on one node: where their ranks work, and what goes with them.

All of them are in one folder of the daemon.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from disco_server.limits import Account
from disco_server.worker.own_folder import OwnFolder

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
        self._root: OwnFolder | None = None

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
            root.remove()

    def _of(self, session: int) -> Path:
        if self._root is None:
            self._root = OwnFolder(_PREFIX, self._parent)
            if self._account is not None:
                self._root.path.chmod(_ENTER)
        return self._root.path / f"session-{session:016x}"
