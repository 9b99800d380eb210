"""Does what is in a journal once more, with other workers than before."""

from __future__ import annotations

import threading
from collections.abc import Callable

from disco_client.errors import SessionError, SessionLost
from disco_client.transport.base import Events
from disco_client.transport.journal import Journal, Segment, Upload, cut_in_pieces
from disco_client.transport.life import Failures, Life

__all__ = ["Again"]

_AHEAD_BATCHES = 8
_AHEAD_COMMANDS = 64 * 1024
"""How much may be under way before the slowest worker has executed it."""

_LOOK_S = 1.0


class Again:
    """Sends a journal to the workers of a new life, in its order.

    Args:
        life: Of the new workers.
        journal: What the ones before had been sent; it may grow meanwhile.
        events: The session's.
        failures: What failed so far.
        changed: Its lock guards all of these.
    """

    def __init__(
        self,
        life: Life,
        journal: Journal,
        events: Events,
        failures: Failures,
        changed: threading.Condition,
    ) -> None:
        self._life = life
        self._journal = journal
        self._events = events
        self._failures = failures
        self._changed = changed
        self._session = life.transport.welcome.session
        self._last = 0

    def run(self, done: Callable[[], None]) -> SessionError | None:
        """Sends everything; returns why it could not, or None.

        Args:
            done: Called with the lock held when the workers are where those before
                them were; from then on they get what the program issues.
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
                    self._life.target = self._last
                    self._life.replaying = False
                    done()
                    break
            if segment is not None:
                self._send(segment)
                at += 1
            self._bring(late)
        self._events.mark()
        self._events.nudge()
        return None

    def _end(self) -> SessionError | None:
        """Why this cannot go on."""
        if self._life.error is not None:
            return self._life.error
        if self._failures.why_dead:
            return SessionLost(
                "the session could not go on with other workers, because they cannot read its"
                f" checkpoint: {self._failures.why_dead}"
            )
        return None

    def _send(self, segment: Segment) -> None:
        """Sends some commands, and the arrays that belong to them, as workers take them."""
        life = self._life
        for piece in cut_in_pieces(segment, self._events.is_open):
            with self._changed:
                life.queue.append(piece.leave(self._session))
                self._last = piece.last
                self._changed.notify_all()
            for ticket in piece.tickets:
                self._bring(self._take(ticket))
            if piece.awaited:
                self._await(lambda ahead=piece: life.has_done(ahead.last, ahead.by))
            else:
                self._await(lambda ahead=piece: ahead.last - life.acked < _AHEAD_COMMANDS)
            if life.error is not None:
                return
        self._await(lambda: len(life.queue) < _AHEAD_BATCHES)

    def _take(self, ticket: int) -> list[Upload]:
        """The parts of an array that these workers do not have; who comes later brings his."""
        number = self._life.number
        with self._changed:
            self._life.passed.add(ticket)
            found = [each for each in self._journal.uploads.get(ticket, ()) if each.life != number]
            for each in found:
                each.life = number
        return found

    def _left_over(self) -> list[Upload]:
        """Arrays of commands that the program has issued, and that have not left."""
        number = self._life.number
        left = [each for found in self._journal.uploads.values() for each in found]
        left = [each for each in left if each.life != number]
        for each in left:
            each.life = number
        return left

    def _bring(self, uploads: list[Upload]) -> None:
        """Brings arrays to workers.

        The log has marks among them, which somebody waits for, so not too much is under way.
        """
        for each in uploads:
            if self._life.error is not None:
                return
            try:
                self._life.transport.upload(each.ticket, each.worker, memoryview(each.data))
            except SessionError:
                self._await(lambda: False, 2 * _LOOK_S)
                if self._life.error is None:
                    raise

    def _await(self, ready: Callable[[], bool], limit: float | None = None) -> None:
        """Waits until something is so, or the workers are lost."""
        waited = 0.0
        while limit is None or waited < limit:
            with self._changed:
                over = self._life.error is not None or bool(self._failures.why_dead)
                if over or ready() or (self._changed.wait(_LOOK_S) and ready()):
                    return
            waited += _LOOK_S
            self._life.transport.check_alive()
