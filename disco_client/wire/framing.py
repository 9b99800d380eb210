"""Frames: how envelopes follow one another on a socket that knows no messages.

A frame is a 4-byte little-endian length and that many bytes. Daemons and their ranks send
them over Unix sockets, clients and daemons over TCP; no I/O here.
"""

from __future__ import annotations

import struct

__all__ = ["MAX_FRAME_BYTES", "FrameCutter", "frame"]

MAX_FRAME_BYTES = 64 << 20
"""As much as a message of gRPC may have here."""

_HEADER = struct.Struct("<I")


def frame(raw: bytes) -> bytes:
    """Puts a length before an encoded envelope."""
    return _HEADER.pack(len(raw)) + raw


class FrameCutter:
    """Cuts a stream of bytes into frames.

    Attributes:
        limit: The longest frame that is taken.
    """

    def __init__(self, limit: int = MAX_FRAME_BYTES) -> None:
        self.limit = limit
        self._buffer = bytearray()

    def feed(self, data: bytes | memoryview) -> list[bytes]:
        """Adds bytes and returns the frames that are complete.

        Raises:
            ValueError: A frame is longer than the limit.
        """
        buffer = self._buffer
        source: bytes | bytearray | memoryview = data
        if buffer:
            buffer += data
            source = buffer
        elif len(data) >= _HEADER.size and _HEADER.unpack_from(data)[0] == len(data) - _HEADER.size:
            self._check(len(data) - _HEADER.size)
            return [bytes(data[_HEADER.size :])]  # one whole frame, as most of what comes
        frames: list[bytes] = []
        at = 0
        size = len(source)
        while size - at >= _HEADER.size:
            (length,) = _HEADER.unpack_from(source, at)
            self._check(length)
            end = at + _HEADER.size + length
            if end > size:
                break
            frames.append(bytes(memoryview(source)[at + _HEADER.size : end]))
            at = end
        if source is buffer:
            del buffer[:at]
        elif at < size:
            buffer += memoryview(data)[at:]
        return frames

    def _check(self, length: int) -> None:
        if length > self.limit:
            msg = f"expected a frame of at most {self.limit} bytes, got {length}"
            raise ValueError(msg)
