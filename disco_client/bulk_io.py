"""Bulk reading and writing by the workers: progress, and a bound on what is in flight."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Self, cast

from disco_client.errors import ConfigError, RemoteError
from disco_client.notebook import WorkTable

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from disco_client.core import SessionCore
    from disco_client.notebook import TrackedWork

__all__ = ["UnderWay", "batches", "progress_bar", "whole_path"]


_BATCH_BYTES = 32 << 20
_BATCH_TENSORS = 256


def batches(sizes: Sequence[int]) -> Iterator[range]:
    """Cuts a sequence of tensors into commands, bounded by bytes on a worker and by number.

    Args:
        sizes: The bytes of each tensor on a worker.
    """
    first = held = 0
    for number, nbytes in enumerate(sizes):
        if number > first and (held + nbytes > _BATCH_BYTES or number - first == _BATCH_TENSORS):
            yield range(first, number)
            first, held = number, 0
        held += nbytes
    if first < len(sizes):
        yield range(first, len(sizes))


_AHEAD = 2
"""How many further commands the workers have while one is awaited."""


class UnderWay:
    """Work that was requested and is not finished; leaving it waits for all of it.

    A few commands stay ahead of the one that is awaited, so that no worker is
    ever idle, and a failure is found before much more has been requested.
    """

    def __init__(self, core: SessionCore, advance: Callable[[int], object]) -> None:
        self._core = core
        self._advance = advance
        self._marks: deque[tuple[int, int]] = deque()

    def __enter__(self) -> Self:
        return self

    def add(self, nbytes: int) -> None:
        """Counts what was issued before as so many bytes; waits if much is in flight."""
        self._marks.append((self._core.mark(), nbytes))
        if len(self._marks) > _AHEAD:
            self._finish_one()

    def _finish_one(self) -> None:
        mark, nbytes = self._marks.popleft()
        self._core.await_mark(mark)
        self._advance(nbytes)

    def __exit__(self, kind: type[BaseException] | None, value: object, trace: object) -> None:
        if kind is not None and not issubclass(kind, RemoteError):
            return
        while self._marks:
            # Failures for the same reason are not raised by the program's next sync.
            with suppress(RemoteError) if kind is not None else nullcontext():
                self._finish_one()


def progress_bar(
    core: SessionCore, what: str, path: str, nbytes: int, shown: bool | None = None
) -> AbstractContextManager[TrackedWork]:
    """Counts so many bytes for `Session.progress` and for a bar.

    Args:
        core: The session.
        what: What it does, as ``load``.
        path: Where; the last part of it names the bar. May be empty.
        nbytes: How many bytes.
        shown: Whether there is a bar; None shows it on a terminal and in a notebook.
    """
    name = path.rstrip("/").rpartition("/")[2]
    return core.part(WorkTable).track(what, name, nbytes, shown)


def whole_path(path: object) -> str:
    """The path as workers can use it; the daemons' own folders mean nothing to a program.

    A URL, such as ``s3://bucket/name``, is left to the workers as it is.

    Raises:
        ConfigError: It is none.
    """
    known = isinstance(path, (str, os.PathLike))
    text = os.fspath(cast("str | os.PathLike[str]", path)) if known else ""
    if not isinstance(text, str) or not text:
        msg = f"expected the path of a file or folder, got {path!r}"
        raise ConfigError(msg)
    if text.startswith(("/", "~")) or "://" in text:
        return text
    return str(Path(text).absolute())
