"""One rank that is a child process of its client, and its progress."""

from __future__ import annotations

import contextlib
import fcntl
import os
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Generator, Mapping, Sequence

from disco_server.ipc.framing import HOW_FAR, PROGRESS_VARIABLE, ProgressPage
from disco_server.ipc.process import RankProcess, rank_ends
from disco_server.observe.lifetime import PARENT_VARIABLE
from disco_server.observe.printed_lines import decode_lines
from disco_server.observe.stacks import MEMORY_VARIABLE

__all__ = ["RankChild"]


_HOW_FAR = memoryview(HOW_FAR)


_READ_BYTES = 64 * 1024

_UNREAD = 64
"""So many answers may be left in the socket: a rank that cannot send more would read no more."""


class RankChild(RankProcess):
    """One rank process; it dies with the thread that made this object.

    Args:
        worker: Its number.
        command: What Python is started with, but for the descriptors: the rank's socket, for
            reading and for writing.
        environ: The environment of the process.
        order: The lock of those who send to several ranks of the session.

    Attributes:
        worker: Its number.
        pidfd: Readable when the process has ended.
        waiters: Locks to free, each with the command that the rank must have executed.

    Raises:
        OSError: No process could be started.
    """

    def __init__(
        self,
        worker: int,
        command: Sequence[str],
        environ: Mapping[str, str],
        order: threading.RLock,
    ) -> None:
        self.worker = worker
        self.waiters: deque[tuple[int, threading.Lock]] = deque()
        self._progress = 0
        with rank_ends() as (ours, theirs), _progress_page() as (self._page, page):
            sock, pmi, memory, output, error = theirs
            variables = {
                "PMI_FD": pmi,
                MEMORY_VARIABLE: memory,
                PARENT_VARIABLE: os.getpid(),
            }
            if page:
                variables[PROGRESS_VARIABLE] = page[0]
            self._process = subprocess.Popen(
                [sys.executable, *command, str(sock), str(sock)],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=error,
                pass_fds=(sock, pmi, memory, *page),
                start_new_session=True,
                env={**environ, **{name: str(value) for name, value in variables.items()}},
            )
            super().__init__(self._process.pid, ours, order)
            self.pidfd = os.pidfd_open(self.pid)

    # Progress ---------------------------------------------------------------------------

    def send_asking(self, framed: bytes) -> None:
        """Sends a frame, and with it a request of the rank's progress."""
        self.sender.hold(framed)
        self.sender.send(_HOW_FAR)

    def ask(self, waiter: threading.Lock, seq: int, *, asked: bool) -> None:
        """Frees a lock when the rank has executed a command.

        Args:
            waiter: The lock.
            seq: The number of the command.
            asked: Whether the rank's progress was requested after that command.
        """
        self.waiters.append((seq, waiter))  # first: the answer may come at once
        if not asked:
            self.sender.send(_HOW_FAR)
        elif self._progress >= seq:  # it has come; who reads removes the lock with the next one
            with contextlib.suppress(RuntimeError):
                waiter.release()

    def shows(self, seq: int) -> bool:
        """Whether the rank has executed a command, and everything that it sent has been read.

        On some systems never true, nor where much is left to be read, so call `ask` as well.
        """
        page = self._page
        return (
            page is not None
            and len(self.waiters) < _UNREAD
            and not self.reader.frames
            and page.shows(seq, self.reader.heard)
        )

    def wake_waiters(self) -> None:
        """Frees the locks whose replies will not come; the session is over."""
        self.executed(1 << 64)

    def executed(self, seq: int) -> None:
        """Frees the locks of those who wait for a command up to this one; may be repeated."""
        self._progress = max(self._progress, seq)
        with contextlib.suppress(IndexError):  # the session's end has freed them
            self._free(seq)

    def _free(self, seq: int) -> None:
        while self.waiters[0][0] <= seq:
            with contextlib.suppress(RuntimeError):  # it is free
                self.waiters[0][1].release()
            self.waiters.popleft()

    # Output and exit ----------------------------------------------------------------------

    def read_output(self, is_error: bool, nbytes: int = _READ_BYTES) -> tuple[list[str], bool]:
        """Reads what was printed.

        Returns:
            The complete lines, and whether there can be more.
        """
        try:
            data = os.read(self.outputs[is_error], nbytes)
        except BlockingIOError:
            return [], True
        return self._cut(is_error, data), bool(data)

    def last_words(self, is_error: bool) -> list[str]:
        """Returns what it had printed when it ended, also a last line that had no end."""
        nbytes = fcntl.fcntl(self.outputs[is_error], fcntl.F_GETPIPE_SZ)
        lines, _ = self.read_output(is_error, nbytes)  # all of it is in the pipe
        return lines + self._cut(is_error, b"")

    def _cut(self, is_error: bool, data: bytes) -> list[str]:
        block = self.cutters[is_error].feed(data)
        return [] if block is None else decode_lines(block)

    def kill(self) -> None:
        """Ends the process and every process it started that stayed in its group."""
        if self.status is None:  # else the number may be another group's
            super().kill()

    def reap(self) -> int:
        """Returns the exit status, a code or a negative signal number; it has ended."""
        self.kill()  # what it left behind in its group
        self.status = self._process.wait()
        return self.status

    def close(self) -> None:
        """Closes sockets and pipes."""
        super().close()
        if self._page is not None:
            self._page.close()
            self._page = None
        for fd in (*self.outputs, self.pidfd):
            with contextlib.suppress(OSError):
                os.close(fd)


@contextlib.contextmanager
def _progress_page() -> Generator[tuple[ProgressPage | None, list[int]]]:
    """Makes a page that a rank will share, and its descriptor, where that is possible.

    The descriptor is closed afterwards; the page only if no process can be started.
    """
    made = ProgressPage.make()
    if made is None:
        yield None, []
        return
    page, fd = made
    try:
        yield page, [fd.fileno()]
    except BaseException:
        page.close()
        raise
    finally:
        fd.close()
