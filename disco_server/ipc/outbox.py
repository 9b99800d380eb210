"""What waits to be written to one stream.

The messages of one session keep their order; sessions that share a stream take turns,
so that what one of them sends in bulk does not hold up another one's lone command.

Posting never blocks, so a slow peer never holds up the task that relays to it. Memory
stays bounded because commands are bounded by the client's window, and because droppable
messages (workers' output) are dropped when too much waits.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from disco_client.wire.codec import join_envelopes

__all__ = ["Outbox"]


_MAX_DROPPABLE_BYTES = 4 << 20
"""Droppable messages are dropped when more than this of their session waits."""

_JOINED_BYTES = 64 << 10
"""How much waits may leave as one message; an envelope that is larger leaves alone."""

_TURN_BYTES = 64 << 10
"""How much of a session is written before it is another session's turn."""


@dataclass(slots=True)
class _Queue:
    """What waits of one session, and how much of it may be written in this turn."""

    waiting: deque[bytes] = field(default_factory=deque[bytes])
    nbytes: int = 0
    credit: int = _TURN_BYTES


class Outbox:
    """The writing side of one stream; what carries that takes what is posted."""

    def __init__(self) -> None:
        self._queues: OrderedDict[int, _Queue] = OrderedDict()  # none of them is empty
        self._wake: Callable[[], object] = lambda: None
        self._closed = False
        self._farewell: bytes | None = None

    @property
    def nbytes(self) -> int:
        """How many bytes wait."""
        return sum(queue.nbytes for queue in self._queues.values())

    def post(self, raw: bytes, *, session: int = 0, droppable: bool = False) -> bool:
        """Adds an encoded envelope; returns whether it was taken.

        Args:
            raw: The envelope.
            session: Its session; envelopes of one session are written in the order of posting.
            droppable: Refuse it when the peer reads too slowly.
        """
        if self._closed:
            return False
        queue = self._queues.get(session)
        if queue is None:
            queue = self._queues[session] = _Queue()
        elif droppable and queue.nbytes > _MAX_DROPPABLE_BYTES:
            return False
        queue.waiting.append(raw)
        queue.nbytes += len(raw)
        self._wake()
        return True

    def close(self, farewell: bytes | None = None) -> None:
        """Lets it be over once everything posted has been written.

        Args:
            farewell: An envelope to write after all others.
        """
        self._closed = True
        self._farewell = farewell or self._farewell
        self._wake()

    def on_post(self, wake: Callable[[], object]) -> None:
        """Calls a function from now on whenever there may be something to :meth:`take`."""
        self._wake = wake

    @property
    def is_over(self) -> bool:
        """Whether nothing waits, and nothing will."""
        return self._closed and not self._queues and self._farewell is None

    def _next(self) -> tuple[int, _Queue]:
        """The session whose turn it is, and what waits of it; some session must have any."""
        queues = self._queues
        while True:
            session, queue = next(iter(queues.items()))
            if len(queue.waiting[0]) <= queue.credit or len(queues) == 1:
                return session, queue
            queue.credit += _TURN_BYTES
            queues.move_to_end(session)

    def take(self) -> list[bytes]:
        """Takes what leaves next: an envelope, and those that are small behind it."""
        taken: list[bytes] = []
        nbytes = 0
        while self._queues:
            session, queue = self._next()
            size = len(queue.waiting[0])
            if taken and nbytes + size > _JOINED_BYTES:
                break
            nbytes += size
            queue.credit = max(0, queue.credit - size)
            queue.nbytes -= size
            taken.append(queue.waiting.popleft())
            if not queue.waiting:
                del self._queues[session]
        if not taken and self._closed and self._farewell is not None:
            taken.append(self._farewell)
            self._farewell = None
        return taken

    async def run(self, write: Callable[[bytes], Awaitable[None]]) -> None:
        """Writes what is posted until the outbox is closed and empty.

        What waits meanwhile leaves as one message; what comes alone is not kept waiting.
        """
        posted = asyncio.Event()
        self.on_post(posted.set)
        while not self.is_over:
            while taken := self.take():
                await write(join_envelopes(taken))
            if not self._closed:
                await posted.wait()
                posted.clear()
