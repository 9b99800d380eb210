"""A thread that looks each second whether answers can still come for which no thread waits."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from disco_client.answers import Answers
from disco_client.errors import SessionError
from disco_client.reentry import Event
from disco_client.session_end import SessionEnd
from disco_client.threads import start_thread
from disco_client.waiting import LOOK_S, LongWaits

__all__ = ["Liveness"]


class Liveness:
    """Does what a waiting thread does each second; it begins with the first such answer.

    Args:
        answers: The answers to come.
        ending: The thread ends with the session.
        long_waits: Is notified of waits.
    """

    __slots__ = ("_answers", "_ending", "_long_waits", "_some", "_started")

    def __init__(self, answers: Answers, ending: SessionEnd, long_waits: LongWaits) -> None:
        self._answers = answers
        self._ending = ending
        self._long_waits = long_waits
        self._some = Event()
        self._started = False

    def watch(self, alive: Callable[[], None]) -> None:
        """Looks from now on, as an answer is unattended.

        Args:
            alive: Called every second; makes sure that replies can arrive.

        Raises:
            ThreadRefused: The system does not start that thread.
        """
        if not self._started:
            thread = threading.Thread(
                target=self._run, args=(alive,), name="disco-liveness", daemon=True
            )
            start_thread(thread)
        if not self._some.is_set():
            self._some.set()

    def end(self) -> None:
        """Ends the thread, as the session has ended."""
        self._some.set()

    def disown(self) -> None:
        """Begins anew in a forked child, where the thread is missing."""
        self._some = Event()

    def _run(self, alive: Callable[[], None]) -> None:
        if self._started:  # another thread has started one in the same moment
            return
        self._started = True
        watched, since = 0, None
        while self._ending.error is None:
            self._some.clear()
            if not self._answers.unattended:
                if self._ending.error is None:
                    self._some.wait()
                continue
            time.sleep(LOOK_S)
            oldest = self._answers.oldest_unattended
            if not oldest:
                continue
            if oldest != watched:
                watched, since = oldest, None
            try:
                alive()
            except SessionError:
                return  # the session is lost, and all are being told
            since = self._long_waits.look(since)
