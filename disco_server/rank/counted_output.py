"""Counts the lines that a function of the program prints, which arrive later than its result."""

from __future__ import annotations

import contextlib
import fcntl
import sys
import termios
import threading
from array import array
from collections.abc import Generator, Iterable
from typing import Any, Final
from weakref import WeakKeyDictionary

from disco_client.clock import monotonic
from disco_server.rank.worker import Worker

__all__ = ["LineCount", "await_reader", "counted_output", "lines_printed"]

_LOOK_S: Final = 0.002


class LineCount:
    """How many lines were printed.

    Attributes:
        lines: Their number.
    """

    __slots__ = ("lines",)

    def __init__(self) -> None:
        self.lines: int = 0


_counts: WeakKeyDictionary[Worker, LineCount] = WeakKeyDictionary()


def lines_printed(worker: Worker) -> int:
    """How many lines were printed in the worker's last `counted_output`, or so far in this one."""
    count = _counts.get(worker)
    return count.lines if count else 0


@contextlib.contextmanager
def counted_output(worker: Worker) -> Generator[LineCount]:
    """Counts the lines that are printed meanwhile; a line that has not ended ends with the block.

    Where the worker is a thread, nothing is counted: it hands lines over before its result.

    Args:
        worker: The worker, in whose thread this is called.
    """
    count = _counts[worker] = LineCount()
    if worker.loading.in_program:
        yield count
        return
    out, err = _CountedStream(sys.stdout, count), _CountedStream(sys.stderr, count)
    streams: tuple[Any, Any] = (out, err)
    try:
        with contextlib.redirect_stdout(streams[0]), contextlib.redirect_stderr(streams[1]):
            yield count
    finally:
        # The daemon passes a line on when it has ended.
        for each in (out, err):
            each.end_line()


def await_reader(worker: Worker, seconds: float) -> bool:
    """Waits until the node has read all that this process has printed; what waits is not lost.

    The node passes lines on before it reads the next reply of this process, in one order.

    Args:
        worker: The worker, in whose thread this is called.
        seconds: How long to wait at most.

    Returns:
        Whether it has read all.
    """
    if worker.loading.in_program:
        return True
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    clock, until = threading.Event(), monotonic() + seconds
    while any(map(_unread, (1, 2))):
        if monotonic() > until:
            return False
        clock.wait(_LOOK_S)
    return True


def _unread(pipe: int) -> int:
    """How many bytes of a pipe nobody has read yet; 0 of anything else."""
    count = array("i", [0])
    with contextlib.suppress(OSError):
        fcntl.ioctl(pipe, termios.FIONREAD, count)
    return count[0]


class _CountedStream:
    """A standard stream that counts lines."""

    def __init__(self, inner: Any, count: LineCount) -> None:
        self._inner, self._count = inner, count
        self._is_open = False

    def write(self, text: str) -> int:
        """Writes a text."""
        self._count.lines += text.count("\n")
        if text:
            self._is_open = not text.endswith("\n")
        written: int = self._inner.write(text)
        return written

    def writelines(self, texts: Iterable[str]) -> None:
        """Writes several texts."""
        for text in texts:
            self.write(text)

    def end_line(self) -> None:
        """Ends the last line, unless that has ended, and writes what was written so far."""
        with contextlib.suppress(OSError, ValueError):  # the program may have closed it
            if self._is_open:
                self.write("\n")
            self._inner.flush()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)
