"""Carries out what the object of a session's ranks on one machine decides.

Where processes come from, who reads their sockets and who is told of them differs between a
worker daemon and a program whose ranks are its children; the rest is here.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable
from typing import Generic, Protocol, TypeVar

from disco_client.descriptors import Descriptor
from disco_client.pb import controller_pb2
from disco_client.wire.codec import EnvelopeKind, envelope
from disco_client.wire.framing import frame
from disco_server.core.node import (
    AssignRank,
    Effect,
    EndRank,
    FindHung,
    KillRanks,
    NodeSession,
    RankEnd,
    SayGoodbye,
    ServePmi,
    StartRank,
    TellExit,
    TellOpening,
    TellRanksReady,
)
from disco_server.core.pmi import ClosePmi, SendPmi
from disco_server.ipc.process import RankProcess

__all__ = ["RankDriver", "RankOwner"]

_Rank = TypeVar("_Rank", bound=RankProcess)


class RankOwner(Protocol):
    """Is told what happens to the ranks."""

    def ready(self) -> None:
        """Every rank is ready for commands."""
        ...

    def opens(self, worker: int, times: int) -> None:
        """A rank opens its communicator, for how many times it has."""
        ...

    def rank_ended(self, worker: int, end: RankEnd, *, at_start: bool) -> None:
        """A rank has ended, before it was ready or later."""
        ...


class RankDriver(ABC, Generic[_Rank]):
    """Starts, reads and ends the ranks of one session on one machine; used by one thread.

    Args:
        session: The session's id.
        node: Decides what happens.
        owner: Is told of it.
        assignment: Makes the first frame for a rank.
        now: The clock of ``node``, in seconds.

    Attributes:
        node: Decides what happens.
        ranks: The processes that were started.
        now: The clock of ``node``, in seconds.
    """

    def __init__(
        self,
        session: int,
        node: NodeSession,
        owner: RankOwner,
        assignment: Callable[[int], bytes],
        now: Callable[[], float],
    ) -> None:
        self.node = node
        self.ranks: dict[int, _Rank] = {}
        self._session = session
        self._owner = owner
        self._assignment = assignment
        self.now = now

    def apply(self, effects: Iterable[Effect]) -> None:
        """Carries effects out, with what follows from them at once."""
        todo = deque(effects)
        while todo:
            todo.extend(self._do(todo.popleft()))

    def _do(self, effect: Effect) -> Iterable[Effect]:  # noqa: C901, PLR0912  (a table)
        """Carries an effect out; returns what follows from that at once."""
        match effect:
            case StartRank(worker):
                return self._start_rank(worker)
            case AssignRank(worker):
                self.ranks[worker].sender.send(self._assignment(worker))
            case ServePmi():
                for worker, rank in self.ranks.items():
                    self._serve_pmi(worker, rank)
            case SendPmi(worker, data):
                self.ranks[worker].send_pmi(data)
            case ClosePmi(worker):
                self._close_pmi(self.ranks[worker])
            case TellRanksReady():
                self._owner.ready()
            case TellOpening(worker, times):
                self._owner.opens(worker, times)
            case FindHung(attempt, workers):
                stopped = [worker for worker in workers if self.ranks[worker].is_stopped]
                return self.node.hung(attempt, stopped)
            case EndRank(worker, why):
                self.ranks[worker].end_because(why)
            case TellExit(worker, end, at_start):
                self._owner.rank_ended(worker, end, at_start=at_start)
            case SayGoodbye():
                self.send_all(frame(envelope(EnvelopeKind.END_SESSION, session=self._session)))
            case KillRanks(workers):
                for worker in workers:
                    self.ranks[worker].kill()
            case _:
                pass  # what a driver does not need to know
        return ()

    # What differs ---------------------------------------------------------------------------

    @abstractmethod
    def _start_rank(self, worker: int) -> Iterable[Effect]:
        """Starts the process of a rank, now or soon."""

    @abstractmethod
    def _serve_pmi(self, worker: int, rank: _Rank) -> None:
        """Calls :meth:`pmi_readable` when the MPI library of a rank has said something."""

    @abstractmethod
    def _close_pmi(self, rank: _Rank) -> None:
        """Closes the connection to the MPI library of a rank."""

    # The ranks ------------------------------------------------------------------------------

    def send_all(self, framed: bytes) -> None:
        """Sends a frame to every rank."""
        for rank in self.ranks.values():
            rank.sender.send(framed)

    def send_array(
        self, kind: EnvelopeKind, told: controller_pb2.Transfer, fd: Descriptor | None
    ) -> None:
        """Tells the rank of a transfer about an array, from any thread.

        Args:
            kind: What is told.
            told: About which array, and how much of it is there or why no more will come.
            fd: Its memory, which is closed here.
        """

        def framed(error: str) -> bytes:
            told.error = told.error or error
            return frame(envelope(kind, told.SerializeToString(), session=self._session))

        rank = self.ranks.get(told.worker)
        if rank is not None:
            rank.sender.send(framed(""), fd, framed)
        elif fd is not None:
            fd.close()

    def says(self, worker: int, kind: int) -> None:
        """Handles what a rank says of itself.

        Raises:
            WrongEvent: It cannot be so.
        """
        if kind == EnvelopeKind.ASSIGNED:
            self.apply(self.node.assigned(worker))
        elif kind == EnvelopeKind.OPEN_CCL:
            self.apply(self.node.opens(worker))
        elif kind == EnvelopeKind.CCL_OPENED:
            self.node.opening.done(worker)

    def pmi_readable(self, worker: int) -> None:
        """Handles what the MPI library of a rank has said."""
        if (data := self.ranks[worker].read_pmi()) is not None:
            self.apply(self.node.pmi_said(worker, data))

    def exited(self, worker: int) -> None:
        """Handles that the process of a rank has ended, whose last output has been read."""
        self.apply(self.node.exited(worker, self.ranks[worker].how_ended(), self.now()))
