"""Says which ranks the others wait for, where a collective does not begin for long.

What waits is a rank's one thread, deep in a library, so another thread looks. It
only reads what the waiting one has recorded, and aborts nothing: a slow rank may
still enter the collective.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from typing import NamedTuple

from disco_client.text import name_workers
from disco_client.threads import ThreadRefused, start_thread
from disco_server.collectives.header_exchange import HeaderExchange
from disco_server.collectives.validation import op_name

__all__ = ["CollectiveWatch", "WaitingRank", "say"]


_LOOKS_A_WAIT = 8


def say(message: str) -> None:
    """Prints a message; the client receives what its workers print."""
    # Only here, as it needs logging, and a rank that has nothing to say is small without.
    from disco_client import output

    output.say(f"disco: {message}")


class WaitingRank(NamedTuple):
    """A rank that has entered a collective and waits for the others.

    Attributes:
        op: The collective, as in `CollectiveSignature`.
        seq: The command.
        members: The ranks of the channel.
        exchange: Carries the headers of the channel.
    """

    op: int
    seq: int
    members: tuple[int, ...]
    exchange: HeaderExchange


_Waiting = tuple[int, int, tuple[int, ...], HeaderExchange]


class CollectiveWatch:
    """Watches one rank's waits.

    Args:
        me: The rank.
        look: Returns what it waits in at this moment, the fields of a `WaitingRank`; None if it
            does not wait.
        slow_s: After how many seconds a wait is reported; 0 for never.
        tell: Called with the report.
    """

    def __init__(
        self,
        me: int,
        look: Callable[[], _Waiting | None],
        slow_s: float,
        tell: Callable[[str], None] = say,
    ) -> None:
        self._me, self._look, self._slow_s, self._tell = me, look, slow_s, tell
        self._over = threading.Event()
        if slow_s:
            watch = threading.Thread(target=self._run, name=f"meeting-watch-{me}", daemon=True)
            # Where the system starts no thread, waits are not reported.
            with contextlib.suppress(ThreadRefused):
                start_thread(watch)

    def close(self) -> None:
        """Ends the watch; idempotent."""
        self._over.set()

    def _run(self) -> None:
        last, looks = None, 0
        while not self._over.wait(self._slow_s / _LOOKS_A_WAIT):
            waiting = self._look()
            # Each wait is an object of its own, so the same one means the same wait.
            looks = looks + 1 if waiting is not None and waiting is last else 0
            last = waiting
            if waiting is not None and looks == _LOOKS_A_WAIT:
                self._report(WaitingRank._make(waiting))

    def _report(self, waiting: WaitingRank) -> None:
        absent = [waiting.members[index] for index in waiting.exchange.absent()]
        present = [member for member in waiting.members if member not in absent]
        # All ranks that wait see the same; a report from one of them is enough.
        if not absent or min(present, default=self._me) != self._me:
            return
        verb = "has" if len(present) == 1 else "have"
        self._tell(
            f"{name_workers(present)} {verb} waited {self._slow_s:g} s in"
            f" {op_name(waiting.op)} of command #{waiting.seq} for {name_workers(absent)}, which"
            " did not enter it yet"
        )
