"""Hands a session's commands on, from whichever thread has the time."""

from __future__ import annotations

import threading
from collections.abc import Callable

from disco_client.transport.base import Events, OutgoingBatch

__all__ = ["Sender"]


class Sender:
    """Takes batches from a session's log and delivers them in order.

    A thread that waits for an answer calls :meth:`flush` itself; a thread of its
    own does it for calls that nobody waits for.

    Args:
        events: The session's.
        deliver: Takes a batch, and the worker that is waited for, which should get it
            first; must not block.

    Attributes:
        delivered: The newest command that was.
    """

    def __init__(self, events: Events, deliver: Callable[[OutgoingBatch, int], None]) -> None:
        self._take = events.take_batch
        self._await = events.await_commands
        self._deliver = deliver
        self._lock = threading.Lock()
        self.delivered = 0
        self._thread = threading.Thread(target=self._run, name="disco-sender", daemon=True)
        self._thread.start()

    def flush(self, first: int = 0, *, kills: bool = False) -> None:
        """Delivers everything that was issued.

        Args:
            first: The worker that should get it first.
            kills: Whether to say which registers are free where no command does.
        """
        with self._lock:
            while (batch := self._take(kills)) is not None:
                self._deliver(batch, first)
                self.delivered = batch.last_seq

    def _run(self) -> None:
        while self._await():
            self.flush(kills=True)

    def join(self, timeout: float) -> None:
        """Waits until everything has left; the log has been closed before."""
        if self._thread is not threading.current_thread():
            self._thread.join(timeout)
