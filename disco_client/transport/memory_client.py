"""Host arrays to and from a daemon on this machine, in memory that both share.

The daemon passes the descriptor of memory over a Unix socket; the client writes
its array there, or reads it from there, and no byte of it goes through the socket
or the daemon. A connection carries one array: that it is closed, however this
process ends, tells the daemon that the client is done or gone.
"""

from __future__ import annotations

import contextlib
import os
import socket
import threading
from collections.abc import Generator

from google.protobuf.message import DecodeError

from disco_client.pb import controller_pb2, memory_pb2
from disco_client.transport.doors import DoorShut, TransferFailed
from disco_client.transport.mapped import MappedMemory
from disco_client.transport.memory_frames import READ_BYTES, pack, unpack

__all__ = ["MemoryDoor"]

_CONNECT_S = 1.0


class MemoryDoor:
    """The memory door of one daemon; a :class:`~disco_client.transport.doors.Door`.

    Args:
        path: Where its socket is.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._sockets: set[socket.socket] = set()
        self._closed = False
        self._memory = MappedMemory()

    def upload(self, transfer: controller_pb2.Transfer, data: memoryview) -> None:
        """Brings an array's bytes to a worker; returns when they may be changed.

        Raises:
            TransferFailed: The worker does not get them.
        """
        with self._connection() as sock:
            _send(sock, memory_pb2.MemoryRequest(upload=transfer))
            reply, fds = _receive(sock)
            try:
                if reply.WhichOneof("what") == "granted":
                    self._memory.write(_memory(reply, fds), data)
                    _send(sock, memory_pb2.MemoryRequest(done=True))
                    _close(fds)
                    reply, fds = _receive(sock)
            finally:
                _close(fds)
            # At once where the array was there already, or will not come.
            if reply.WhichOneof("what") != "taken":
                raise TransferFailed(reply.refused or "the daemon did not take the array")

    def download(self, transfer: controller_pb2.Transfer, into: memoryview) -> int:
        """Fills a buffer with the array that a worker offered, if it is of that size.

        Returns:
            The array's size in bytes.

        Raises:
            TransferFailed: It cannot be had.
        """
        with self._connection() as sock:
            _send(sock, memory_pb2.MemoryRequest(download=transfer))
            reply, fds = _receive(sock)
            try:
                fd = _memory(reply, fds)
                if reply.granted == len(into):
                    self._memory.read(fd, into)
            finally:
                _close(fds)
            return reply.granted

    def close(self) -> None:
        """Breaks off what is under way, in whatever threads; idempotent."""
        with self._lock:
            self._closed = True
            self._memory.close()
            for sock in self._sockets:
                # Wakes a thread that waits for the daemon, which closing would not.
                with contextlib.suppress(OSError):
                    sock.shutdown(socket.SHUT_RDWR)

    @contextlib.contextmanager
    def _connection(self) -> Generator[socket.socket]:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:
            with self._lock:
                if self._closed:
                    msg = "the session is over"
                    raise DoorShut(msg)
                self._sockets.add(sock)
            try:
                self._connect(sock)
                yield sock
            except ConnectionError as error:
                # The daemon is gone, or somebody has shut this door: it shows by the other way.
                raise DoorShut(str(error)) from error
            except OSError as error:
                raise TransferFailed(str(error)) from error
            finally:
                with self._lock:
                    self._sockets.discard(sock)

    def _connect(self, sock: socket.socket) -> None:
        sock.settimeout(_CONNECT_S)
        try:
            sock.connect(self._path)
        except OSError as error:
            msg = f"no daemon answers at {self._path}: {error}"
            raise DoorShut(msg) from error
        # From here on the daemon lives, or the socket tells; how long it takes is its affair.
        sock.settimeout(None)


def _send(sock: socket.socket, request: memory_pb2.MemoryRequest) -> None:
    sock.sendall(pack(request))


def _memory(reply: memory_pb2.MemoryReply, fds: list[int]) -> int:
    """The descriptor of the memory that was asked for.

    Raises:
        TransferFailed: There is none.
    """
    if reply.WhichOneof("what") != "granted":
        raise TransferFailed(reply.refused or "the daemon gave no memory")
    if not fds:
        msg = "the daemon's memory did not arrive; are too many files open here?"
        raise TransferFailed(msg)
    return fds[0]


def _receive(sock: socket.socket) -> tuple[memory_pb2.MemoryReply, list[int]]:
    """Waits for an answer and the descriptors that come with it, which are the caller's."""
    fds: list[int] = []
    try:
        return memory_pb2.MemoryReply.FromString(_read(sock, fds)), fds
    except (ValueError, DecodeError) as error:
        _close(fds)
        msg = f"what answers there is no daemon of ours: {error}"
        raise DoorShut(msg) from error
    except BaseException:
        _close(fds)
        raise


def _read(sock: socket.socket, fds: list[int]) -> bytes:
    data = b""
    while (raw := unpack(data)) is None:
        more, came, _, _ = socket.recv_fds(sock, READ_BYTES, 1)
        fds += came
        for fd in came:
            os.set_inheritable(fd, False)  # as every other descriptor that Python makes
        if not more:
            msg = "the daemon ended the connection"
            raise ConnectionResetError(msg)
        data += more
    return raw


def _close(fds: list[int]) -> None:
    while fds:
        os.close(fds.pop())
