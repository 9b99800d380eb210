"""Starts and ends one session's ranks on this node."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from disco_server.collectives.mpich_memory import kvsname, sweep_shared_memory
from disco_server.core.node import (
    AllGone,
    CancelStart,
    Effect,
    EndOrphan,
    EndRank,
    KillRanks,
    NodeSession,
    RankEnd,
)
from disco_server.core.pmi import MeetNodes, NotePmi
from disco_server.ipc.rank_driver import RankDriver, RankOwner
from disco_server.settings import INIT_TIMEOUT_S
from disco_server.worker.fork_server import NO_PROCESS, CannotStart
from disco_server.worker.rank_handle import RankHandle
from disco_server.worker.tasks import call_in_thread, spawn

if TYPE_CHECKING:
    from disco_server.ipc.assignments import Assignments
    from disco_server.observe.logs import BoundLogger
    from disco_server.worker.fork_server import Keeper
    from disco_server.worker.services import NodeServices

__all__ = ["NodeOwner", "SessionDriver"]

_START_LIMIT_S = 60.0


class NodeOwner(RankOwner, Protocol):
    """Is told what happens to the ranks of a session on this node.

    Attributes:
        log: Names the session in each line.
        tasks: The tasks that work for the session, and end with it.
    """

    log: BoundLogger
    tasks: set[asyncio.Task[Any]]

    def log_of(self, worker: int, seq: int | None = None) -> BoundLogger:
        """Names a rank in each line as well, and a command where one is known."""
        ...

    def adopt(self, worker: int, rank: RankHandle) -> None:
        """A rank has a process, which has not been told anything."""
        ...

    def meet_nodes(self, name: str, puts: Mapping[str, bytes]) -> None:
        """The MPI libraries of the ranks wait for what the other nodes have; see `MeetNodes`."""
        ...


class SessionDriver(RankDriver[RankHandle]):
    """The processes of one session on this node; used from the event loop only.

    Args:
        session: The session's id.
        assignments: What the ranks are told first.
        owner: Is told what happens to them.
        services: Start processes and make folders.
        lease_s: For how many seconds the session may be without a controller.

    Attributes:
        share: This node's ranks.
    """

    def __init__(
        self,
        session: int,
        assignments: Assignments,
        owner: NodeOwner,
        services: NodeServices,
        *,
        lease_s: float,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self.share = assignments.share
        node = NodeSession(
            self.share.workers,
            assignments.machines,
            kvsname(session),
            start_limit_s=_START_LIMIT_S,
            open_limit_s=INIT_TIMEOUT_S.value(),
            lease_s=lease_s,
        )
        super().__init__(session, node, owner, self._assignment_of, self._loop.time)
        self._assignments, self._node_owner, self._services = assignments, owner, services
        self._launcher = services.launcher
        self._kvsname = self._launcher.kvsname if self._launcher else kvsname(session)
        self._work_dirs: dict[int, str] = {}
        self._keeper: Keeper | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._starting: asyncio.Task[None]
        self._gone = asyncio.Event()

    async def run(self) -> None:
        """Starts the ranks; returns when no process of them is left."""
        self.apply(self.node.start())
        await self._gone.wait()
        for rank in self.ranks.values():
            rank.kill()  # what it left behind in its group
            rank.close()
        tasks = list(self._node_owner.tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._keeper is not None and not await self._keeper.end():
            self._node_owner.log.warning("what its ranks have started may not have ended")

    async def clean_up(self) -> None:
        """Removes what the ranks left: MPI's shared memory, and their folders."""
        try:
            sweep_shared_memory(self._kvsname)
        except OSError as error:  # the session's slots matter more
            self._node_owner.log.warning("what its MPI left in /dev/shm stays there: %s", error)
        # It may be much, so another thread does it.
        await call_in_thread(partial(self._services.folders.remove, self._session))

    # What the session's object decides ------------------------------------------------------

    def apply(self, effects: Iterable[Effect]) -> None:
        """Carries effects out, and sets the timer."""
        super().apply(effects)
        self.set_timer()

    def set_timer(self) -> None:
        """Has the session's object told when the next of its limits is over."""
        due = self.node.wake_at
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_at(due, self._wake) if due < math.inf else None

    def _wake(self) -> None:
        self.apply(self.node.time_passed(self.now()))

    def _do(self, effect: Effect) -> Iterable[Effect]:
        owner = self._node_owner
        match effect:
            case CancelStart():
                self._starting.cancel()
            case MeetNodes(name, puts):
                owner.meet_nodes(name, puts)
            case NotePmi(worker, why):
                owner.log_of(worker).debug("MPI of rank %d: %s", worker, why)
            case EndRank(worker, why):
                seq = self.ranks[worker].current_seq()
                owner.log_of(worker, seq).warning("worker %d %s", worker, why)
            case KillRanks(again=True) if self._keeper is not None:
                self._keeper.kill()  # it has not reported their ends
            case EndOrphan():
                owner.log.warning("no controller came back for the session; its ranks end")
                return self.node.end(self.now())
            case AllGone():
                self._gone.set()
            case _:
                pass
        return super()._do(effect)

    # The ranks ------------------------------------------------------------------------------

    def _assignment_of(self, worker: int) -> bytes:
        return self._assignments.framed(worker, self._work_dirs[worker])

    def _start_rank(self, worker: int) -> Iterable[Effect]:
        self._starting = spawn(self._start(worker), self._node_owner.tasks)
        return ()

    async def _start(self, worker: int) -> None:
        services = self._services
        try:
            if self._keeper is None:
                self._keeper = await services.fork_server.keeper(self._session)
            self._work_dirs[worker] = services.folders.make(self._session, worker)
            # A rank with a GPU starts in an interpreter that nothing was loaded into.
            is_fresh = self._assignments.device_of(worker) != "cpu"
            rank = await self._keeper.start_rank(fresh=is_fresh)
        except CannotStart as error:
            end = RankEnd(error.status, tuple(error.output))
            self.apply(self.node.not_started(worker, end))
        except OSError as error:
            end = RankEnd(NO_PROCESS, (f"no process could be started: {error}",))
            self.apply(self.node.not_started(worker, end))
        else:
            self.ranks[worker] = rank
            rank.local_workers = len(self._assignments.local_workers)
            self._node_owner.adopt(worker, rank)
            spawn(self._watch(worker, rank), self._node_owner.tasks)
            self.apply(self.node.started(worker, self.now()))

    async def _watch(self, worker: int, rank: RankHandle) -> None:
        await rank.exited
        self.exited(worker)

    def _serve_pmi(self, worker: int, rank: RankHandle) -> None:
        if self._launcher is not None:
            self._launcher.serve(rank)
        else:
            rank.serve_pmi(partial(self.pmi_readable, worker))

    def _close_pmi(self, rank: RankHandle) -> None:
        rank.close_pmi()
