"""The client's end of one rank that is a child process: its socket, its output, its exit."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Callable, Mapping

from disco_server.ipc.framing import HOW_FAR, FrameReader, ProgressPage, Unsent, receive
from disco_server.observe.processes import (
    MEMORY_VARIABLE,
    LastLines,
    LineCutter,
    MemoryWatch,
    RankMemory,
    decode_lines,
)

__all__ = ["RankChild"]


_HELD_BYTES = 4 * 1024
"""How much may wait for company before it is sent after all."""


_HOW_FAR = memoryview(HOW_FAR)


_READ_BYTES = 64 * 1024


class RankChild:
    """One rank process; it dies with the thread that made this object.

    Args:
        worker: Its number.
        entrypoint: The module to run.
        environ: The environment of the process.

    Attributes:
        sock: The socket to the rank, non-blocking.
        pmi: The socket on which MPI asks.
        outputs: The pipes of standard output and standard error.
        pidfd: Readable when the process has ended.
        last_lines: The end of its output.
        reader: Cuts what the socket brings into frames, and holds descriptors.
        arm: Told whether to call :meth:`flush` when the socket takes more.
        gates: The locks to free with the rank's next answers on how far it is.
        heard: How many frames it has sent besides those answers, as far as known.
        assigned: Whether it has said that it is ready.
        memory: Where it writes down what it does.

    Raises:
        OSError: No process could be started.
    """

    def __init__(self, worker: int, entrypoint: str, environ: Mapping[str, str]) -> None:
        self.worker = worker
        self.assigned = False
        self._cause = ""
        self.reader = FrameReader()
        self.last_lines = LastLines()
        self._cutters = (LineCutter(), LineCutter())
        self._lock = threading.Lock()
        self._held = 0
        self.gates: deque[threading.Lock] = deque()
        self.heard = 0
        self._armed = False
        self.arm: Callable[[bool], None] = lambda _armed: None
        self._group_lives = True
        with contextlib.ExitStack() as undo:
            self.sock, theirs = _pair(undo)
            self._unsent = Unsent(self.sock)
            self.pmi, pmi_theirs = _pair(undo)
            ends = [_pipe(undo) for _ in range(2)]
            self.outputs = [ours for ours, _ in ends]
            self._page, memory = _page(undo)
            self.memory = RankMemory()
            undo.callback(self.memory.close)
            self.process = subprocess.Popen(
                [sys.executable, "-m", entrypoint]
                + [str(number) for number in (theirs.fileno(), os.getpid(), *memory)],
                stdin=subprocess.DEVNULL,
                stdout=ends[0][1],
                stderr=ends[1][1],
                pass_fds=(theirs.fileno(), pmi_theirs.fileno(), self.memory.fd, *memory),
                start_new_session=True,
                env={
                    **environ,
                    "PMI_FD": str(pmi_theirs.fileno()),
                    MEMORY_VARIABLE: str(self.memory.fd),
                },
            )
            self.pid = self.process.pid
            self._limits = MemoryWatch(self.pid)
            self.pidfd = os.pidfd_open(self.pid)
            undo.pop_all()
        for end in (theirs, pmi_theirs):
            end.close()
        for end in (*(theirs for _, theirs in ends), *memory):
            os.close(end)
        for fd in (self.sock.fileno(), self.pmi.fileno(), *self.outputs):
            os.set_blocking(fd, False)

    # The socket -------------------------------------------------------------------------

    def send(
        self,
        framed: bytes,
        fd: int | None = None,
        without: Callable[[str], bytes] | None = None,
    ) -> None:
        """Sends a frame, after all before it; never blocks.

        What the socket does not take now is kept, and ``arm`` is told so.

        Args:
            framed: The frame, its length included.
            fd: A descriptor to pass along; it is closed here.
            without: Makes the frame to send where that cannot be passed; see `Unsent`.
        """
        with self._lock:
            self._unsent.add(framed, fd, without)
            self._flush()

    def ask(self, gate: threading.Lock) -> None:
        """Asks how far the rank is; the answers come in the order of the questions."""
        with self._lock:
            self.gates.append(gate)
            self._unsent.add(_HOW_FAR)
            self._flush()

    def shows(self, seq: int) -> bool:
        """Whether the rank has executed a command, and nothing it has sent is unknown here.

        On some systems never true, so ask as well.
        """
        return self._page is not None and self._page.shows(seq, self.heard)

    def hold(self, framed: bytes) -> None:
        """Keeps a frame that nobody waits for until another one leaves, or many are there."""
        with self._lock:
            self._unsent.add(framed)
            self._held += len(framed)
            if self._held >= _HELD_BYTES:
                self._flush()

    def free_gates(self) -> None:
        """Frees the locks that wait in vain; the session is over."""
        while self.gates:
            self.answered()

    def answered(self) -> None:
        """Frees the lock of the oldest question."""
        with contextlib.suppress(IndexError):  # the session's end has freed it
            self.gates.popleft().release()

    def flush(self) -> None:
        """Sends what is kept, as far as the socket takes it."""
        with self._lock:
            self._flush()

    def _flush(self) -> None:
        self._held = 0
        if self._unsent.flush() == self._armed:
            self._armed = not self._armed
            self.arm(self._armed)

    def receive(self) -> list[bytes] | None:
        """Reads the frames that are there; None at the end of the stream."""
        try:
            return receive(self.sock, self.reader)
        except BlockingIOError:
            return []
        except OSError:
            return None
        except ValueError as error:  # not our protocol: user code wrote into the socket
            self._cause = f"was ended because it sent what is no message ({error})"
            return None

    # Output and exit ----------------------------------------------------------------------

    def read_output(self, is_error: bool) -> tuple[list[str], bool]:
        """Reads what was printed.

        Returns:
            The complete lines, and whether there can be more.
        """
        try:
            data = os.read(self.outputs[is_error], _READ_BYTES)
        except BlockingIOError:
            return [], True
        return self._cut(is_error, data), bool(data)

    def last_words(self, is_error: bool) -> list[str]:
        """Returns a last line that had no end."""
        return self._cut(is_error, b"")

    def _cut(self, is_error: bool, data: bytes) -> list[str]:
        block = self._cutters[is_error].feed(data)
        if block is None:
            return []
        self.last_lines.feed(block)
        return decode_lines(block)

    def kill(self) -> None:
        """Ends the process and every process it started that stayed in its group."""
        if self._group_lives:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.pid, signal.SIGKILL)

    def end_because(self, why: str) -> None:
        """Kills the process, and says so where its end is reported."""
        self._cause = why
        self.kill()

    def reap(self) -> int:
        """Returns the exit status, a code or a negative signal number; it has ended."""
        self.kill()  # what it left behind in its group
        self._group_lives = False  # the number may be another group's from now on
        return self.process.wait()

    def why_ended(self) -> str:
        """Says why it ended, where more than its status is known; asked once, after its end."""
        if not self._cause and self.process.returncode == -signal.SIGKILL:
            self._cause = self._limits.explain()
        return self._cause or self.memory.read_cause()

    def renew_lock(self) -> None:
        """Frees the lock in a forked child, whoever held it in the parent."""
        self._lock = threading.Lock()

    def close(self, *, keep_memory: bool = False) -> None:
        """Lets go of sockets and pipes.

        Args:
            keep_memory: Keep a copy of what the rank has written down.
        """
        with self._lock:
            self._unsent.drop()
        self.reader.close()
        self.memory.close(keep=keep_memory)
        if self._page is not None:
            self._page.close()
            self._page = None
        self.sock.close()
        self.pmi.close()
        for fd in (*self.outputs, self.pidfd):
            with contextlib.suppress(OSError):
                os.close(fd)


def _pair(undo: contextlib.ExitStack) -> tuple[socket.socket, socket.socket]:
    ours, theirs = socket.socketpair()
    undo.callback(ours.close)
    undo.callback(theirs.close)
    return ours, theirs


def _page(undo: contextlib.ExitStack) -> tuple[ProgressPage | None, list[int]]:
    """A page that the rank will share, with its descriptor, where that is possible."""
    made = ProgressPage.make()
    if made is None:
        return None, []
    page, fd = made
    undo.callback(page.close)
    undo.callback(os.close, fd)
    return page, [fd]


def _pipe(undo: contextlib.ExitStack) -> tuple[int, int]:
    ours, theirs = os.pipe()
    undo.callback(os.close, ours)
    undo.callback(os.close, theirs)
    return ours, theirs
