"""Frames: how envelopes follow one another on a socket that knows no messages.

A frame is a 4-byte little-endian length and that many bytes. Daemons and their ranks send
them over Unix sockets, clients and daemons over TCP; no I/O here.
"""

from __future__ import annotations

import struct

__all__ = ["MAX_FRAME_BYTES", "FrameCutter", "FrameTooLong", "frame"]

MAX_FRAME_BYTES = 64 << 20
"""As much as a message of gRPC may have here."""

_HEADER = struct.Struct("<I")
_BEFORE = _HEADER.size


def frame(raw: bytes) -> bytes:
    """Puts a length before an encoded envelope."""
    return _HEADER.pack(len(raw)) + raw


class FrameTooLong(ValueError):
    """A frame is longer than the limit."""


class FrameCutter:
    """Cuts a stream of bytes into frames.

    Attributes:
        limit: The longest frame that is taken.
        rest: The beginning of the next frame, and perhaps bytes of a piece that is being cut.
        size: How many bytes `rest` had before that piece; None where none is being cut.
    """

    def __init__(self, limit: int = MAX_FRAME_BYTES) -> None:
        self.limit = limit
        self.rest = bytearray()
        self.size: int | None = None

    def feed(self, data: bytes | memoryview) -> list[bytes]:
        """Adds bytes and returns the frames that are complete.

        Raises:
            FrameTooLong: A frame is longer than the limit.
        """
        frames, rest = self.cut(data)
        self.rest, self.size = rest, None
        return frames

    def cut(self, data: bytes | memoryview) -> tuple[list[bytes], bytearray]:
        """Cuts one piece; may be repeated with the same piece, until both attributes are set.

        Args:
            data: The piece, which follows those before.

        Returns:
            The frames that are complete now, and what `rest` is after it; `size` is None then.

        Raises:
            FrameTooLong: A frame is longer than the limit.
        """
        rest = self.rest
        if self.size is None:
            self.size = len(rest)
        elif len(rest) > self.size:
            del rest[self.size :]
        source: bytes | bytearray | memoryview = data
        size = len(data)
        if rest:
            rest += data
            source, size = rest, len(rest)
        elif size >= _BEFORE and _HEADER.unpack_from(data)[0] == size - _BEFORE:
            self._check(size - _BEFORE)
            return [bytes(data[_BEFORE:])], rest  # one whole frame, as most of what comes
        frames: list[bytes] = []
        at = 0
        while size - at >= _BEFORE:
            (length,) = _HEADER.unpack_from(source, at)
            self._check(length)
            end = at + _BEFORE + length
            if end > size:
                break
            frames.append(bytes(memoryview(source)[at + _BEFORE : end]))
            at = end
        if at or source is not rest:
            rest = bytearray(memoryview(source)[at:])
        return frames, rest

    def _check(self, length: int) -> None:
        if length > self.limit:
            msg = f"expected a frame of at most {self.limit} bytes, got {length}"
            raise FrameTooLong(msg)
