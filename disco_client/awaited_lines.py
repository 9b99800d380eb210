"""Waits for what workers print, which comes another way than answers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING, Self

from disco_client.output import PrintedLines
from disco_client.reentry import Event
from disco_client.waiting import Deadline

if TYPE_CHECKING:
    from disco_client.core import SessionCore

__all__ = ["AwaitedLines"]


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
