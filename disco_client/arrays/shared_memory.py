"""Memory that two processes of one machine share, without a name in the file system.

A descriptor is passed over a Unix socket, so nothing is left behind however a
process ends, and the size of /dev/shm does not matter. Where the system can seal
memory, no process with the descriptor can change its size: if one process truncated it,
another that maps it would end with a bus error.
"""

from __future__ import annotations

import errno
import mmap
import os
from operator import itemgetter

import numpy as np

from disco_client.descriptors import Descriptor, opened
from disco_client.wire.arrays import ALIGNMENT, byte_view, empty_array

__all__ = ["ARRAY_NAME", "SharedPool", "allocate", "map_shared", "read_shared", "write_shared"]


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
