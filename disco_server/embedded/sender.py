"""Delivers a session's commands, from whichever thread is free."""

from __future__ import annotations

import threading
from collections.abc import Callable

from disco_client.locks import make_lock
from disco_client.reentry import owned
from disco_client.threads import start_thread
from disco_client.transport.base import ClientEnd
from disco_client.wire.batch import OutgoingBatch

__all__ = ["Sender"]


class Sender:
    """Takes batches from a session's log and delivers them in order.

    A thread that waits for an answer calls :meth:`flush` itself; a thread of the sender
    does it for calls that no thread waits for. Where an exception interrupts a delivery, the
    next one repeats it.

    Args:
        client: The client's end of the session.
        deliver: Takes a batch, and the worker that is waited for, if there is one, which
            should get it first; must not block. Workers drop one that they have had.
        lock: A reentrant lock that is held meanwhile; by default one of its own.

    Attributes:
        delivered: The newest command that was delivered.
        entered: Says whether the calling thread is in the middle of a delivery.

    Raises:
        ThreadRefused: The system starts no thread for it.
    """

    def __init__(
        self,
        client: ClientEnd,
        deliver: Callable[[OutgoingBatch, int | None], None],
        lock: threading.RLock | None = None,
    ) -> None:
        self._client = client
        self._deliver = deliver
        self._lock = make_lock("connection") if lock is None else lock
        self.entered: Callable[[], bool] = owned(self._lock)
        self.delivered = 0
        self._thread = threading.Thread(target=self._run, name="disco-sender", daemon=True)
        start_thread(self._thread, serves=True)

    def flush(self, asked: int | None = None, *, kills: bool = False) -> int:
        """Delivers everything that was issued.

        Args:
            asked: The worker that the caller waits for.
            kills: Whether to say which registers are free where no command does.

        Returns:
            The newest command that was delivered here; 0 where there was none to deliver.
        """
        if self.entered():  # by a handler or a finalizer in the middle of a delivery
            self._client.nudge()
            return 0
        with self._lock:
            return self._flush(asked, kills)

    def _flush(self, asked: int | None, kills: bool) -> int:
        newest = 0
        while (batch := self._client.next_batch(kills)) is not None:
            self._deliver(batch, asked)
            self.delivered = newest = batch.last_seq
            self._client.batch_left(newest)
        return newest

    def _run(self) -> None:
        while self._client.await_commands():
            self.flush(kills=True)

    def join(self, timeout: float) -> None:
        """Waits until everything was delivered; the log has been closed before."""
        if self._thread is not threading.current_thread():
            self._thread.join(timeout)
