"""Envelopes on a stream socket: a length, the bytes, and sometimes a descriptor.

A frame is a 4-byte little-endian length and that many bytes. A file descriptor
travels with the first byte of its frame, so descriptors and the frames that
mention them arrive in the same order; the reader hands each to the frame that
asks for it.

Two frames are no envelopes, and are shorter than any: an empty one asks how far
the receiver is, and one of eight bytes answers that with a sequence number.
"""

from __future__ import annotations

import array
import os
import socket
import struct
from collections import deque

__all__ = [
    "HOW_FAR",
    "MAX_FRAME_BYTES",
    "FrameReader",
    "frame",
    "frame_of_progress",
    "progress_in",
    "receive",
    "send_with_fd",
]

MAX_FRAME_BYTES = 64 << 20
_HEADER = struct.Struct("<I")
_READ_BYTES = 256 * 1024
_FD_SPACE = socket.CMSG_SPACE(16 * array.array("i").itemsize)


def frame(raw: bytes) -> bytes:
    """Puts a length before an encoded envelope."""
    return _HEADER.pack(len(raw)) + raw


HOW_FAR = frame(b"")
"""Asks how far the receiver is."""

_PROGRESS = struct.Struct("<Q")


def frame_of_progress(seq: int) -> bytes:
    """Says that everything up to this command is executed."""
    return frame(_PROGRESS.pack(seq))


def progress_in(raw: bytes) -> int | None:
    """The sequence number that a frame brings, or None for an envelope."""
    return _PROGRESS.unpack(raw)[0] if len(raw) == _PROGRESS.size else None


class FrameReader:
    """Cuts a stream of bytes into frames; no I/O here."""

    def __init__(self) -> None:
        self._buffer = bytearray()
        self.fds: deque[int] = deque()
        # Read into again and again: fresh memory costs many times what reading does.
        self.scratch = memoryview(bytearray(_READ_BYTES))

    def feed(self, data: bytes | memoryview) -> list[bytes]:
        """Adds bytes and returns the frames that are complete.

        Raises:
            ValueError: A frame is longer than any peer of ours sends.
        """
        buffer = self._buffer
        source: bytes | bytearray | memoryview = data
        if buffer:
            buffer += data
            source = buffer
        elif len(data) >= _HEADER.size and _HEADER.unpack_from(data)[0] == len(data) - _HEADER.size:
            return [bytes(data[_HEADER.size :])]  # one whole frame, as most of what comes
        frames: list[bytes] = []
        at = 0
        size = len(source)
        while size - at >= _HEADER.size:
            (length,) = _HEADER.unpack_from(source, at)
            if length > MAX_FRAME_BYTES:
                msg = f"expected a frame of at most {MAX_FRAME_BYTES} bytes, got {length}"
                raise ValueError(msg)
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

    def close(self) -> None:
        """Closes descriptors that nobody took."""
        while self.fds:
            os.close(self.fds.popleft())


def receive(sock: socket.socket, reader: FrameReader) -> list[bytes] | None:
    """Reads what there is, blocking or not as the socket is; None at the end.

    Raises:
        BlockingIOError: It does not block and there is nothing.
    """
    try:
        count, ancillary, _, _ = sock.recvmsg_into((reader.scratch,), _FD_SPACE)
    except ConnectionResetError:
        return None
    if ancillary:
        reader.fds.extend(_descriptors_in(ancillary))
    if not count:
        return None
    return reader.feed(reader.scratch[:count])


def _descriptors_in(ancillary: list[tuple[int, int, bytes]]) -> array.array[int]:
    fds = array.array("i")
    for level, kind, content in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            fds.frombytes(content[: len(content) - len(content) % fds.itemsize])
    for fd in fds:
        os.set_inheritable(fd, False)  # as every other descriptor that Python makes
    return fds


def send_with_fd(sock: socket.socket, raw: bytes, fd: int) -> None:
    """Sends one whole frame with a descriptor; for blocking sockets."""
    data = memoryview(frame(raw))
    sent = socket.send_fds(sock, [data], [fd])
    if sent < len(data):
        sock.sendall(data[sent:])
