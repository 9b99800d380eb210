"""Envelopes on a stream socket: a length, the bytes, and sometimes a descriptor.

A frame is a 4-byte little-endian length and that many bytes. A file descriptor
travels with the first byte of its frame, so descriptors and the frames that
mention them arrive in the same order; the reader hands each to the frame that
asks for it.
"""

from __future__ import annotations

import os
import socket
import struct
from collections import deque
from collections.abc import Iterator

__all__ = ["MAX_FRAME_BYTES", "FrameReader", "frame", "receive", "send_with_fd"]

MAX_FRAME_BYTES = 64 << 20
_HEADER = struct.Struct("<I")
_READ_BYTES = 256 * 1024
_MAX_FDS = 16


def frame(raw: bytes) -> bytes:
    """Puts a length before an encoded envelope."""
    return _HEADER.pack(len(raw)) + raw


class FrameReader:
    """Cuts a stream of bytes into frames; no I/O here."""

    def __init__(self) -> None:
        self._buffer = bytearray()
        self.fds: deque[int] = deque()

    def feed(self, data: bytes) -> Iterator[bytes]:
        """Adds bytes and yields the frames that are complete.

        Raises:
            ValueError: A frame is longer than any peer of ours sends.
        """
        buffer = self._buffer
        buffer += data
        at = 0
        size = len(buffer)
        try:
            while size - at >= _HEADER.size:
                (length,) = _HEADER.unpack_from(buffer, at)
                if length > MAX_FRAME_BYTES:
                    msg = f"expected a frame of at most {MAX_FRAME_BYTES} bytes, got {length}"
                    raise ValueError(msg)
                end = at + _HEADER.size + length
                if end > size:
                    break
                raw = bytes(memoryview(buffer)[at + _HEADER.size : end])
                at = end
                yield raw
        finally:
            if at:
                del buffer[:at]

    def close(self) -> None:
        """Closes descriptors that nobody took."""
        while self.fds:
            os.close(self.fds.popleft())


def receive(sock: socket.socket, reader: FrameReader) -> list[bytes] | None:
    """Reads what there is, blocking or not as the socket is; None at the end.

    Raises:
        BlockingIOError: The socket does not block and has nothing.
    """
    try:
        data, fds, _, _ = socket.recv_fds(sock, _READ_BYTES, _MAX_FDS)
    except ConnectionResetError:
        return None
    for fd in fds:
        os.set_inheritable(fd, False)  # as every other descriptor that Python makes
    reader.fds.extend(fds)
    if not data:
        return None
    return list(reader.feed(data))


def send_with_fd(sock: socket.socket, raw: bytes, fd: int) -> None:
    """Sends one whole frame with a descriptor; for blocking sockets."""
    data = memoryview(frame(raw))
    sent = socket.send_fds(sock, [data], [fd])
    if sent < len(data):
        sock.sendall(data[sent:])
