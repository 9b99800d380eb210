"""How far a rank is, on a page of memory that its client looks at while it waits.

Asking a rank takes a question through its socket and an answer back. A client that
looks for the answer all the time sees it sooner on a page that both map: the rank
writes there after each batch. The page says two things: up to which command
everything is executed, and how many frames the rank had sent before, because a
client that has not read all of those may not know of a failure yet.

What is written first must be seen first (:func:`~disco_server.settings.keeps_order`);
other processors do without the page.
"""

from __future__ import annotations

import mmap
import os
from typing import Self

from disco_client.transport.shared import allocate, map_shared
from disco_server.settings import keeps_order

__all__ = ["ProgressPage"]


class ProgressPage:
    """Two counters that one process writes and another reads.

    Args:
        fd: Shared memory of at least a page; it may be closed afterwards.
    """

    def __init__(self, fd: int) -> None:
        self._memory = map_shared(fd, mmap.PAGESIZE)
        self._counters = memoryview(self._memory).cast("Q")

    @classmethod
    def make(cls) -> tuple[Self, int] | None:
        """Makes a page and the descriptor that the other process maps; None where none can be.

        Whoever calls this closes the descriptor.
        """
        if not keeps_order():
            return None
        try:
            fd = allocate(mmap.PAGESIZE)
        except OSError:
            return None
        try:
            return cls(fd), fd
        except OSError:
            os.close(fd)
            return None

    def write(self, seq: int, frames: int) -> None:
        """Says that everything up to this command is executed.

        Args:
            seq: The command.
            frames: How many frames were sent before, without answers on how far it is.
        """
        counters = self._counters
        counters[1] = frames
        counters[0] = seq

    def shows(self, seq: int, frames: int) -> bool:
        """Whether everything up to this command is executed, and all that was sent is known.

        Args:
            seq: The command.
            frames: How many frames were received.
        """
        counters = self._counters
        return counters[0] >= seq and counters[1] == frames

    def close(self) -> None:
        """Unmaps the page."""
        self._counters.release()
        self._memory.close()
