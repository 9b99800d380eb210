"""Host arrays to and from a daemon on this machine, in memory that both share.

The daemon passes the descriptor of memory over a Unix socket; the client writes
its array there, or reads it from there, and no byte of it goes through the socket
or the daemon. A connection carries one array: when it is closed, however this
process ends, the daemon knows that the client is done or gone.
"""

from __future__ import annotations

import contextlib
import errno
import os
import socket
from collections.abc import Generator

from google.protobuf.message import DecodeError

from disco_client.arrays.mapped_memory import MappedMemory
from disco_client.arrays.memory_messages import READ_BYTES, pack, unpack
from disco_client.descriptors import WITH_DESCRIPTORS, Descriptor, receive_with_descriptors
from disco_client.forks import leave_in_children
from disco_client.locks import make_lock
from disco_client.pb import controller_pb2, memory_pb2
from disco_client.reentry import is_of_system
from disco_client.transport.base import EndpointLost, TransferFailed, TransferRefused

__all__ = ["MemoryEndpoint"]


_CONNECT_S = 1.0

_FD_SPACE = socket.CMSG_SPACE(4) if hasattr(socket, "CMSG_SPACE") else 0


class MemoryEndpoint:
    """The memory endpoint of one daemon; an :class:`~disco_client.transport.base.ArrayEndpoint`.

    Args:
        path: Where its socket is.
    """

    def __init__(self, path: str) -> None:
        self.spoiled = False
        self._path = path
        self._lock = make_lock()
        self._sockets: set[socket.socket] = set()
        self._closed = False
        self._memory = MappedMemory()

    def upload(self, transfer: controller_pb2.Transfer, data: memoryview) -> None:
        """Sends an array's bytes to a worker; returns when they may be changed.

        Raises:
            TransferFailed: The worker does not get them.
            OSError: The system has no descriptor or memory for it.
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
            # At once if the array was there already, or will not come.
            if reply.WhichOneof("what") != "taken":
                raise _refusal(reply, "the daemon did not take the array")

    def download(self, transfer: controller_pb2.Transfer, into: memoryview) -> int:
        """Fills a buffer with the array that a worker offered, if it is of that size.

        Returns:
            The array's size in bytes.

        Raises:
            TransferFailed: It cannot be fetched.
            OSError: The system has no descriptor or memory for it.
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
        """Aborts the transfers of all threads; idempotent."""
        with self._lock:
            self._closed = True
            for sock in self._sockets:
                # Wakes a thread that waits for the daemon, which closing would not.
                with contextlib.suppress(OSError):
                    sock.shutdown(socket.SHUT_RDWR)
        self._memory.close()

    @contextlib.contextmanager
    def _connection(self) -> Generator[socket.socket]:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:
            with self._lock:
                if self._closed:
                    msg = "the session is over"
                    raise EndpointLost(msg)
                self._sockets.add(leave_in_children(sock, socket.socket.close))
            try:
                self._connect(sock)
                yield sock
            except ConnectionError as error:
                if not is_of_system(error):
                    raise
                # The daemon is gone, or another thread closed this: the other way shows which.
                raise EndpointLost(str(error)) from error
            finally:
                with self._lock:
                    self._sockets.discard(sock)

    def _connect(self, sock: socket.socket) -> None:
        sock.settimeout(_CONNECT_S)
        try:
            sock.connect(self._path)
        except OSError as error:
            if error.errno in (errno.ENOMEM, errno.ENOBUFS) or not is_of_system(error):
                raise  # that says nothing of the daemon
            msg = f"no daemon answers at {self._path}: {error}"
            raise EndpointLost(msg) from error
        # From here on the daemon is alive, or the socket reports an error; no timeout is needed.
        sock.settimeout(None)


def _send(sock: socket.socket, request: memory_pb2.MemoryRequest) -> None:
    sock.sendall(pack(request))


def _memory(reply: memory_pb2.MemoryReply, fds: list[Descriptor]) -> int:
    """The descriptor of the requested memory.

    Raises:
        TransferFailed: There is none.
        OSError: Its descriptor did not arrive.
    """
    if reply.WhichOneof("what") != "granted":
        raise _refusal(reply, "the daemon gave no memory")
    if not fds:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
    return fds[0].fileno()


def _refusal(reply: memory_pb2.MemoryReply, otherwise: str) -> TransferFailed:
    if reply.failed:
        return TransferRefused(reply.failed)
    return TransferFailed(reply.refused or otherwise)


def _receive(sock: socket.socket) -> tuple[memory_pb2.MemoryReply, list[Descriptor]]:
    """Waits for an answer and its descriptors, which the caller then owns."""
    fds: list[Descriptor] = []
    try:
        return memory_pb2.MemoryReply.FromString(_receive_bytes(sock, fds)), fds
    except (ValueError, DecodeError) as error:
        _close(fds)
        msg = f"what answers there is no daemon of ours: {error}"
        raise EndpointLost(msg) from error
    except BaseException:
        _close(fds)
        raise


def _receive_bytes(sock: socket.socket, fds: list[Descriptor]) -> bytes:
    data = b""
    while (raw := unpack(data)) is None:
        (more, *_), came = receive_with_descriptors(
            sock.recvmsg, READ_BYTES, _FD_SPACE, WITH_DESCRIPTORS
        )
        fds += came
        if not more:
            raise ConnectionResetError(errno.ECONNRESET, "the daemon ended the connection")
        data += more
    return raw


def _close(fds: list[Descriptor]) -> None:
    while fds:
        fds.pop().close()
