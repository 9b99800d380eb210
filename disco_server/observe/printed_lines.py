"""Lines of what a process prints: cut out of its stream, and the last of them kept."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

__all__ = ["KEPT_LINES", "LastLines", "LineCutter", "decode_lines"]


KEPT_LINES = 20
"""How many last lines of output are kept."""

_MAX_LINE = 16 * 1024

_CRASH = b"Fatal Python error: "

_CRASH_LINES = 40


def decode_lines(block: bytes) -> list[str]:
    """Splits a block of lines."""
    text = block.decode("utf-8", "replace")
    lines = text.split("\n")
    return [line.rstrip("\r") for line in lines] if "\r" in text else lines


class LineCutter:
    """Cuts a stream of bytes behind its lines.

    Args:
        last_lines: Receives the lines too; several streams may share it.
    """

    def __init__(self, last_lines: LastLines) -> None:
        self._rest = b""
        self._last_lines = last_lines

    def feed(self, data: bytes) -> bytes | None:
        """Adds bytes; returns the lines that are complete, without the end of the last one.

        An overlong piece counts as a line before its end has come. None if there is no line.

        Args:
            data: The bytes; none at the end of the stream.
        """
        lines, end, rest = (self._rest + data).rpartition(b"\n")
        if len(rest) > _MAX_LINE or (rest and not data):
            lines, end, rest = lines + end + rest, b"\n", b""
        self._rest = rest
        if not end:
            return None
        self._last_lines.feed(lines)
        return lines


class LastLines:
    """Keeps the end of what a process prints, and of a crash its beginning too.

    When Python dies of a signal such as SIGSEGV it prints its stack, innermost frame
    first, so the last lines of a deep stack are the least useful ones.
    """

    def __init__(self) -> None:
        self._last: deque[bytes] = deque(maxlen=KEPT_LINES)
        self._crash: list[bytes] = []

    def feed(self, block: bytes) -> None:
        """Adds lines that were printed; only those that may be kept are split."""
        wanted = _CRASH_LINES - len(self._crash) if self._crash else 0
        # The latest crash counts; user code may have printed the first.
        crash = block.rfind(b"\n" + _CRASH) + 1
        if crash or block.startswith(_CRASH):
            self._crash, block = [], block[crash:]
            self._last.clear()
            wanted = _CRASH_LINES
        if wanted:
            lines = block.split(b"\n", wanted)
            self._crash += lines[:wanted]
            if len(lines) <= wanted:
                return
            block = lines[wanted]
        self._last.extend(block.rsplit(b"\n", KEPT_LINES)[-KEPT_LINES:])

    def __iter__(self) -> Iterator[str]:
        for line in (*self._crash, *self._last):
            yield from decode_lines(line)
