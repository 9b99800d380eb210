"""Does what is in a journal once more, with other workers than before."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable

from disco_client.errors import SessionError, SessionLost
from disco_client.transport.base import Events
from disco_client.transport.journal import Journal, Segment, Upload, blank_questions
from disco_client.transport.life import Failures, Life

__all__ = ["Again"]

_AHEAD_BYTES = 8 << 20
_AHEAD_COMMANDS = 64 * 1024
_AHEAD_ARRAY_BYTES = 256 << 20
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
        self._beside: deque[tuple[int, int]] = deque()
        self._beside_bytes = 0

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
            self._bring(0, late)
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
        """Sends some commands, when there is room, and the arrays that belong to them."""
        life = self._life
        batch, tickets = blank_questions(segment, self._session, self._events.is_open)
        with self._changed:
            life.queue.append(batch)
            self._last = segment.last
            self._changed.notify_all()
        for seq, ticket in tickets:
            with self._changed:
                life.passed.add(ticket)  # a part that comes later is brought by who has it
                uploads = self._journal.uploads.get(ticket, ())
                uploads = [each for each in uploads if each.life != life.number]
                for each in uploads:
                    each.life = life.number
            self._bring(seq, uploads)
        self._await(
            lambda: len(life.queue) * len(segment.payload) < _AHEAD_BYTES
            and segment.last - life.acked < _AHEAD_COMMANDS
        )

    def _left_over(self) -> list[Upload]:
        """Arrays of commands that the program has issued, and that have not left."""
        number = self._life.number
        left = [each for found in self._journal.uploads.values() for each in found]
        left = [each for each in left if each.life != number]
        for each in left:
            each.life = number
        return left

    def _bring(self, seq: int, uploads: list[Upload]) -> None:
        """Brings arrays to workers, where there is room."""
        for each in uploads:
            self._await(lambda: self._count_beside() <= _AHEAD_ARRAY_BYTES)
            if self._life.error is not None:
                return
            self._beside.append((seq, len(each.data)))
            self._beside_bytes += len(each.data)
            try:
                self._life.transport.upload(each.ticket, each.worker, memoryview(each.data))
            except SessionError as error:
                self._await(lambda: False, 2 * _LOOK_S)
                if self._life.error is None:
                    raise error from None
                return

    def _count_beside(self) -> int:
        """How many bytes of arrays may still wait for their commands."""
        while self._beside and self._beside[0][0] <= self._life.acked:
            self._beside_bytes -= self._beside.popleft()[1]
        return self._beside_bytes

    def _await(self, ready: Callable[[], bool], limit: float | None = None) -> None:
        """Waits until something is so, or the workers are lost."""
        waited = 0.0
        while limit is None or waited < limit:
            with self._changed:
                over = self._life.error is not None or bool(self._failures.why_dead)
                if over or ready() or self._changed.wait(_LOOK_S) and ready():
                    return
            waited += _LOOK_S
            self._life.transport.check_alive()
