"""Opens data files and objects that the allow-list covers, and reads bytes of them."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from os import PathLike, fspath
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, TypeGuard, cast

from disco_client.errors import ConfigError
from disco_client.wire.values import dtype_from_name
from disco_server.settings import file_allowed, is_object, normal_place
from disco_server.storage.folders import FileBytes, Where
from disco_server.storage.stores import ObjectBytes, ObjectPath

if TYPE_CHECKING:
    from types import TracebackType

    import numpy as np

__all__ = [
    "DataFile",
    "FileError",
    "FileNotAllowed",
    "Record",
    "absolute_path",
    "check_allowed",
    "check_layout",
    "find_dtype",
    "first_twice",
    "is_count",
    "parse_json",
    "read_shape",
    "reason",
]


# What is refused about files.


class FileError(ValueError):
    """A file is missing, cannot be read, or is not what it should be.

    Args:
        path: The file.
        problem: What is wrong.
        tensor: The tensor that it is wrong with, if it is one.
    """

    def __init__(self, path: str | PathLike[str], problem: str, *, tensor: str = "") -> None:
        about = f", tensor {tensor!r}" if tensor else ""
        super().__init__(f"{fspath(path)}{about}: {problem}")


class FileNotAllowed(PermissionError):
    """The allow-list does not cover a file."""


def check_allowed(path: Where, allowed: Sequence[str], *, write: bool = False) -> None:
    """Refuses a file or folder that sessions may not read, or not write.

    Args:
        path: Where it is.
        allowed: The folders and URLs in which that is allowed (see `file_allowed`).
        write: Whether it is to be written.

    Raises:
        FileNotAllowed: The allow-list does not cover its real path.
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


def absolute_path(path: str) -> Where:
    """Reads the path of a file or folder as clients send it, which may begin with ``~/``.

    It may be a URL as well, such as ``s3://bucket/name`` or ``file:///name``.

    Raises:
        FileError: It is relative, or none.
    """
    problem = "expected an absolute path: workers have folders of their own"
    try:
        path = normal_place(path)
    except ValueError as error:
        # What does not belong into a URL may be a secret.
        raise FileError(f"{path.partition('://')[0]}://", str(error)) from None
    if is_object(path):
        return ObjectPath(path)
    # ~USER would tell, before anything is checked, whether there is such a user and where he lives.
    own = path == "~" or path.startswith("~/")
    try:
        where = Path(path).expanduser() if own else Path(path)
    except RuntimeError as error:
        raise FileError(path, str(error)) from None
    if "\0" in path or not where.is_absolute():
        raise FileError(path, problem)
    return where


class DataFile:
    """One open file or object; a context manager.

    Attributes:
        path: Where it is.
        size: Its bytes when it was opened.
        bytes_read: How many bytes were read of it.

    Raises:
        FileNotAllowed: The allow-list does not cover it.
        FileError: It is missing, no regular file, or cannot be opened.
    """

    def __init__(self, path: Where, allowed: Sequence[str]) -> None:
        check_allowed(path, allowed)
        self.path = path
        self.bytes_read = 0
        try:
            if isinstance(path, ObjectPath):
                self._content: ObjectBytes | FileBytes = ObjectBytes(path)
            else:
                self._content = _open_file(path, allowed)
        except FileError:
            raise
        except FileNotFoundError:
            raise FileError(path, "there is no such file here") from None
        except (OSError, ValueError) as error:
            raise FileError(path, f"cannot be opened: {reason(error)}") from None
        self.size = self._content.size

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._content.close()

    @property
    def is_remote(self) -> bool:
        """Whether each read is a request to a server, which takes milliseconds."""
        return isinstance(self._content, ObjectBytes)

    def read_into(self, out: memoryview, offset: int) -> None:
        """Fills a buffer of bytes from an offset.

        Raises:
            FileError: The file ends before, or the read failed.
        """
        self.read_pieces([(out, offset)])

    def read_pieces(self, pieces: Iterable[tuple[memoryview, int]]) -> None:
        """Fills several buffers, each from its offset.

        Raises:
            FileError: The file ends before, or a read failed.
        """
        try:
            for came in self._content.read_pieces(pieces):
                self.bytes_read += came
        except EOFError as error:
            raise FileError(self.path, str(error)) from None
        except OSError as error:
            raise FileError(self.path, f"cannot be read: {reason(error)}") from None

    def read(self, count: int, offset: int = 0) -> bytes:
        """Reads a few bytes."""
        out = bytearray(count)
        self.read_into(memoryview(out), offset)
        return bytes(out)


def _open_file(path: Path, allowed: Sequence[str]) -> FileBytes:
    """Opens what was checked: the last part is no link any more.

    Raises:
        FileError: It is no file, or what was checked was replaced.
        OSError: It cannot be opened.
    """
    # Opening a pipe would wait for its writer.
    flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOFOLLOW
    fd = os.open(os.path.realpath(path), flags)
    still = _still_allowed(fd, allowed)
    opened = FileBytes(fd)
    if still and opened.is_file:
        return opened
    opened.close()
    if not still:
        raise FileError(path, "a folder on its way was replaced while it was opened")
    raise FileError(path, "expected a file, this is something else")


def _still_allowed(fd: int, allowed: Sequence[str]) -> bool:
    """Whether what was opened lies where that is allowed, as far as the system reports it.

    A folder of the path may have become a link after the path was checked.
    """
    try:
        where = os.readlink(f"/proc/self/fd/{fd}")  # noqa: PTH115  (as text)
    except OSError:
        return True
    return file_allowed(where, allowed) or where.endswith(" (deleted)")


def reason(error: Exception) -> str:
    """The system's error, for a message."""
    return (error.strerror if isinstance(error, OSError) else None) or str(error)


# What a file says of a tensor, and whether that is consistent.


_MAX_COUNT = (1 << 63) - 1
_MAX_DIMS = 64


@dataclass(frozen=True, slots=True)
class Record:
    """One tensor in a file.

    Attributes:
        name: Its name.
        shape: Its extents.
        dtype: The name of its dtype once it is loaded; empty where it cannot be.
        stored: The name of the dtype that its bytes have in the file.
        file: Where its bytes are.
        offset: Of its first byte.
        nbytes: How many bytes it has in the file.
        block: How many numbers share how many bytes, side by side along the last axis, where
            ``stored`` is no dtype but a format of such blocks; else zeros.
        same_as: The tensor that has the bytes, where this is a second name of it; else empty.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    stored: str
    file: Where
    offset: int
    nbytes: int
    block: tuple[int, int] = (0, 0)
    same_as: str = ""

    def as_bytes(self) -> Record:
        """The same tensor with the bytes of its blocks for their numbers."""
        numbers, nbytes = self.block
        shape = (*self.shape[:-1], self.shape[-1] // numbers * nbytes)
        return replace(self, shape=shape, dtype="uint8", stored="uint8", block=(0, 0))


@lru_cache(maxsize=256)
def find_dtype(name: str) -> np.dtype[Any] | None:
    """The dtype of a name; None where there is none that an array may have."""
    try:
        dtype = dtype_from_name(name)
    except ConfigError:
        return None
    return dtype if dtype.kind in "biufcV" and dtype.itemsize else None


def is_count(value: object) -> TypeGuard[int]:
    """Whether a value is an integer that can be a size or an offset."""
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= _MAX_COUNT


def read_shape(value: object) -> tuple[int, ...] | None:
    """A shape from JSON; None where it is none, or one that no memory holds."""
    if not isinstance(value, (list, tuple)):
        return None
    dims = tuple(cast("Sequence[object]", value))
    if len(dims) > _MAX_DIMS or not all(is_count(dim) for dim in dims):
        return None
    shape = cast("tuple[int, ...]", dims)
    # Zeros must not hide what the other extents multiply to.
    return shape if math.prod(dim for dim in shape if dim) <= _MAX_COUNT else None


def check_layout(path: Where, records: Iterable[Record], first: int, size: int) -> None:
    """Checks that tensors lie inside a file, and none on another.

    Args:
        path: The file, for the error.
        records: Its tensors.
        first: The first offset at which a tensor may lie.
        size: The bytes of the file.

    Raises:
        FileError: They do not.
    """
    before, end = "", first
    for record in sorted(records, key=lambda record: (record.offset, record.nbytes)):
        stop = record.offset + record.nbytes
        if record.offset < first or stop > size:
            problem = f"expected bytes between {first} and {size}, got {record.offset} to {stop}"
            raise FileError(path, problem, tensor=record.name)
        if record.nbytes and record.offset < end:
            raise FileError(path, f"its bytes overlap those of {before!r}", tensor=record.name)
        if record.nbytes:
            before, end = record.name, stop


def first_twice(names: Iterable[str]) -> str | None:
    """The first name that was there before; None where there is none."""
    seen: set[str] = set()
    return next((name for name in names if name in seen or seen.add(name)), None)


def parse_json(path: Where | str, text: bytes | str) -> dict[str, Any]:
    """Reads a JSON object, strictly: UTF-8, and no key twice.

    Raises:
        FileError: It is none.
    """

    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) < len(pairs):
            raise FileError(path, f"the key {first_twice(k for k, _ in pairs)!r} is there twice")
        return found

    try:
        text = text.decode() if isinstance(text, bytes) else text
        content: object = json.loads(text, object_pairs_hook=once)
        # Escapes may stand for what UTF-8 cannot encode, and no name may hold.
        json.dumps(content, ensure_ascii=False).encode()
    except FileError:
        raise
    except (ValueError, RecursionError) as error:
        raise FileError(path, f"expected JSON, got: {error}") from None
    if not isinstance(content, dict):
        raise FileError(path, f"expected a JSON object, got a {type(content).__name__}")
    return cast("dict[str, Any]", content)
