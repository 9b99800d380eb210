"""How far a session's ranks are with opening their communicator, and which of them hang in it.

Ranks begin it when their programs do, which may be much later than their peers; that
is waited for. But once all of them have begun it takes a moment, and a rank that is not
done with it after the limit never will be. No I/O but a look at /proc.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping
from pathlib import Path

from disco_server.collectives.types import name_workers
from disco_server.settings import INIT_TIMEOUT_S

__all__ = ["CommunicatorStartup"]


class CommunicatorStartup:
    """The ranks of one session, as one node or program tracks them.

    Args:
        num_workers: How many ranks the session has.
        limit_s: How long it may take once all have begun.
        waiting: Which ranks of this node wait for others, and are not to blame.
        pid: The process of a rank of this node.
    """

    def __init__(
        self,
        num_workers: int,
        limit_s: float,
        waiting: Callable[[], Collection[int]],
        pid: Callable[[int], int],
    ) -> None:
        self._num_workers = num_workers
        self.limit_s = limit_s
        self._waiting = waiting
        self._pid = pid
        self._begun: Counter[int] = Counter()
        self._done: Counter[int] = Counter()
        self._started = 0

    def begins(self, worker: int) -> int | None:
        """Notes that a rank begins; the number of the attempt when it is the last one to."""
        self._begun[worker] += 1
        everywhere = min(self._begun.values()) if len(self._begun) == self._num_workers else 0
        return self.all_begin(everywhere)

    def all_begin(self, attempt: int) -> int | None:
        """Notes that every rank has begun so many times; the number where that is news."""
        if not self.limit_s or attempt <= self._started:
            return None
        self._started = attempt
        return attempt

    def begins_here(self, worker: int) -> int:
        """Notes that a rank of this node begins; how many times it has."""
        self._begun[worker] += 1
        return self._begun[worker]

    @property
    def begun_here(self) -> Mapping[int, int]:
        """How many times each rank of this node has begun."""
        return self._begun

    def ends(self, worker: int) -> None:
        """Notes that a rank of this node is done, however it went."""
        self._done[worker] += 1

    def blame(self, attempt: int, here: Collection[int]) -> tuple[list[int], str]:
        """Finds the ranks that hang, when the limit is over.

        Args:
            attempt: What :meth:`begins` returned.
            here: The ranks of this node.

        Returns:
            The ranks to end, none where all are done or wait for another node's, and
            why, as text that follows a rank's name.
        """
        missing = sorted(worker for worker in here if self._done[worker] < attempt)
        blamed = [worker for worker in missing if worker not in self._waiting()]
        stopped = [worker for worker in blamed if _is_stopped(self._pid(worker))]
        if not blamed:
            return [], ""
        who = f"; {name_workers(stopped)} did not run at all (stopped)" if stopped else ""
        why = (
            f"was ended because the ranks did not meet within {self.limit_s:g} s "
            f"({INIT_TIMEOUT_S.name}) to open their communicator: not there {_are(blamed)}{who}"
        )
        return stopped or blamed, why


def _are(workers: list[int]) -> str:
    return f"{'is' if len(workers) == 1 else 'are'} {name_workers(workers)}"


def _is_stopped(pid: int) -> bool:
    try:
        after_name = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2]
    except OSError:
        return False
    return after_name.split()[0] in ("T", "t")
