"""Memory that two processes of one machine share, without a name in the file system.

A descriptor is passed over a Unix socket, so nothing is left behind however a
process ends, and the size of /dev/shm does not matter.
"""

from __future__ import annotations

import mmap
import os
import tempfile

__all__ = ["allocate", "map_shared", "write_shared"]


def allocate(nbytes: int) -> int:
    """Makes shared memory and returns its descriptor.

    Raises:
        OSError: There is no room.
    """
    if hasattr(os, "memfd_create"):
        fd = os.memfd_create("disco-array", os.MFD_CLOEXEC)
    else:
        with tempfile.TemporaryFile() as file:
            fd = os.dup(file.fileno())
    try:
        os.ftruncate(fd, nbytes)
    except OSError:
        os.close(fd)
        raise
    return fd


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
