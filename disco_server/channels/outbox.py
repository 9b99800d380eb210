"""What waits to be written to one gRPC stream, in order.

Posting never blocks, so a slow peer never holds up whoever relays to it. Memory
stays bounded because commands are bounded by the client's window, and because
what nobody waits for (workers' output) is dropped when too much of it waits.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable

__all__ = ["Outbox"]

_MAX_DROPPABLE_BYTES = 4 << 20


class Outbox:
    """The writing side of one stream; its owner runs :meth:`run`."""

    def __init__(self) -> None:
        self._waiting: deque[bytes] = deque()
        self._bytes = 0
        self._wake: asyncio.Future[None] | None = None
        self._closed = False

    @property
    def nbytes(self) -> int:
        """How many bytes wait."""
        return self._bytes

    def post(self, raw: bytes, *, droppable: bool = False) -> bool:
        """Adds an encoded envelope; whether it was taken.

        Args:
            raw: The envelope.
            droppable: Refuse it when the peer reads too slowly.
        """
        if self._closed or (droppable and self._bytes > _MAX_DROPPABLE_BYTES):
            return False
        self._waiting.append(raw)
        self._bytes += len(raw)
        self._signal()
        return True

    def close(self) -> None:
        """Lets :meth:`run` end once everything posted has been written."""
        self._closed = True
        self._signal()

    def _signal(self) -> None:
        wake = self._wake
        if wake is not None and not wake.done():
            wake.set_result(None)

    async def run(self, write: Callable[[bytes], Awaitable[None]]) -> None:
        """Writes what is posted until the outbox is closed and empty."""
        waiting = self._waiting
        loop = asyncio.get_running_loop()
        while True:
            while waiting:
                raw = waiting.popleft()
                self._bytes -= len(raw)
                await write(raw)
            if self._closed:
                return
            self._wake = loop.create_future()
            await self._wake
            self._wake = None
