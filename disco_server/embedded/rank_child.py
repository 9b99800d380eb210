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
from disco_server.observe.processes import MEMORY_VARIABLE, decode_lines

__all__ = ["RankChild"]


_HOW_FAR = memoryview(HOW_FAR)


_READ_BYTES = 64 * 1024


class RankChild(RankProcess):
    """One rank process; it dies with the thread that made this object.

    Args:
        worker: Its number.
        command: What Python is started with, but for the descriptors: the rank's socket, for
            reading and for writing.
        environ: The environment of the process.

    Attributes:
        worker: Its number.
        pidfd: Readable when the process has ended.
        waiters: The locks to free with the rank's next progress replies.
        heard: How many frames it has sent besides those replies, as far as known.
        assigned: Whether it has reported that it is ready.

    Raises:
        OSError: No process could be started.
    """

    def __init__(self, worker: int, command: Sequence[str], environ: Mapping[str, str]) -> None:
        self.worker = worker
        self.assigned = False
        self.waiters: deque[threading.Lock] = deque()
        self.heard = 0
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
            super().__init__(self._process.pid, ours)
            self.pidfd = os.pidfd_open(self.pid)

    # Progress ---------------------------------------------------------------------------

    def ask(self, waiter: threading.Lock) -> None:
        """Requests the rank's progress; the replies arrive in the order of the requests."""
        with self._lock:
            self.waiters.append(waiter)
            self._unsent.add(_HOW_FAR)
            if not self._armed:
                self._flush()

    def shows(self, seq: int) -> bool:
        """Whether the rank has executed a command, and everything that it sent has been read.

        On some systems never true, so call `ask` as well.
        """
        return self._page is not None and self._page.shows(seq, self.heard)

    def wake_waiters(self) -> None:
        """Frees the locks whose replies will not come; the session is over."""
        while self.waiters:
            self.answered()

    def answered(self) -> None:
        """Frees the lock of the oldest request."""
        with contextlib.suppress(IndexError):  # the session's end has freed it
            self.waiters.popleft().release()

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

    def renew_lock(self) -> None:
        """Frees the lock in a forked child, whichever thread of the parent held it."""
        self._lock = threading.Lock()

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
        yield page, [fd]
    except BaseException:
        page.close()
        raise
    finally:
        os.close(fd)
