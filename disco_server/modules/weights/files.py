"""Opening data files that the allow-list covers, and reading bytes of them."""

from __future__ import annotations

import os
import stat
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from disco_server.config import file_allowed
from disco_server.modules.weights.errors import FileError, FileNotAllowed

__all__ = ["DataFile", "absolute_path", "check_allowed", "reason"]

_MOST_AT_ONCE = 1 << 30
"""Linux reads at most 2 GiB in one call."""


def check_allowed(path: Path, allowed: Sequence[str], *, write: bool = False) -> None:
    """Refuses a file or folder that sessions may not read, or not write.

    Args:
        path: Where it is.
        allowed: The folders in which that is allowed (see `file_allowed`).
        write: Whether it is to be written.

    Raises:
        FileNotAllowed: The allow-list does not cover where it really lies.
    """
    if not file_allowed(path, allowed):
        verb, flag, folder = (
            ("save in", "--allow-save", path) if write else ("read", "--allow-read", path.parent)
        )
        msg = (
            f"{path} is not below a folder that sessions may {verb} "
            f"({', '.join(allowed) or 'there is none'}); start disco-worker with "
            f"{flag} {folder}"
        )
        raise FileNotAllowed(msg)


def absolute_path(path: str) -> Path:
    """Reads the path of a file or folder as clients send it.

    Raises:
        FileError: It is relative, or none.
    """
    problem = "expected an absolute path: workers have folders of their own"
    try:
        where = Path(path).expanduser()
    except RuntimeError as error:
        raise FileError(path, str(error)) from None
    if "\0" in path or not where.is_absolute():
        raise FileError(path, problem)
    return where


class DataFile:
    """One open file; a context manager.

    Attributes:
        path: Where it is.
        size: Its bytes when it was opened.
        bytes_read: How many bytes were read of it.

    Raises:
        FileNotAllowed: The allow-list does not cover it.
        FileError: It is missing, no regular file, or cannot be opened.
    """

    def __init__(self, path: Path, allowed: Sequence[str]) -> None:
        check_allowed(path, allowed)
        self.path = path
        self.bytes_read = 0
        try:
            # What was checked is opened: the last part is no link any more.
            # Opening a pipe would wait for its writer.
            flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOFOLLOW
            self._fd = os.open(os.path.realpath(path), flags)
        except FileNotFoundError:
            raise FileError(path, "there is no such file here") from None
        except (OSError, ValueError) as error:
            raise FileError(path, f"cannot be opened: {reason(error)}") from None
        status = os.fstat(self._fd)
        self.size = status.st_size
        if not _still_allowed(self._fd, allowed):
            os.close(self._fd)
            raise FileError(path, "a folder on its way was replaced while it was opened")
        if not stat.S_ISREG(status.st_mode):
            os.close(self._fd)
            raise FileError(path, "expected a file, this is something else")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        os.close(self._fd)

    def read_into(self, out: memoryview, offset: int) -> None:
        """Fills a buffer of bytes from an offset.

        Raises:
            FileError: The file ends before, or the disk does not deliver.
        """
        at = 0
        while at < len(out):
            try:
                came = os.preadv(self._fd, [out[at : at + _MOST_AT_ONCE]], offset + at)
            except OSError as error:
                raise FileError(self.path, f"cannot be read: {reason(error)}") from None
            if not came:
                expected = f"expected {len(out)} bytes from offset {offset}"
                raise FileError(self.path, f"{expected}, the file ends after {at} of them")
            at += came
            self.bytes_read += came

    def read(self, count: int, offset: int = 0) -> bytes:
        """Reads a few bytes."""
        out = bytearray(count)
        self.read_into(memoryview(out), offset)
        return bytes(out)


def _still_allowed(fd: int, allowed: Sequence[str]) -> bool:
    """Whether what was opened lies where that is allowed, as far as the system tells.

    A folder on its way may have become a link after the path was looked at.
    """
    try:
        where = os.readlink(f"/proc/self/fd/{fd}")  # noqa: PTH115  (as text)
    except OSError:
        return True
    return file_allowed(where, allowed) or where.endswith(" (deleted)")


def reason(error: Exception) -> str:
    """What the system says went wrong, for a message."""
    return (error.strerror if isinstance(error, OSError) else None) or str(error)
