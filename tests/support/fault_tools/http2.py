"""A peer that speaks HTTP/2 byte by byte, to begin calls of gRPC and never finish them."""

from __future__ import annotations

import socket
import struct

__all__ = ["PREFACE", "UnfinishedCalls"]

_DATA, _HEADERS, _SETTINGS, _PING, _GOAWAY, _WINDOW = 0, 1, 4, 6, 7, 8
_ACK = 1
_END_HEADERS = 4
_INITIAL_WINDOW = 4
_WINDOW_BYTES = 65_535
_PIECE = 16_384


def _frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    return struct.pack(">I", len(payload))[1:] + struct.pack(">BBI", kind, flags, stream) + payload


def _field(name: bytes, value: bytes) -> bytes:
    """A header that no table keeps."""
    return bytes((0, len(name))) + name + bytes((len(value),)) + value


PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + _frame(_SETTINGS, 0, 0)
"""What a client says first, and may leave it at that."""


class UnfinishedCalls:
    """A connection with calls whose request is announced, and sent as far as the server takes it.

    Args:
        address: Of the server, in clear.
        method: The method of all calls.
        count: How many calls there are.
        nbytes: How long the request of each is said to be; its last byte is never sent.

    Attributes:
        sent: How many bytes of requests were sent.
        closed: Whether the server has closed the connection.
        refused: How many calls the server has ended.
    """

    def __init__(self, address: str, method: str, count: int, nbytes: int) -> None:
        host, _, port = address.rpartition(":")
        self._sock = socket.create_connection((host, int(port)), 10)
        self._came = b""
        self._initial = _WINDOW_BYTES
        self._connection = _WINDOW_BYTES
        streams = range(1, 2 * count, 2)
        self._windows = dict.fromkeys(streams, _WINDOW_BYTES)
        self._left = dict.fromkeys(streams, nbytes + 4)  # of its head, 5 bytes, all are sent
        self._heads = dict.fromkeys(streams, struct.pack(">BI", 0, nbytes))
        self.sent = 0
        self.closed = False
        self.refused = 0
        fields = {
            ":method": b"POST",
            ":scheme": b"http",
            ":path": method.encode(),
            ":authority": b"x",
            "te": b"trailers",
            "content-type": b"application/grpc",
        }
        head = b"".join(_field(name.encode(), value) for name, value in fields.items())
        opening = b"".join(_frame(_HEADERS, _END_HEADERS, each, head) for each in streams)
        self._sock.sendall(PREFACE + opening)

    def push(self, quiet_s: float = 1.0) -> None:
        """Sends until the server has taken nothing more for a while, or has closed."""
        while not self.closed and (self._read(0.0) or self._write() or self._read(quiet_s)):
            pass

    def _write(self) -> int:
        for stream, window in self._windows.items():
            size = min(self._connection, window, self._left[stream], _PIECE)
            if size > 0:
                head, self._heads[stream] = self._heads[stream], b""
                try:
                    self._sock.sendall(_frame(_DATA, 0, stream, head + bytes(size - len(head))))
                except ConnectionError:
                    self.closed = True
                    return 0
                self._connection -= size
                self._windows[stream] -= size
                self._left[stream] -= size
                self.sent += size
                return size
        return 0

    def _read(self, wait_s: float) -> bool:
        """Takes what has come; returns whether anything has."""
        self._sock.settimeout(wait_s)
        try:
            more = self._sock.recv(1 << 16)
        except (BlockingIOError, TimeoutError):
            return False
        except ConnectionError:
            more = b""
        finally:
            self._sock.settimeout(None)
        self.closed = not more
        self._came += more
        while len(self._came) >= 9:
            size = int.from_bytes(self._came[:3], "big")
            if len(self._came) < 9 + size:
                break
            kind, flags, stream = struct.unpack(">BBI", self._came[3:9])
            payload, self._came = self._came[9 : 9 + size], self._came[9 + size :]
            self._take(kind, flags, stream, payload)
        return bool(more)

    def _take(self, kind: int, flags: int, stream: int, payload: bytes) -> None:
        if kind == _SETTINGS and not flags & _ACK:
            for name, value in struct.iter_unpack(">HI", payload):
                if name == _INITIAL_WINDOW:
                    for each in self._windows:
                        self._windows[each] += value - self._initial
                    self._initial = value
            self._sock.sendall(_frame(_SETTINGS, _ACK, 0))
        elif kind == _PING and not flags & _ACK:
            self._sock.sendall(_frame(_PING, _ACK, 0, payload))
        elif kind == _WINDOW:
            grown = int.from_bytes(payload, "big")
            if stream:
                self._windows[stream] += grown
            else:
                self._connection += grown
        elif kind == _HEADERS:
            self.refused += 1
        elif kind == _GOAWAY:
            self.closed = True

    def close(self) -> None:
        """Closes the connection."""
        self._sock.close()
