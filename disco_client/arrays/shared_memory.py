"""Memory that two processes of one machine share, without a name in the file system.

A descriptor is passed over a Unix socket, so nothing is left behind however a
process ends, and the size of /dev/shm does not matter. Where the system can seal
memory, no process with the descriptor can change its size: if one process truncated it,
another that maps it would end with a bus error.
"""

from __future__ import annotations

import contextlib
import errno
import mmap
import os
import socket
import struct
from collections import OrderedDict
from collections.abc import Generator
from operator import itemgetter
from pathlib import Path
from typing import Any

import numpy as np
from google.protobuf.message import DecodeError, Message

from disco_client.descriptors import (
    WITH_DESCRIPTORS,
    Descriptor,
    opened,
    receive_with_descriptors,
)
from disco_client.locks import make_lock
from disco_client.pb import controller_pb2, memory_pb2
from disco_client.reentry import is_of_system
from disco_client.transport.base import EndpointLost, TransferFailed, TransferRefused
from disco_client.wire.arrays import ALIGNMENT, byte_view, empty_array

__all__ = [
    "ARRAY_NAME",
    "MAX_MESSAGE_BYTES",
    "MEMORY_SCHEME",
    "READ_BYTES",
    "MappedMemory",
    "MemoryEndpoint",
    "SharedPool",
    "allocate",
    "map_shared",
    "pack",
    "read_shared",
    "unpack",
    "write_shared",
]


ARRAY_NAME = "disco-array"
"""What lists of open files call memory for an array."""

_PIECE_BYTES = 256 << 10
"""How much is read at once through an intermediate buffer; small compared with a cache."""


def allocate(nbytes: int, name: str = ARRAY_NAME) -> Descriptor:
    """Makes shared memory and returns its descriptor.

    Args:
        nbytes: How much.
        name: What lists of open files call it, with a number behind it that no other has.

    Raises:
        OSError: There is no room.
    """
    memfd = hasattr(os, "memfd_create")
    if memfd:
        unique = f"{name}-{os.urandom(8).hex()}"
        fd = opened(os.memfd_create, unique, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    else:
        import tempfile  # 0.3 MiB with what it imports, which ranks do without

        with tempfile.TemporaryFile() as file:
            fd = opened(os.dup, file.fileno())
    try:
        os.ftruncate(fd.fileno(), nbytes)
        if memfd:
            _seal(fd.fileno())
    except OverflowError:
        fd.close()
        raise OSError(errno.EFBIG, os.strerror(errno.EFBIG)) from None
    except BaseException:
        fd.close()
        raise
    return fd


def _seal(fd: int) -> None:
    """Fixes the size of shared memory."""
    import fcntl  # not on every system on which a client runs

    seals = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
    fcntl.fcntl(fd, fcntl.F_ADD_SEALS, seals)


def map_shared(fd: int, nbytes: int) -> mmap.mmap:
    """Maps shared memory for reading and writing; the descriptor may then be closed."""
    # Mapping every page at once costs a fraction of what touching each one does.
    return mmap.mmap(fd, nbytes, flags=mmap.MAP_SHARED | getattr(mmap, "MAP_POPULATE", 0))


def write_shared(fd: int, data: memoryview, offset: int = 0) -> None:
    """Writes into shared memory without mapping it.

    The kernel fills fresh pages as it copies, which spares clearing them first and
    a page fault for each.
    """
    while len(data):
        written = os.pwrite(fd, data, offset)
        data = data[written:]
        offset += written


def read_shared(fd: int, into: memoryview, offset: int = 0) -> None:
    """Fills a buffer from shared memory, without mapping it.

    The kernel copies page by page, and into memory that does not begin at a multiple
    of ALIGNMENT some processors do that three times slower. Large arrays of numpy's
    begin 16 bytes after one; there a small piece that is aligned goes between.

    Args:
        fd: The memory.
        into: What to fill.
        offset: Where in the memory to begin.

    Raises:
        OSError: There is less in it.
    """
    if len(into) <= _PIECE_BYTES or not np.frombuffer(into, np.uint8).ctypes.data % ALIGNMENT:
        _read_at(fd, into, offset)
        return
    piece = byte_view(empty_array((_PIECE_BYTES,), np.dtype(np.uint8)))
    for start in range(0, len(into), _PIECE_BYTES):
        part = piece[: len(into) - start]
        _read_at(fd, part, offset + start)
        into[start : start + len(part)] = part


def _read_at(fd: int, into: memoryview, offset: int) -> None:
    at = 0
    while at < len(into):
        count = os.preadv(fd, [into[at:]], offset + at)
        if not count:
            msg = f"expected {len(into)} bytes of shared memory at {offset}, got {at}"
            raise OSError(msg)
        at += count


class SharedPool:
    """Shared memory to use again: fresh pages cost several times what a copy does.

    Args:
        keep_bytes: How much unused memory to keep.
    """

    def __init__(self, keep_bytes: int = 128 << 20) -> None:
        self._keep_bytes = keep_bytes
        self._kept: list[tuple[int, Descriptor]] = []

    def take(self, nbytes: int) -> Descriptor:
        """Returns a descriptor of at least ``nbytes``; it is the caller's from now on.

        Raises:
            OSError: There is no room.
        """
        fitting = [kept for kept in self._kept if kept[0] >= nbytes]
        if not fitting:
            return allocate(nbytes)
        kept = min(fitting, key=itemgetter(0))
        self._kept.remove(kept)
        return kept[1]

    def give(self, fd: Descriptor | None) -> None:
        """Takes a descriptor over, to hand it out again or to close it."""
        if fd is None:
            return
        try:
            size = os.fstat(fd.fileno()).st_size
        except OSError:
            size = self._keep_bytes + 1  # no memory to say how much: it is not kept
        if size + sum(kept for kept, _ in self._kept) > self._keep_bytes:
            fd.close()
        else:
            self._kept.append((size, fd))

    def close(self) -> None:
        """Gives all of it back to the system."""
        while self._kept:
            self._kept.pop()[1].close()


# Shared memory that is used repeatedly stays mapped.
#
# Array transfers through shared memory use the same memory each time (`SharedPool`).
# Reading and writing it with a call of the kernel takes two to three times as long as
# copying from or to a mapping does, and mapping it takes as long as such a call. So
# memory is accessed by the kernel the first time, and mapped the second time.


_SMALLEST_BYTES = 1 << 20
"""Below this the difference does not count."""

_NAMED = f"/memfd:{ARRAY_NAME}-"

_MOST_KEPT = 16
"""Mappings at a time: each has a descriptor of its own."""

_REMEMBERED = 64
"""How many memory objects are remembered as used before."""


class MappedMemory:
    """Copies to and from shared memory, given by descriptors; for any thread.

    What is copied piece by piece is copied from its beginning on.

    Args:
        keep_bytes: How much stays mapped.
    """

    def __init__(self, keep_bytes: int = 128 << 20) -> None:
        self._keep_bytes = keep_bytes
        self._lock = make_lock()
        self._kept: OrderedDict[str, np.ndarray[Any, Any]] = OrderedDict()
        self._seen: OrderedDict[str, None] = OrderedDict()

    def write(self, fd: int, data: memoryview, offset: int = 0) -> None:
        """Writes into shared memory; see `write_shared`."""
        memory = self._find(fd, offset, len(data))
        if memory is None:
            write_shared(fd, data, offset)
        else:
            memory[offset : offset + len(data)] = np.frombuffer(data, np.uint8)

    def read(self, fd: int, into: memoryview, offset: int = 0) -> None:
        """Fills a buffer from shared memory; see `read_shared`.

        Raises:
            OSError: There is less in it.
        """
        memory = self._find(fd, offset, len(into))
        if memory is None:
            read_shared(fd, into, offset)
        else:
            np.frombuffer(into, np.uint8)[:] = memory[offset : offset + len(into)]

    def close(self) -> None:
        """Lets go of all mappings that no copy needs any more."""
        with self._lock:
            self._forget()

    def disown(self) -> None:
        """The same in a forked child, even if a thread of the parent held the lock."""
        self._lock = make_lock()
        self._forget()

    def _forget(self) -> None:
        self._kept.clear()
        self._seen.clear()

    def _find(self, fd: int, offset: int, nbytes: int) -> np.ndarray[Any, Any] | None:
        """The mapping of some memory, if it has one or gets one now."""
        if not nbytes:
            return None
        size = os.fstat(fd).st_size
        if size < _SMALLEST_BYTES or size > self._keep_bytes or offset + nbytes > size:
            return None
        try:
            # Its inode's number may be another's, too.
            key = str(Path(f"/proc/self/fd/{fd}").readlink())
        except OSError:
            return None
        with self._lock:
            memory = self._kept.get(key)
            if memory is not None:
                self._kept.move_to_end(key)
            elif not offset and self._came_before(key) and _is_ours(fd, key):
                with contextlib.suppress(OSError):  # no room for another one: then without
                    memory = self._kept[key] = np.frombuffer(map_shared(fd, size), np.uint8)
                    self._drop_some()
        return memory

    def _drop_some(self) -> None:
        kept = self._kept
        # A copy of the values, as a signal handler may add to them.
        while len(kept) > _MOST_KEPT or (
            sum(each.nbytes for each in tuple(kept.values())) > self._keep_bytes
        ):
            kept.popitem(last=False)

    def _came_before(self, key: str) -> bool:
        if key in self._seen:
            return True
        self._seen[key] = None
        while len(self._seen) > _REMEMBERED:
            self._seen.popitem(last=False)
        return False


def _is_ours(fd: int, name: str) -> bool:
    """Whether `allocate` made it: it has the expected name, and its size is sealed.

    A process that maps memory which another one truncates ends with a bus error.
    """
    if not name.startswith(_NAMED):
        return False
    import fcntl  # not on every system on which a client runs

    try:
        return bool(fcntl.fcntl(fd, fcntl.F_GET_SEALS) & fcntl.F_SEAL_SHRINK)
    except OSError:
        return False


# Messages at a memory endpoint: a length in four bytes, little-endian, and the message.
#
# Client and daemon take turns, so a message is all there is to read until the other
# side has answered it. No I/O here.


MEMORY_SCHEME = "memory:"
"""How the address of a memory endpoint begins; the path of its socket follows."""

MAX_MESSAGE_BYTES = 4096
"""No message is longer: each is a few numbers, or a line that says what is wrong."""

_HEADER = struct.Struct("<I")

READ_BYTES = _HEADER.size + MAX_MESSAGE_BYTES
"""How much to read at once."""


def pack(message: Message) -> bytes:
    """Encodes a message as it is sent."""
    raw = message.SerializeToString()
    return _HEADER.pack(len(raw)) + raw


def unpack(data: bytes) -> bytes | None:
    """Returns the encoded message in what was read so far; None if it is not whole yet.

    Raises:
        ValueError: It is too long, or something follows it.
    """
    if len(data) < _HEADER.size:
        return None
    (length,) = _HEADER.unpack_from(data)
    if length > MAX_MESSAGE_BYTES:
        msg = f"expected a message of at most {MAX_MESSAGE_BYTES} bytes, got {length}"
        raise ValueError(msg)
    extra = len(data) - _HEADER.size - length
    if extra > 0:
        msg = f"expected one message, got {extra} bytes behind it"
        raise ValueError(msg)
    return data[_HEADER.size :] if not extra else None


# Host arrays to and from a daemon on this machine, in memory that both share.
#
# The daemon passes the descriptor of memory over a Unix socket; the client writes
# its array there, or reads it from there, and no byte of it goes through the socket
# or the daemon. A connection carries one array: when it is closed, however this
# process ends, the daemon knows that the client is done or gone.


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

    def disown(self) -> None:
        """Closes a forked child's copies of sockets, and unmaps what it shares; takes no lock.

        Shutting a socket down would shut the parent's.
        """
        for sock in tuple(self._sockets):
            sock.close()
        self._memory.disown()

    @contextlib.contextmanager
    def _connection(self) -> Generator[socket.socket]:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:
            with self._lock:
                if self._closed:
                    msg = "the session is over"
                    raise EndpointLost(msg)
                self._sockets.add(sock)
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
