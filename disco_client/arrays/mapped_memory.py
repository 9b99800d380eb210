"""Shared memory that is used repeatedly stays mapped.

Array transfers through shared memory use the same memory each time (`SharedPool`).
Reading and writing it with a call of the kernel takes two to three times as long as
copying from or to a mapping does, and mapping it takes as long as such a call. So
memory is accessed by the kernel the first time, and mapped the second time.
"""

from __future__ import annotations

import contextlib
import os
from collections import OrderedDict
from pathlib import Path
from typing import Any

import numpy as np

from disco_client.arrays.shared_memory import ARRAY_NAME, map_shared, read_shared, write_shared
from disco_client.forks import leave_in_children
from disco_client.locks import make_lock

__all__ = ["MappedMemory"]


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
        leave_in_children(self, MappedMemory._forget)

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
