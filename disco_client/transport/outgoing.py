"""What a session sends, over one stream after another.

A thread of the carrier takes what there is to send, or a thread of the program that waits for
an answer. When a stream breaks, its thread may be waiting for commands, and another one takes
for the next stream; so what is taken is taken for one stream, and an outdated one gets nothing
more.

The session's log keeps what was sent (:mod:`~disco_client.transport.sent_log`). What a
worker daemon has not received is sent again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator

from disco_client.locks import make_lock
from disco_client.reentry import Condition, owned
from disco_client.transport.base import ClientEnd

__all__ = ["Outgoing", "OutgoingTurn"]


class Outgoing:
    """Commands in their order, and messages of the transport between them.

    Attributes:
        entered: Says whether the calling thread is in the middle of taking one.
    """

    def __init__(self) -> None:
        self._lock = make_lock("stream")
        self._changed = Condition(self._lock)
        self.entered: Callable[[], bool] = owned(self._lock)
        self._client: ClientEnd | None = None
        self._held = True
        self._turn = 0
        self._said: deque[bytes] = deque()
        self._farewell = b""
        self._parted = False

    def stream(self, first: bytes) -> OutgoingTurn:
        """Returns the envelopes for a new stream; the former one gets nothing more.

        Commands are held back until :meth:`release`.

        Args:
            first: The envelope that begins the stream.
        """
        return OutgoingTurn(self, self._begin(), first)

    def _begin(self) -> int:
        with self._changed:
            self._turn += 1
            self._held = True
            self._parted = False
            self._said.clear()
            self._changed.notify_all()
        if self._client is not None:
            self._client.nudge()
        return self._turn

    def start(self, client: ClientEnd, farewell: bytes) -> None:
        """Starts sending commands.

        Args:
            client: The source of the commands.
            farewell: The envelope to send after the last of them.
        """
        self._client, self._farewell = client, farewell
        self.release()

    def part_with(self, farewell: bytes) -> None:
        """Changes the envelope to send after the last command."""
        self._farewell = farewell

    def say(self, raw: bytes) -> None:
        """Sends an envelope ahead of waiting commands."""
        with self._lock:
            self._said.append(raw)
            self._changed.notify_all()
        if self._client is not None:
            self._client.nudge()

    def release(self) -> None:
        """Sends the commands that were held back."""
        with self._changed:
            self._held = False
            self._changed.notify_all()
        if self._client is not None:
            self._client.nudge()

    def rewind(self, seq: int, worker: int | None = None) -> None:
        """Sends every batch again that goes beyond a command, as far as it is still kept.

        Args:
            seq: The command.
            worker: The worker whose node alone lacks them; None for all nodes.
        """
        if self._client is not None:
            self._client.rewind(seq, worker)
            self._client.nudge()

    def end(self) -> None:
        """Lets the iterator of the present stream end; idempotent."""
        self._begin()

    def nudge(self) -> None:
        """Wakes the thread that waits for commands."""
        if self._client is not None:
            self._client.nudge()

    def await_some(self, turn: int) -> bool:
        """Waits until there may be something to take; False once a stream gets nothing more."""
        with self._changed:
            self._changed.wait_for(lambda: turn != self._turn or self._said or not self._held)
            if turn != self._turn:
                return False
            if self._said or self._client is None:
                return True
        if self._client.await_commands():
            return True
        with self._changed:
            if turn != self._turn or self._parted:
                return False
            self._parted = True
            self._said.append(self._farewell)
            return True

    def take(self, turn: int) -> bytes | None:
        """Returns the next envelope of a stream, the same until it left; None without one."""
        with self._lock:
            if turn != self._turn:
                return None
            if self._said:
                return self._said[0]
            return None if self._held or self._client is None else self._client.next_envelope()

    def left(self, turn: int, raw: bytes) -> None:
        """Notes that an envelope that was taken is on its way."""
        with self._lock:
            if turn != self._turn:
                return
            if self._said and self._said[0] is raw:
                self._said.popleft()
            elif self._client is not None:
                self._client.envelope_left()


class OutgoingTurn:
    """What is sent over one stream; see :class:`~disco_client.transport.carriers.Messages`.

    Args:
        outgoing: What the session sends.
        turn: The number of this stream.
        first: The envelope that begins it.
    """

    def __init__(self, outgoing: Outgoing, turn: int, first: bytes) -> None:
        self._outgoing = outgoing
        self._turn = turn
        self._first: bytes | None = first
        self.nudge: Callable[[], None] = outgoing.nudge

    def wait(self) -> bool:
        """Waits until there may be something to take; False once nothing will follow."""
        if self._first is not None or self._outgoing.await_some(self._turn):
            return True
        self.nudge()  # what woke this thread may have been meant for the next stream's
        return False

    def take(self) -> bytes | None:
        """Returns the next envelope, the same until it left; None where there is none now."""
        return self._outgoing.take(self._turn) if self._first is None else self._first

    def left(self, raw: bytes) -> None:
        """Notes that an envelope that was taken is on its way."""
        if self._first is None:
            self._outgoing.left(self._turn, raw)
        else:
            self._first = None

    def __iter__(self) -> Iterator[bytes]:
        while self.wait():
            while (raw := self.take()) is not None:
                self.left(raw)
                yield raw
