"""Sends a journal to other workers than before."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from itertools import chain

from disco_client.errors import SessionError, SessionLost
from disco_client.recovery.base import Incarnation
from disco_client.recovery.journal import Journal, Segment, Upload, split_at_waits
from disco_client.transport.base import ClientEnd

__all__ = ["NONE_YET", "KnownFailures", "Replayer"]


@dataclass(slots=True)
class KnownFailures:
    """Known failures, so that they are not reported again when they occur again.

    Attributes:
        told: The commands that failed, each with the worker.
        deadly: The command without which a replay is impossible; 0 for none.
        why_dead: Its error message.
    """

    told: set[tuple[int, int]] = field(default_factory=set[tuple[int, int]])
    deadly: int = 0
    why_dead: str = ""


# Replays a journal on other workers than before.


_AHEAD_BATCHES = 8

_AHEAD_COMMANDS = 64 * 1024
"""How much may be in flight before the slowest worker has executed it."""

_REPLAY_LOOK_S = 1.0

NONE_YET = -1
"""The incarnation of an array that the replay sends to the next workers that it passes."""


class Replayer:
    """Sends a journal to the workers of a new incarnation, in its order.

    Args:
        incarnation: Of the new workers.
        journal: What the former workers had been sent; it may grow meanwhile.
        client: The session's.
        failures: What failed so far.
        changed: Its lock guards all of these.
    """

    def __init__(
        self,
        incarnation: Incarnation,
        journal: Journal,
        client: ClientEnd,
        failures: KnownFailures,
        changed: threading.Condition,
    ) -> None:
        self._incarnation = incarnation
        self._journal = journal
        self._client = client
        self._failures = failures
        self._changed = changed
        self._last = 0

    def run(self, done: Callable[[], None]) -> SessionError | None:
        """Sends everything; returns the error if it could not, or None.

        Args:
            done: Called with the lock held when the workers have been sent all that the
                former ones were; from then on they get what the program issues.
        """
        at = 0
        while True:
            with self._changed:
                end = self._end()
                if end is not None:
                    return end
                if at < len(self._journal.segments):
                    segment, late = self._journal.segments[at], []
                else:
                    segment, late = None, self._left_over()
                if segment is None and not late:
                    self._incarnation.target = self._last
                    self._incarnation.holding = False
                    done()
                    break
            if segment is not None:
                self._send(segment)
                at += 1
            self._bring(late)
        self._client.mark()
        self._client.nudge()
        return None

    def _end(self) -> SessionError | None:
        """The error for which the replay cannot continue."""
        if self._incarnation.error is not None:
            return self._incarnation.error
        if self._failures.why_dead:
            return SessionLost(
                "the session could not go on with other workers, because they cannot read its"
                f" checkpoint: {self._failures.why_dead}"
            )
        return None

    def _send(self, segment: Segment) -> None:
        """Sends some commands, and the arrays that belong to them, at the workers' pace."""
        incarnation = self._incarnation
        for piece in split_at_waits(segment, self._client.is_open, self._client.acked):
            with self._changed:
                incarnation.sent.add(piece.encode())
                self._last = piece.last
                self._changed.notify_all()
            for ticket, seq in piece.tickets.items():
                self._bring(self._take(ticket), seq)
            if piece.awaited:
                self._await(lambda ahead=piece: incarnation.has_done(ahead.last, ahead.by))
            else:
                self._await(lambda ahead=piece: ahead.last - incarnation.acked < _AHEAD_COMMANDS)
            if incarnation.error is not None:
                return
        self._await(lambda: incarnation.sent.num_unsent < _AHEAD_BATCHES)

    def _take(self, ticket: int) -> list[Upload]:
        """The parts of an array that these workers lack; a later upload sends its own part."""
        with self._changed:
            self._incarnation.passed.add(ticket)
            return self._lacking(self._journal.uploads.get(ticket, ()))

    def _left_over(self) -> list[Upload]:
        """Arrays of commands that the program has issued, and that have not been sent."""
        return self._lacking(chain(*self._journal.uploads.values()))

    def _lacking(self, uploads: Iterable[Upload]) -> list[Upload]:
        """Those that these workers do not get yet, and get from here; the lock is held."""
        number = self._incarnation.number
        found = [each for each in uploads if each.incarnation != number]
        for each in found:
            each.incarnation, each.replayed = number, True
        return found

    def _bring(self, uploads: list[Upload], seq: int = 0) -> None:
        """Sends arrays to workers.

        The log has marks among them, which a caller awaits, so not too much is in flight.

        Args:
            uploads: The arrays.
            seq: The number of their command; 0 where no worker has been sent it before.
        """
        for each in uploads:
            if self._incarnation.error is not None:
                return
            try:
                self._send_array(each, failed=(seq, each.worker) in self._failures.told)
            except SessionError:
                self._await(lambda: False, 2 * _REPLAY_LOOK_S)
                if self._incarnation.error is None:
                    raise

    def _send_array(self, upload: Upload, *, failed: bool) -> None:
        """Sends an array to its worker, where the former one had it as well.

        That may have had all of an array that was given up. Only its failure shows that it had not.
        """
        transport, data, why = self._incarnation.transport, upload.data, upload.given_up
        if data is None or (why is not None and failed):
            transport.give_up([(upload.ticket, upload.worker)], why or "")
        else:
            transport.upload(upload.ticket, upload.worker, memoryview(data))

    def _await(self, ready: Callable[[], bool], limit: float | None = None) -> None:
        """Waits until a condition holds, or the workers are lost."""
        waited = 0.0
        while limit is None or waited < limit:
            with self._changed:
                over = self._incarnation.error is not None or bool(self._failures.why_dead)
                if over or ready() or (self._changed.wait(_REPLAY_LOOK_S) and ready()):
                    return
            waited += _REPLAY_LOOK_S
            self._incarnation.transport.check_alive()
