"""The sent part of a session's log: encoded once, kept as long as it may be sent again."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, NamedTuple

from disco_client.locks import make_lock
from disco_client.wire.batch import OutgoingBatch, SentBatch
from disco_client.wire.limits import WINDOW_BYTES, WINDOW_COMMANDS, commands_in

__all__ = ["SentLog"]


class _InFlight(NamedTuple):
    """A batch that not every worker has executed, and its place among those that were in flight.

    One append makes all of this part of the log, so that an exception leaves nothing half done.

    Attributes:
        batch: The batch.
        commands, nbytes: How many commands and bytes were before it.
    """

    batch: SentBatch
    commands: int
    nbytes: int

    @property
    def after(self) -> tuple[int, int]:
        """How many commands and bytes are before the next one."""
        batch, nbytes = self.batch, len(self.batch.payload)
        count = commands_in(batch.first_seq, batch.last_seq, nbytes)
        return self.commands + count, self.nbytes + nbytes


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
        window: How many commands may be under way, whoever issued them.
        on_held: Called when a batch has to wait for that. From then on its sender must be
            woken each time ``acked`` grows, until :meth:`is_held` is false.
    """

    def __init__(
        self,
        session: int,
        take_batch: Callable[[bool], OutgoingBatch | None],
        left: Callable[[int], None],
        acked: Callable[[], int],
        retain: Callable[[SentBatch], None] = lambda _batch: None,
        lock: AbstractContextManager[Any] | None = None,
        *,
        window: int = WINDOW_COMMANDS,
        on_held: Callable[[], object] = lambda: None,
    ) -> None:
        self._session = session
        self._take_batch = take_batch
        self._left = left
        self._acked = acked
        self._retain = retain
        self._lock = lock or make_lock("sent")
        self._window = window
        self._on_held = on_held
        self._held: _InFlight | None = None
        self._in_flight: deque[_InFlight] = deque()
        # By the worker whose node alone gets them, and None for all nodes.
        self._unsent: dict[int | None, deque[_InFlight]] = {}
        self._sending: tuple[int | None, _InFlight] | None = None

    @property
    def num_unsent(self) -> int:
        """How many batches are sent before the program's next one."""
        return sum(map(len, self._unsent.values()))

    def send(self) -> bytes | None:
        """Returns the next envelope to send, the same until :meth:`sent`, or None; never waits."""
        with self._lock:
            worker, found = self._look_unsent() if self._unsent else (None, self._take())
            self._held = None
            if found is None:
                return None
            if not self._fits(found):
                self._held = found
                self._on_held()
                if self.is_held():  # asked again, as nobody was woken by what came before
                    return None
            self._sending = worker, found
            batch = found.batch
        return batch.envelope(self._session, worker)

    def sent(self) -> None:
        """Notes that the envelope that :meth:`send` returned is on its way."""
        with self._lock:
            if self._sending is None:
                return
            worker, sending = self._sending
            batches = self._unsent.get(worker)
            if batches and batches[0] is sending:
                batches.popleft()
            self._left(sending.batch.last_seq)
            if batches is not None and not batches:
                self._unsent.pop(worker, None)

    @property
    def holds(self) -> bool:
        """Whether a batch was held back when it was last looked for one to send."""
        return self._held is not None

    def is_held(self) -> bool:
        """Whether the next batch has to wait until workers have executed more."""
        with self._lock:
            return self._held is not None and not self._fits(self._held)

    def _fits(self, found: _InFlight) -> bool:
        """Whether a batch keeps to the window, with those before it that are not executed.

        Ranks say how far they are every 1,024 commands, and every mebibyte of them. So at most a
        quarter of the window is in use at some time, and then any batch may leave.
        """
        self._settle()
        if not self._in_flight or found.batch.last_seq <= self._in_flight[0].batch.last_seq:
            return True
        oldest, (commands, nbytes) = self._in_flight[0], found.after
        return _is_room(
            found.commands - oldest.commands, commands - oldest.commands, self._window
        ) and _is_room(found.nbytes - oldest.nbytes, nbytes - oldest.nbytes, WINDOW_BYTES)

    def _append(self, batch: SentBatch) -> _InFlight:
        in_flight = self._in_flight
        added = _InFlight(batch, *(in_flight[-1].after if in_flight else (0, 0)))
        in_flight.append(added)
        return added

    def _look_unsent(self) -> tuple[int | None, _InFlight]:
        worker, batches = next(iter(self._unsent.items()))
        return worker, batches[0]

    def _take(self) -> _InFlight | None:
        taken = self._take_batch(True)
        if taken is None:
            return None
        self._settle()
        if self._in_flight and self._in_flight[-1].batch.last_seq == taken.last_seq:
            return self._in_flight[-1]  # it was taken before, and has not left
        return self._append(taken.encode())

    def add(self, batch: SentBatch) -> None:
        """Adds a batch that does not come from the program."""
        with self._lock:
            self._unsent.setdefault(None, deque()).append(self._append(batch))

    def rewind(self, seq: int, worker: int | None = None) -> None:
        """Sends every batch again that goes beyond a command, as far as it is still kept.

        Args:
            seq: The command.
            worker: The worker whose node alone lacks them; None for all nodes.
        """
        with self._lock:
            missing = deque(each for each in self._in_flight if each.batch.last_seq > seq)
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
        while in_flight and in_flight[0].batch.last_seq <= acked:
            self._retain(in_flight.popleft().batch)

    def retain_all(self) -> None:
        """Hands everything to the retention policy, which gets the rest once more later."""
        with self._lock:
            for each in self._in_flight:
                self._retain(each.batch)


def _is_room(before: int, after: int, window: int) -> bool:
    return before <= window // 4 or after <= window
