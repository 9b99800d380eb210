"""How far the ranks of one session on one machine are with opening their communicator.

Ranks begin it when their programs do, which may be much later than their peers; that
is waited for. But once all of them have begun it takes a moment, and a rank that is not
done with it after the limit never will be.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Mapping

from disco_client.text import name_workers
from disco_server.settings import INIT_TIMEOUT_S

__all__ = ["Opening"]


class Opening:
    """The ranks of one session on one machine, and the time limits that run.

    Args:
        limit_s: How long it may take once all have begun; 0 for any time.
    """

    def __init__(self, limit_s: float) -> None:
        self._limit_s = limit_s
        self._begun: Counter[int] = Counter()
        self._done: Counter[int] = Counter()
        self._started = 0
        self._ends: dict[int, float] = {}

    @property
    def ends_at(self) -> float:
        """When the first limit ends; infinite while none runs."""
        return min(self._ends.values(), default=math.inf)

    @property
    def begun(self) -> Mapping[int, int]:
        """How many times each rank here has begun."""
        return self._begun

    def begins(self, worker: int) -> int:
        """Notes that a rank begins; returns how many times it has."""
        self._begun[worker] += 1
        return self._begun[worker]

    def done(self, worker: int) -> None:
        """Notes that a rank is done, however it went."""
        self._done[worker] += 1

    def all_begin(self, attempt: int, now: float) -> None:
        """Notes that every rank of the session has begun so many times, perhaps again."""
        if self._limit_s and attempt > self._started:
            self._started = attempt
            self._ends[attempt] = now + self._limit_s

    def ended(self, now: float) -> list[int]:
        """The attempts whose limits are over, once each."""
        over = [attempt for attempt, end in self._ends.items() if end <= now]
        for attempt in over:
            del self._ends[attempt]
        return over

    def missing(self, attempt: int, here: Collection[int]) -> list[int]:
        """Which of some ranks are not done with an attempt."""
        return sorted(worker for worker in here if self._done[worker] < attempt)

    def blame(self, missing: Collection[int], stopped: Collection[int]) -> tuple[list[int], str]:
        """Decides which ranks end because the others wait for them.

        Args:
            missing: The ranks that are not done, and wait for nobody.
            stopped: Those whose processes do not run at all.

        Returns:
            The ranks, and why, as text that follows a rank's name.
        """
        late = sorted(missing)
        idle = [worker for worker in late if worker in stopped]
        if not late:
            return [], ""
        who = f"; {name_workers(idle)} did not run at all (stopped)" if idle else ""
        are = f"{'is' if len(late) == 1 else 'are'} {name_workers(late)}"
        why = (
            f"was ended because the ranks did not meet within {self._limit_s:g} s "
            f"({INIT_TIMEOUT_S.name}) to open their communicator: not there {are}{who}"
        )
        return idle or late, why
