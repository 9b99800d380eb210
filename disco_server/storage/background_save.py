"""A save whose parts are copied aside, and written by a thread while its worker goes on.

The steps before are those of any save; then `write` copies a part into memory, and `finish` starts
the thread. What follows needs no client: the thread writes and makes its file durable, which only
then has its name, and the leader's waits for the names of all files before it makes the index. A
worker that cannot write its file leaves a mark beside it, so that the leader gives up; whatever
ends before the index leaves the former checkpoint.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from disco_client.wire.arrays import byte_view
from disco_server.storage.checkpoint_read import file_name
from disco_server.storage.checkpoint_write import CheckpointFolder, Save
from disco_server.storage.files import FileError
from disco_server.storage.folders import PART

__all__ = ["ENDED", "BackgroundSave"]

_PIECE = 1 << 20
"""So many bytes are one call of the system. Linux lets another thread go before this one when such
a call returns, and else only every 4 ms."""

_LOOK_S, _LONGEST_LOOK_S = 0.02, 0.5
"""How often the leader looks for the files of the others."""

ENDED = ("done", "failed", "dropped", "cancelled")
"""The states in which nothing more happens."""


class _GivenUp(Exception):
    """The save is to leave nothing; no error of this worker's."""


class BackgroundSave(Save):
    """One worker's side of such a save; see `Save` for the arguments.

    Attributes:
        state: ``"begun"``, ``"writing"``, or one of `ENDED`: ``"done"`` says that this worker's
            file is durable, and the leader's, that the checkpoint is there; ``"dropped"``, that
            it could not be written as it was gone, mostly removed by the leader.
        written: How many bytes of its parts are written.
    """

    def __init__(
        self, path: str, allowed: Sequence[str], generation: str, worker: int, *, leads: bool
    ) -> None:
        super().__init__(path, allowed, generation, worker, leads=leads)
        self.state = "begun"
        self.written = 0
        self._kept: dict[int, np.ndarray[Any, np.dtype[np.uint8]]] = {}
        self._cancelled = threading.Event()
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None

    def has(self, number: int) -> bool:
        """Whether this worker writes a part of a tensor, of which it has no copy yet."""
        return super().has(number) and number not in self._kept

    def write(self, number: int, pieces: Iterable[memoryview]) -> None:
        """Copies this worker's part of a tensor aside.

        Args:
            number: Of the tensor.
            pieces: Its bytes in C order; each is valid until the next is requested.

        Raises:
            FileError: They are not as many as expected.
            MemoryError: There is no room for a copy.
        """
        _, nbytes = self._offsets[number]
        kept, at = np.empty(nbytes, np.uint8), 0
        for piece in pieces:
            taken = piece[: max(nbytes - at, 0)]
            kept[at : at + len(taken)] = np.asarray(taken)
            at += len(piece)
        self._check_came(number, at)
        self._kept[number] = kept

    def finish(self) -> None:
        """Starts the thread; changes of the tensors from here on are not saved.

        Raises:
            FileError: A part is missing.
            RuntimeError: The system starts no thread.
        """
        if self._layout is not None:
            self._check_all(self._kept)
        thread = threading.Thread(target=self._run, name="disco-save", daemon=True)
        self.state = "writing"  # before the thread, which may end at once
        thread.start()
        self._thread = thread

    def close(self) -> None:
        """Gives it up, which its thread does where there is one; what is done stays. Idempotent."""
        self._cancelled.set()
        if self._thread is None:
            super().close()

    def join(self, *, dropped: bool = False) -> None:
        """Waits for the end of the thread.

        Args:
            dropped: Whether it raises that its file was gone, as nobody else has failed.

        Raises:
            BaseException: What has ended it, each time.
        """
        if self._thread is not None:
            self._thread.join()
        if self._error is not None and (dropped or self.state == "failed"):
            raise self._error

    # In the thread ------------------------------------------------------------------------

    def _run(self) -> None:
        _give_way()
        state = "done"
        try:
            self._write_all()
        except _GivenUp:
            state = "cancelled"
        except BaseException as error:  # noqa: BLE001  (raised where it is waited for)
            self._error = error
            state = self._judge_failure()
        self._kept.clear()
        super().close()
        self.state = state  # last, as who sees that takes all for done

    def _judge_failure(self) -> str:
        """The state after an error; the leader learns of it by a mark, unless it is the first."""
        if self._cancelled.is_set():
            return "cancelled"
        if self._folder is None:
            if self._is_without_file():
                return "dropped"
            if self._layout is not None:
                with suppress(OSError):
                    self._files.claim(f"{file_name(self._worker)}{_MARK}")
        return "failed"

    def _write_all(self) -> None:
        for number in list(self._kept):
            super().write(number, self._pieces_of(number))
            del self._kept[number]
        super().finish()
        self._check_wanted()
        if self._folder is not None:
            self._await_files(self._folder)
        super().commit()

    def _pieces_of(self, number: int) -> Iterator[memoryview]:
        data = byte_view(self._kept[number])
        for at in range(0, len(data), _PIECE):
            self._check_wanted()
            piece = data[at : at + _PIECE]
            yield piece
            self.written += len(piece)

    def _check_wanted(self) -> None:
        if self._cancelled.is_set():
            raise _GivenUp

    def _await_files(self, folder: CheckpointFolder) -> None:
        """Waits until the files of all workers are there.

        Raises:
            FileError: Another session has saved here meanwhile, or the folder is gone.
            _GivenUp: A worker could not write its file, or nobody wants it any more.
        """
        wanted = {file_name(worker) for worker in self._parts}
        pause = _LOOK_S
        while not wanted <= (there := set(folder.files.names())):
            if any(map(_is_mark, there)):
                raise _GivenUp  # that worker has the error
            if folder.is_overtaken():
                return  # `commit` says so
            if self._is_removed():
                raise FileError(self._path, "it was removed while its files were written")
            if self._cancelled.wait(pause):
                raise _GivenUp
            pause = min(2 * pause, _LONGEST_LOOK_S)

    def _is_without_file(self) -> bool:
        """Whether somebody has removed this worker's file; in a store that is not known."""
        name = file_name(self._worker)
        names = (name, f"{name}{PART}")
        return isinstance(self._path, Path) and not any((self._path / n).exists() for n in names)

    def _is_removed(self) -> bool:
        """Whether the folder of the files is gone; in a store there are none."""
        return isinstance(self._path, Path) and not self._path.is_dir()


_MARK = ".failed"


def _is_mark(name: str) -> bool:
    return name.endswith(_MARK)


def _give_way() -> None:
    """Lets all other threads go before this one; signals are for the worker's.

    Linux's class for idle times, and no mere nice value: of two of the same class, the one that
    wakes waits until the other has had its slice. What this thread starts has that class, too.
    """
    signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    if sys.platform == "linux":  # elsewhere it is a property of the process
        with suppress(OSError):
            os.sched_setscheduler(threading.get_native_id(), os.SCHED_IDLE, os.sched_param(0))
