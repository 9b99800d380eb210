"""What a session sends, over one stream after another.

gRPC's own thread pulls what should leave from an iterator. When its stream breaks, that
thread may be waiting for commands, and another one pulls for the next stream; so each
iterator belongs to one stream, and one that is out of date takes nothing more.

A batch is kept until every worker has executed it. What a worker daemon has not received
leaves once more; what it has received twice it drops, so each batch is executed once.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator

from disco_client.transport.base import Events

__all__ = ["Outgoing"]


class Outgoing:
    """Commands in their order, and what the transport says between them."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._events: Events | None = None
        self._held = True
        self._turn = 0
        self._said: deque[bytes] = deque()
        self._unsent: deque[bytes] = deque()
        self._kept: deque[tuple[int, bytes]] = deque()
        self._farewell = b""

    def stream(self, first: bytes) -> Iterator[bytes]:
        """Returns what leaves over a new stream; the former one gets nothing more.

        Commands are held back until :meth:`release`.

        Args:
            first: The envelope that begins the stream.
        """
        return self._run(self._begin(), first)

    def _begin(self) -> int:
        with self._changed:
            self._turn += 1
            self._held = True
            self._said.clear()
            self._unsent.clear()
            self._changed.notify_all()
        if self._events is not None:
            self._events.nudge()
        return self._turn

    def start(self, events: Events, farewell: bytes) -> None:
        """Lets commands leave from now on.

        Args:
            events: Where they come from.
            farewell: What leaves behind the last of them.
        """
        self._events, self._farewell = events, farewell
        self.release()

    def part_with(self, farewell: bytes) -> None:
        """Changes what leaves behind the last command."""
        self._farewell = farewell

    def say(self, raw: bytes) -> None:
        """Sends an envelope ahead of the commands that wait."""
        with self._changed:
            self._said.append(raw)
            self._changed.notify_all()
        if self._events is not None:
            self._events.nudge()

    def release(self) -> None:
        """Lets held commands leave."""
        with self._changed:
            self._held = False
            self._changed.notify_all()
        if self._events is not None:
            self._events.nudge()

    def rewind(self, seq: int) -> None:
        """Sends every batch again that goes beyond a command, as far as it is still kept."""
        with self._changed:
            self._unsent = deque(raw for last, raw in self._kept if last > seq)
        if self._events is not None:
            self._events.nudge()

    def end(self) -> None:
        """Lets the iterator of the present stream end; idempotent."""
        self._begin()

    def _run(self, turn: int, first: bytes) -> Iterator[bytes]:
        yield first
        while True:
            raw = self._await_next(turn)
            if raw is not None:
                yield raw
            elif turn != self._turn:
                break
            elif self._events is not None and not self._events.await_commands():
                yield self._farewell
                return
        if self._events is not None:
            self._events.nudge()  # what woke this iterator may have been meant for the next

    def _await_next(self, turn: int) -> bytes | None:
        """Returns what should leave now; None to wait for commands, or when out of date."""
        with self._changed:
            while turn == self._turn:
                if self._said:
                    return self._said.popleft()
                if not self._held and self._events is not None:
                    return self._take(self._events)
                self._changed.wait()
        return None

    def _take(self, events: Events) -> bytes | None:
        if self._unsent:
            return self._unsent.popleft()
        batch = events.take_batch(True)
        if batch is None:
            return None
        kept, acked = self._kept, events.acked()
        while kept and kept[0][0] <= acked:
            kept.popleft()
        raw = batch.envelope()
        kept.append((batch.last_seq, raw))
        return raw
