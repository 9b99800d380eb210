"""The sent part of a session's log: encoded once, kept as long as it may be sent again."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

from disco_client.transport.base import OutgoingBatch
from disco_client.wire.codec import EnvelopeKind, envelope

__all__ = ["SentBatch", "SentLog"]


@dataclass(frozen=True, slots=True)
class SentBatch:
    """Commands that are sent together, encoded.

    Attributes:
        first_seq, last_seq: The numbers of the first and the last of them.
        payload: They themselves.
        in_column: Whether that has a column of plain calls.
    """

    first_seq: int
    last_seq: int
    payload: bytes
    in_column: bool = False


class SentLog:
    """What a session has sent to its workers, over however many connections.

    A batch stays here until every worker has executed it, because the connection may lose
    it: worker daemons drop duplicates, so each batch is executed once. Then the
    retention policy gets it. This holds for its own batches and for those of :meth:`add`.

    Args:
        session: The session's id, written into each envelope.
        take_batch: Returns the program's next commands, if there are any; gets whether
            freed registers alone are reason enough. It returns the same until ``left``.
        left: Gets the number of the last command of a batch that is on its way.
        acked: Returns the newest command that every worker has executed.
        retain: The retention policy: gets each batch, in order, that needs no connection
            any more. The default forgets it.
        lock: Guards the log, and is held while ``retain`` is called; reentrant where its
            owner holds it. The default is one of its own.
    """

    def __init__(
        self,
        session: int,
        take_batch: Callable[[bool], OutgoingBatch | None],
        left: Callable[[int], None],
        acked: Callable[[], int],
        retain: Callable[[SentBatch], None] = lambda _batch: None,
        lock: AbstractContextManager[Any] | None = None,
    ) -> None:
        self._session = session
        self._take_batch = take_batch
        self._left = left
        self._acked = acked
        self._retain = retain
        self._lock = lock or threading.RLock()
        self._in_flight: deque[SentBatch] = deque()
        # By the worker whose node alone gets them, and None for all nodes.
        self._unsent: dict[int | None, deque[SentBatch]] = {}
        self._sending: tuple[int | None, SentBatch] | None = None

    @property
    def num_unsent(self) -> int:
        """How many batches are sent before the program's next one."""
        return sum(map(len, self._unsent.values()))

    def send(self) -> bytes | None:
        """Returns the next envelope to send, the same until :meth:`sent`, or None; never waits."""
        with self._lock:
            worker, batch = self._look_unsent() if self._unsent else (None, self._take())
            if batch is None:
                return None
            self._sending = worker, batch
        return envelope(
            EnvelopeKind.BATCH,
            batch.payload,
            session=self._session,
            worker=worker,
            first_seq=batch.first_seq,
            last_seq=batch.last_seq,
        )

    def sent(self) -> None:
        """Notes that the envelope that :meth:`send` returned is on its way."""
        with self._lock:
            if self._sending is None:
                return
            worker, batch = self._sending
            batches = self._unsent.get(worker)
            if batches and batches[0] is batch:
                batches.popleft()
            self._left(batch.last_seq)
            if batches is not None and not batches:
                self._unsent.pop(worker, None)

    def _look_unsent(self) -> tuple[int | None, SentBatch]:
        worker, batches = next(iter(self._unsent.items()))
        return worker, batches[0]

    def _take(self) -> SentBatch | None:
        taken = self._take_batch(True)
        if taken is None:
            return None
        self._settle()
        if self._in_flight and self._in_flight[-1].last_seq == taken.last_seq:
            return self._in_flight[-1]  # it was taken before, and has not left
        batch = SentBatch(taken.first_seq, taken.last_seq, taken.payload(), bool(taken.calls))
        self._in_flight.append(batch)
        return batch

    def add(self, batch: SentBatch) -> None:
        """Adds a batch that does not come from the program."""
        with self._lock:
            self._in_flight.append(batch)
            self._unsent.setdefault(None, deque()).append(batch)

    def rewind(self, seq: int, worker: int | None = None) -> None:
        """Sends every batch again that goes beyond a command, as far as it is still kept.

        Args:
            seq: The command.
            worker: The worker whose node alone lacks them; None for all nodes.
        """
        with self._lock:
            missing = deque(batch for batch in self._in_flight if batch.last_seq > seq)
            if worker is None:
                self._unsent.clear()
            if missing:
                self._unsent[worker] = missing

    def settle(self) -> None:
        """Hands what every worker has executed to the retention policy."""
        with self._lock:
            self._settle()

    def _settle(self) -> None:
        in_flight, acked = self._in_flight, self._acked()
        while in_flight and in_flight[0].last_seq <= acked:
            self._retain(in_flight.popleft())

    def retain_all(self) -> None:
        """Hands everything to the retention policy, which gets the rest once more later."""
        with self._lock:
            for batch in self._in_flight:
                self._retain(batch)
