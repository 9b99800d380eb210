"""How many commands of a session are under way: what its client sent, and its ranks have not done.

Whoever relays commands holds them for as long as a rank does not take them, so the client waits
at a window, which is part of the protocol. What goes beyond one and a half of it comes from a
client that does not wait.
"""

from __future__ import annotations

from collections import deque
from typing import Final

from disco_client.transport.progress import Progress
from disco_client.wire.limits import WINDOW_BYTES, WINDOW_COMMANDS, commands_in

__all__ = ["CommandWindow"]

_TOLERANCE: Final = 1.5
"""How many windows there may be: commands that a signal handler issues within a call, or that
free registers, do not wait."""


class CommandWindow:
    """Counts what one session has under way, by the envelopes of its batches.

    A batch that is sent again, after a lost connection or to one node alone, counts once.

    Args:
        num_workers: How many ranks there are.
        commands: The window.

    Attributes:
        commands: How many commands are under way, at most.
        nbytes: How large they are, encoded.
    """

    def __init__(self, num_workers: int, commands: int = WINDOW_COMMANDS) -> None:
        self._limit = commands
        self._done = Progress(num_workers, 0)
        self._batches: deque[tuple[int, int, int]] = deque()
        self._newest = 0
        self._forgiven = 0
        self.commands = 0
        self.nbytes = 0

    def receive(self, first_seq: int, last_seq: int, nbytes: int) -> bool:
        """Counts a batch; returns whether its client keeps to the window.

        Args:
            first_seq: The number of its first command.
            last_seq: The number of its last one.
            nbytes: How large it is.
        """
        if last_seq <= self._newest:
            return True
        count = commands_in(max(first_seq, self._newest + 1), last_seq, nbytes)
        self._newest = last_seq
        self._batches.append((last_seq, count, nbytes))
        self.commands += count
        self.nbytes += nbytes
        return (
            self.commands <= self._limit * _TOLERANCE and self.nbytes <= WINDOW_BYTES * _TOLERANCE
        ) or len(self._batches) == 1

    def acknowledge(self, worker: int, seq: int) -> None:
        """Notes that a rank is done with every command up to one."""
        if 0 <= worker < len(self._done.each) and self._done.note(worker, seq):
            while self._batches and self._batches[0][0] <= self._done.slowest:
                _, count, nbytes = self._batches.popleft()
                self.commands -= count
                self.nbytes -= nbytes

    def forgive(self) -> None:
        """Counts nothing of before, as another program goes on with the session.

        It cannot know what the one before left under way. Programs that follow each other faster
        than ranks execute share one window.
        """
        if self._done.slowest < self._forgiven:
            return
        self._forgiven = self._newest
        self._batches.clear()
        self.commands = self.nbytes = 0
