"""Waits for what workers print, which comes another way than answers."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING, Self

from disco_client.core import core_of
from disco_client.errors import DiscoError
from disco_client.output import PrintedLines
from disco_client.reentry import Event
from disco_client.waiting import Deadline

if TYPE_CHECKING:
    from disco_client.core import SessionCore
    from disco_client.session import Session

__all__ = ["AwaitedLines", "await_output"]

_READ_S = 2.0
"""How long a worker waits until its node has read what it has printed."""


class AwaitedLines:
    """Counts the lines of each worker that are handed over in a block.

    Args:
        core: The session's.
    """

    def __init__(self, core: SessionCore) -> None:
        self._printed = core.part(PrintedLines)
        self._seen: Counter[int] = Counter()
        self._more = Event()

    @property
    def shown(self) -> bool:
        """Whether anything is done with lines."""
        return self._printed.shown

    def __enter__(self) -> Self:
        self._printed.on_lines = self._note
        return self

    def __exit__(self, *_: object) -> None:
        self._printed.on_lines = lambda _worker, _count: None

    def _note(self, worker: int, count: int) -> None:
        self._seen[worker] += count  # one thread at a time hands over
        self._more.set()

    def wait(self, printed: Mapping[int, int], seconds: float) -> None:
        """Waits until lines are handed over; returns at once where nothing is done with lines.

        Args:
            printed: How many lines each worker has printed in the block.
            seconds: How long to wait at most, as some may be dropped on their way.
        """
        deadline = Deadline(seconds)
        while self.shown and (left := deadline.remaining()):
            self._more.clear()
            if all(self._seen[worker] >= count for worker, count in printed.items()):
                return
            self._more.wait(left)


def await_output(session: Session, seconds: float | None) -> None:
    """Waits until what all workers have printed is here, which a session's end may cut off.

    Errors of the program's commands are left to its own scopes. Of a session that has ended,
    nothing is awaited.

    Args:
        session: The session.
        seconds: How long to wait for commands that are under way; None for as long as they take.
    """
    with contextlib.suppress(DiscoError, TimeoutError), session.scope():
        core_of(session).call_builtin("runtime.disco._await_reader", _READ_S).get_all(seconds)
