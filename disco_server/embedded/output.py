"""What worker threads print: cut into lines, with their rank, or left out.

While a session with worker threads lives, ``sys.stdout`` and ``sys.stderr`` are
streams that look at the thread that writes: what a worker prints goes to its
session, everything else where it went before.
"""

from __future__ import annotations

import sys
import threading
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any

from disco_server.observe.last_lines import KEPT_LINES

__all__ = ["RankOutput", "ThreadStream", "redirect", "restore"]

_MAX_LINE = 16 * 1024
_here = threading.local()


class RankOutput:
    """The output of one worker thread.

    Args:
        emit: Gets lines: whether from standard error, and the lines.

    Attributes:
        last_lines: The last ones, for the report of a death.
    """

    def __init__(self, emit: Callable[[bool, list[str]], None]) -> None:
        self._emit = emit
        self._rest = {False: "", True: ""}
        self.last_lines: deque[str] = deque(maxlen=KEPT_LINES)

    def attach(self) -> None:
        """Makes it the output of this thread."""
        _here.output = self

    def write(self, is_error: bool, text: str) -> None:
        """Takes text; complete lines go on."""
        *lines, rest = (self._rest[is_error] + text).split("\n")
        if len(rest) > _MAX_LINE:
            lines, rest = [*lines, rest], ""
        self._rest[is_error] = rest
        self._pass_on(is_error, lines)

    def close(self) -> None:
        """Passes on what did not end with a line break."""
        for is_error, rest in self._rest.items():
            if rest:
                self._pass_on(is_error, [rest])
        self._rest = {False: "", True: ""}

    def _pass_on(self, is_error: bool, lines: list[str]) -> None:
        if not lines:
            return
        self.last_lines.extend(lines)
        _here.output = None  # who shows them may do so in this thread
        try:
            self._emit(is_error, lines)
        finally:
            _here.output = self


class ThreadStream:
    """Stands for a standard stream; what worker threads write goes to their sessions."""

    def __init__(self, inner: Any, is_error: bool) -> None:
        self.inner = inner
        self._is_error = is_error

    def write(self, text: str) -> int:
        """Writes text where this thread's output goes."""
        output: RankOutput | None = getattr(_here, "output", None)
        if output is None:
            return self.inner.write(text)
        output.write(self._is_error, text)
        return len(text)

    def writelines(self, lines: Iterable[str]) -> None:
        """Writes several texts."""
        for line in lines:
            self.write(line)

    def flush(self) -> None:
        """Flushes the stream below, unless this thread writes elsewhere."""
        if getattr(_here, "output", None) is None and self.inner is not None:
            self.inner.flush()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)


_lock = threading.Lock()
_sessions = 0
_streams: dict[str, ThreadStream] = {}


def redirect() -> None:
    """Makes the standard streams look at the thread; once for each session."""
    global _sessions  # noqa: PLW0603  (the standard streams are the process's too)
    with _lock:
        _sessions += 1
        if _sessions == 1:
            for name, is_error in (("stdout", False), ("stderr", True)):
                _streams[name] = ThreadStream(getattr(sys, name), is_error)
                setattr(sys, name, _streams[name])


def restore() -> None:
    """Undoes :func:`redirect`; a stream that somebody else replaced since stays."""
    global _sessions  # noqa: PLW0603  (as above)
    with _lock:
        _sessions -= 1
        if _sessions == 0:
            for name, stream in _streams.items():
                if getattr(sys, name) is stream:
                    setattr(sys, name, stream.inner)
            _streams.clear()
