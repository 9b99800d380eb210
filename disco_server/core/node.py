"""Every decision about the ranks of one session on one machine: events in, effects out.

::

    STARTING ──every rank is ready──▶ READY ──end──▶ ENDING ──every process has ended──▶ GONE
        └──────────────────────────end─────────────────▲

No I/O, clock or thread here: time is an argument, in seconds of any monotonic clock, and what
should happen comes back as a list of effects for a driver to carry out in order. The drivers are
a worker daemon's event loop, and the thread that keeps the children of a process session.

The owner of a session, a controller or the program itself, is told when a rank has ended. The
session goes on until the owner ends it, who may know of an earlier end on another machine.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final, TypeAlias

from disco_client.errors import ConfigError
from disco_server.core.opening import Opening
from disco_server.core.pmi import PmiEffect, PmiExchange

__all__ = [
    "CAUSE_FIRST_S",
    "AllGone",
    "AssignRank",
    "CancelStart",
    "Effect",
    "EndOrphan",
    "EndRank",
    "FindHung",
    "KillRanks",
    "NodeSession",
    "NodeState",
    "RankEnd",
    "SayGoodbye",
    "ServePmi",
    "StartRank",
    "TellExit",
    "TellOpening",
    "TellRanksReady",
    "WrongEvent",
]

CAUSE_FIRST_S: Final = 3.0
"""For how long another end, which is told at once, counts as the cause of one that may follow."""

_GRACE_S: Final = 0.5
"""How long ranks may take to leave by themselves."""

_KILLED_S: Final = 10.0
"""How long ranks that were killed may take to end."""


@dataclass(frozen=True, slots=True)
class RankEnd:
    """How a rank has ended.

    Attributes:
        status: Its exit status: a code, or a negative signal number.
        output: The end of what it printed.
        cause: Why, if more than its status is known.
        follows: Whether it may have ended because another one did, whose end is told first.
        lost_at: When it lost its communicator, in ns of a clock of this machine; 0 if it did
            not. A rank records that before it ends, so before a peer can lose its own of
            that; the order in which a loaded machine reports their ends says nothing.
    """

    status: int
    output: tuple[str, ...] = ()
    cause: str = ""
    follows: bool = False
    lost_at: int = 0


# What a driver should do about something that happened.


@dataclass(frozen=True, slots=True)
class StartRank:
    """Start the process of a rank, then call :meth:`NodeSession.started` or ``not_started``."""

    worker: int


@dataclass(frozen=True, slots=True)
class CancelStart:
    """Do not wait for the process of this rank any more; say nothing of it."""

    worker: int


@dataclass(frozen=True, slots=True)
class AssignRank:
    """Tell a rank which one it is."""

    worker: int


@dataclass(frozen=True, slots=True)
class ServePmi:
    """Read what the MPI libraries of the ranks say, for ``pmi_said``: each rank has a process."""


@dataclass(frozen=True, slots=True)
class TellRanksReady:
    """Tell the owner that every rank here is ready for commands."""


@dataclass(frozen=True, slots=True)
class TellOpening:
    """Tell the owner that a rank opens its communicator, and for how many times it has."""

    worker: int
    times: int


@dataclass(frozen=True, slots=True)
class FindHung:
    """Find out which of these ranks are stopped, then call ``hung``."""

    attempt: int
    workers: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class EndRank:
    """Kill a rank; the reason becomes part of what is told of its end."""

    worker: int
    why: str


@dataclass(frozen=True, slots=True)
class TellExit:
    """Tell the owner that a rank has ended, and how: before it was ready or later."""

    worker: int
    end: RankEnd
    at_start: bool


@dataclass(frozen=True, slots=True)
class EndOrphan:
    """No owner came back in time: call ``end``."""


@dataclass(frozen=True, slots=True)
class SayGoodbye:
    """Ask every rank to leave."""


@dataclass(frozen=True, slots=True)
class KillRanks:
    """Kill ranks; ``again`` those that have not ended of it, with whatever keeps them."""

    workers: tuple[int, ...]
    again: bool = False


@dataclass(frozen=True, slots=True)
class AllGone:
    """No process is left: release what the session has here."""


Effect: TypeAlias = (
    StartRank
    | CancelStart
    | AssignRank
    | ServePmi
    | PmiEffect
    | TellRanksReady
    | TellOpening
    | FindHung
    | EndRank
    | TellExit
    | EndOrphan
    | SayGoodbye
    | KillRanks
    | AllGone
)


class NodeState(enum.Enum):
    """Where a session is in its life on one machine."""

    STARTING = "starting"
    READY = "ready"
    ENDING = "ending"
    GONE = "gone"


class _Due(enum.Enum):
    """What happens when time has passed; in this order, as nothing is told after the end."""

    START = "ranks that are not ready are ended"
    CAUSE = "ends that may follow another's are told"
    KILL = "ranks that have not left are killed"
    OWNER = "the session ends, as it has no owner"


class WrongEvent(Exception):
    """A rank, or its driver, has said what cannot be."""


class NodeSession:
    """The ranks of one session on one machine.

    Args:
        workers: The ranks here, at least one.
        machines: The ranks of each machine of the session; several nodes may share one.
        kvsname: The key-value space of their MPI libraries, the same on all nodes.
        start_limit_s: Seconds in which every rank must be ready once all have processes.
        open_limit_s: Seconds in which ranks that all open their communicator must have done so;
            0 for any time.
        lease_s: For how many seconds the session may be without an owner.

    Attributes:
        state: Where it is in its life.
        opening: How far its ranks are with opening their communicator.
    """

    def __init__(
        self,
        workers: Sequence[int],
        machines: Sequence[Sequence[int]],
        kvsname: str,
        *,
        start_limit_s: float = math.inf,
        open_limit_s: float = 0.0,
        lease_s: float = 0.0,
    ) -> None:
        self.state = NodeState.STARTING
        self.opening = Opening(open_limit_s)
        self._workers = tuple(workers)
        self._is_whole_session = len(self._workers) == sum(map(len, machines))
        self._make_pmi = partial(PmiExchange, ranks=self._workers, nodes=machines, kvsname=kvsname)
        self._pmi: PmiExchange | None = None
        self._start_limit_s, self._lease_s = start_limit_s, lease_s
        self._asked = self._started = 0  # how many processes were asked for, and came
        self._running: set[int] = set()
        self._assigned: set[int] = set()
        self._late: dict[int, RankEnd] = {}
        self._due: dict[_Due, float] = {}
        self._killed = False

    @property
    def ready(self) -> bool:
        """Whether every rank was ready, and nobody has asked for the end of the session."""
        return self.state is NodeState.READY

    @property
    def ending(self) -> bool:
        """Whether the end of the session was asked for."""
        return self.state in (NodeState.ENDING, NodeState.GONE)

    @property
    def unready(self) -> list[int]:
        """The ranks that have not been ready."""
        return [worker for worker in self._workers if worker not in self._assigned]

    @property
    def wake_at(self) -> float:
        """When to call :meth:`time_passed`; infinite where that would change nothing."""
        return min((*self._due.values(), self.opening.ends_at))

    # Starting -----------------------------------------------------------------------------

    def start(self) -> list[Effect]:
        """Asks for the first process."""
        return self._start_next()

    def _start_next(self) -> list[Effect]:
        self._asked += 1
        return [StartRank(self._workers[self._asked - 1])]

    def started(self, worker: int, now: float) -> list[Effect]:
        """A rank has a process.

        Raises:
            WrongEvent: It was not asked for.
        """
        self._answer(worker)
        self._running.add(worker)
        self._started += 1
        if self._asked < len(self._workers):
            return [AssignRank(worker), *self._start_next()]
        self._due[_Due.START] = now + self._start_limit_s
        return [AssignRank(worker), *self._serve_pmi()]

    def not_started(self, worker: int, end: RankEnd) -> list[Effect]:
        """A rank got no process; no other one is started.

        Raises:
            WrongEvent: It was not asked for.
        """
        self._answer(worker)
        self._asked -= 1
        return [TellExit(worker, end, at_start=True)]

    def _answer(self, worker: int) -> None:
        if self._asked == self._started or self._workers[self._asked - 1] != worker:
            raise WrongEvent(f"no process was asked for as worker {worker}")

    def assigned(self, worker: int) -> list[Effect]:
        """A rank says that it is ready for commands.

        Raises:
            WrongEvent: It was before, or has no process.
        """
        if worker in self._assigned or worker not in self._running:
            raise WrongEvent(f"worker {worker} cannot be ready now")
        self._assigned.add(worker)
        if self.ending or self.unready or len(self._running) < len(self._workers):
            return []
        self.state = NodeState.READY
        self._due.pop(_Due.START, None)
        return [TellRanksReady()]

    # MPI's start-up --------------------------------------------------------------------------

    def _serve_pmi(self) -> list[Effect]:
        try:
            self._pmi = self._make_pmi()
        except ConfigError as error:
            why = f"was ended because its MPI cannot start: {error}"
            return [EndRank(worker, why) for worker in sorted(self._running)]
        return [ServePmi()]

    def pmi_said(self, worker: int, data: bytes) -> Sequence[Effect]:
        """The MPI library of a rank has said something, or left where it said nothing."""
        return self._pmi.receive(worker, data) if self._pmi is not None else ()

    def pmi_met(self, items: Mapping[str, bytes]) -> Sequence[Effect]:
        """The nodes have exchanged what their ranks have put; see :class:`MeetNodes`."""
        return self._pmi.met(items) if self._pmi is not None else ()

    def pmi_not_met(self, name: str, why: object) -> Sequence[Effect]:
        """The nodes cannot meet, so the ranks' libraries cannot start."""
        return self._pmi.not_met(name, why) if self._pmi is not None else ()

    # Opening the communicator ---------------------------------------------------------------

    def opens(self, worker: int) -> list[Effect]:
        """A rank begins to open its communicator."""
        return [TellOpening(worker, self.opening.begins(worker))]

    def all_open(self, attempt: int, now: float) -> list[Effect]:
        """Every rank of the session has begun so many times, perhaps again: a time limit runs."""
        self.opening.all_begin(attempt, now)
        return []

    def hung(self, attempt: int, stopped: Collection[int]) -> list[Effect]:
        """Ends the ranks for which the others wait; see :class:`FindHung`.

        Args:
            attempt: Which attempt to open the communicator is over its limit.
            stopped: The ranks whose processes do not run at all.
        """
        waiting = self._pmi.waiting if self._pmi is not None else ()
        missing = self.opening.missing(attempt, self._running)
        blamed, why = self.opening.blame([w for w in missing if w not in waiting], stopped)
        return [EndRank(worker, why) for worker in blamed]

    # Deaths ---------------------------------------------------------------------------------

    def exited(self, worker: int, end: RankEnd, now: float) -> list[Effect]:
        """A rank's process has ended.

        Raises:
            WrongEvent: It has no process.
        """
        if worker not in self._running:
            raise WrongEvent(f"worker {worker} has no process that could have ended")
        self._running.discard(worker)
        if self.ending:
            return self._gone()
        if not end.follows:
            return [self._tell_exit(worker, end)]
        self._late[worker] = end
        self._due.setdefault(_Due.CAUSE, now + CAUSE_FIRST_S)
        # No rank is left whose end could be the cause.
        return self._tell_late() if self._is_whole_session and not self._running else []

    def _tell_exit(self, worker: int, end: RankEnd) -> Effect:
        return TellExit(worker, end, at_start=worker not in self._assigned)

    def _tell_late(self) -> list[Effect]:
        del self._due[_Due.CAUSE]
        late, self._late = self._late, {}
        first_lost = sorted(late, key=lambda worker: late[worker].lost_at or math.inf)
        return [self._tell_exit(worker, late[worker]) for worker in first_lost]

    # Time -------------------------------------------------------------------------------------

    def time_passed(self, now: float) -> list[Effect]:
        """Does what is due."""
        told: list[Effect] = []
        for attempt in self.opening.ended(now):
            missing = self.opening.missing(attempt, self._running)
            told += [FindHung(attempt, tuple(missing))] if missing and not self.ending else []
        for due in _Due:
            if self._due.get(due, math.inf) <= now:
                told += self._do(due, now)
        return told

    def _do(self, due: _Due, now: float) -> list[Effect]:
        match due:
            case _Due.START:
                del self._due[due]
                why = f"was ended because it was not ready within {self._start_limit_s:g} s"
                return [EndRank(worker, why) for worker in self.unready if worker in self._running]
            case _Due.CAUSE:
                return self._tell_late()
            case _Due.OWNER:
                del self._due[due]
                return [EndOrphan()]
            case _Due.KILL:
                return self._kill(now)

    # The owner ----------------------------------------------------------------------------------

    def owner_lost(self, now: float) -> list[Effect]:
        """The owner is away: the session ends after its lease, or at once where it has none."""
        if self.ending:
            return []
        if not self.ready or self._lease_s <= 0:
            return [EndOrphan()]
        self._due[_Due.OWNER] = now + self._lease_s
        return []

    def owner_back(self) -> list[Effect]:
        """The owner is back."""
        self._due.pop(_Due.OWNER, None)
        return []

    def end(self, now: float, *, grace: bool = True) -> list[Effect]:
        """Ends every rank: nothing more is told of them.

        Args:
            now: The time.
            grace: Whether ranks may leave by themselves. They wait for each other inside their
                collective libraries, so if one has ended the others are killed at once.
        """
        if self.state is NodeState.GONE or (self.ending and grace):
            return []
        if not self.ending:
            self.state = NodeState.ENDING
            self._due.clear()
            self._late.clear()
            return [*self._cancel_start(), *self._end_ranks(now, grace=grace)]
        return [] if self._killed else self._kill(now)

    def _cancel_start(self) -> list[Effect]:
        if self._asked == self._started:
            return []
        self._asked -= 1
        return [CancelStart(self._workers[self._asked])]

    def _end_ranks(self, now: float, *, grace: bool) -> list[Effect]:
        if not self._running:
            return self._gone()
        if not grace or len(self._running) < self._started:
            return self._kill(now)
        self._due[_Due.KILL] = now + _GRACE_S
        return [SayGoodbye()]

    def _kill(self, now: float) -> list[Effect]:
        again, self._killed = self._killed, True
        self._due[_Due.KILL] = math.inf if again else now + _KILLED_S
        return [KillRanks(tuple(sorted(self._running)), again)]

    def _gone(self) -> list[Effect]:
        """Tells that no process is left, if none is."""
        if self._running:
            return []
        self.state = NodeState.GONE
        self._due.clear()
        return [AllGone()]
