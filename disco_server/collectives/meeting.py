"""Collectives whose ranks first compare what they bring, as `preflight` describes.

What is the same for every library that cannot refuse a wrong call by itself. A library
adds how rows travel (`RowExchange`), how data moves (`DataMoves`), and both for teams.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

from disco_server.collectives import checks
from disco_server.collectives.agreement import Agreement, unstage
from disco_server.collectives.base import Array, Communicator, MismatchError, ReduceOp
from disco_server.collectives.circle import Circle
from disco_server.collectives.part_checks import Lines
from disco_server.collectives.preflight import Lane
from disco_server.collectives.rows import RowExchange
from disco_server.collectives.sides import DataMoves, Tag
from disco_server.collectives.team import Team
from disco_server.collectives.teams import LineParts, OpenDevice, Teams
from disco_server.observe.flight import FlightRecorder

__all__ = ["MeetingCommunicator"]


class MeetingCommunicator(Communicator):
    """A rank that meets its peers before anything moves; see `Communicator`."""

    def __init__(
        self,
        worker_id: int,
        num_workers: int,
        num_groups: int,
        make_rows: Callable[[Tag, tuple[int, ...]], RowExchange],
        make_moves: Callable[[Tag, tuple[int, ...]], DataMoves],
    ) -> None:
        """Takes a place.

        Args:
            worker_id: This rank.
            num_workers: The workers of the session.
            num_groups: Their groups.
            make_rows: Makes this rank's end of a lane of these members.
            make_moves: Makes what moves data among them; not asked for pairs, whose
                data moves as that of all workers does, nor for teams.
        """
        super().__init__(worker_id, num_workers, num_groups)
        self._closed = False
        self._agreement = Agreement(worker_id)
        self._preflight = self._agreement.preflight
        self._make_rows, self._make_moves = make_rows, make_moves
        self._world = self._make_circle(Tag.WORLD, self.members(in_group=False))
        self._group = self._world
        if num_groups > 1:
            self._group = self._make_circle(Tag.GROUP, self.members(in_group=True))
        self._pairs = {
            peer: self._add_lane(Tag.PAIR, tuple(sorted((peer, worker_id))))[0]
            for peer in self._world.members
            if peer != worker_id
        }
        self._look_up: Callable[[], int] | None = None
        self._teams = Teams(
            worker_id,
            self._agreement,
            self._world,
            open_line=self._open_line,
            arrive=self._arrive,
            transfer=self._transfer,
        )

    def _make_circle(self, tag: Tag, members: range) -> Circle:
        moves = self._make_moves(tag, tuple(members))
        lane, rows = None, None
        if len(members) > 1:
            lane, rows = self._add_lane(tag, tuple(members))
        return Circle(members, self._worker_id, self._agreement, moves, lane, rows)

    def _add_lane(self, tag: Tag, members: tuple[int, ...]) -> tuple[Lane, RowExchange]:
        rows = self._make_rows(tag, members)
        return self._agreement.add_lane(members, rows), rows

    def add_device(
        self,
        ccl: str,
        xp: Any,
        make_moves: Callable[[Tag, tuple[int, ...]], DataMoves],
        open_device: OpenDevice,
    ) -> None:
        """Lets arrays of GPUs take part from now on; to be called on every rank.

        Args:
            ccl: The name of the library that moves them.
            xp: The module of such arrays.
            make_moves: Makes what moves them among these members.
            open_device: The same for teams.
        """
        self.ccl, self._agreement.xp, self._agreement.no_device = ccl, xp, ""
        self._world.device_moves = make_moves(Tag.WORLD, tuple(self._world.members))
        if self._group is not self._world:
            self._group.device_moves = make_moves(Tag.GROUP, tuple(self._group.members))
        self._teams.add_device(open_device)

    def refuse_device(self, why: str) -> None:
        """Says why arrays of GPUs cannot take part; the same on every rank."""
        self._agreement.no_device = why

    @property
    def position(self) -> int:
        """The seq of the command this rank executes."""
        return self._preflight.position

    @position.setter
    def position(self, seq: int) -> None:
        self._preflight.position = seq

    def follow(self, look_up: Callable[[], int]) -> None:
        """See `Communicator.follow`."""
        self._look_up = look_up

    def record(self, flight: FlightRecorder) -> None:
        """See `Communicator.record`."""
        self._agreement.notes.begin(flight)

    def _arrive(self) -> None:
        if self._look_up is not None:
            self._preflight.position = self._look_up()

    def allreduce(self, src: Array, dst: Array, op: ReduceOp, *, in_group: bool = True) -> None:
        """See `Communicator.allreduce`."""
        (self._group if in_group else self._world).allreduce(src, dst, op)

    def allgather(self, src: Array, dst: Array, *, in_group: bool = True) -> None:
        """See `Communicator.allgather`."""
        (self._group if in_group else self._world).allgather(src, dst)

    def broadcast(self, src: Array | None, dst: Array, *, in_group: bool = True) -> None:
        """See `Communicator.broadcast`."""
        (self._group if in_group else self._world).broadcast(src, dst)

    def scatter(self, src: Array | None, dst: Array, *, in_group: bool = True) -> None:
        """See `Communicator.scatter`."""
        (self._group if in_group else self._world).scatter(src, dst)

    def gather(self, src: Array, dst: Array | None, *, in_group: bool = True) -> None:
        """See `Communicator.gather`."""
        (self._group if in_group else self._world).gather(src, dst)

    def reduce_scatter(
        self, src: Array, dst: Array, op: ReduceOp, *, in_group: bool = True
    ) -> None:
        """See `Communicator.reduce_scatter`."""
        (self._group if in_group else self._world).reduce_scatter(src, dst, op)

    def all_to_all(self, src: Array, dst: Array, *, in_group: bool = True) -> None:
        """See `Communicator.all_to_all`."""
        (self._group if in_group else self._world).all_to_all(src, dst)

    def barrier(self, *, in_group: bool = False) -> None:
        """See `Communicator.barrier`."""
        (self._group if in_group else self._world).barrier()

    def send(self, buf: Array, worker: int) -> None:
        """See `Communicator.send`."""
        self._transfer(buf, worker, receives=False)

    def recv(self, buf: Array, worker: int) -> None:
        """See `Communicator.recv`."""
        self._transfer(buf, worker, receives=True)

    def make_teams(self, lines: Sequence[Sequence[int]]) -> Team | None:
        """See `Communicator.make_teams`."""
        return self._teams.make(lines)

    @property
    def received_bytes(self) -> int:
        """See `Communicator.received_bytes`."""
        return self._teams.received_bytes

    def compare_shapes(self, enabled: bool) -> None:
        """See `Communicator.compare_shapes`."""
        self._agreement.with_shapes = enabled

    def cannot_enter(self, seq: int) -> None:
        """See `Communicator.cannot_enter`."""
        self._preflight.cannot_enter(seq)

    def poll(self) -> bool:
        """See `Communicator.poll`."""
        return self._preflight.poll()

    def close(self, *, orderly: bool = True) -> None:
        """See `Communicator.close`."""
        if self._closed:
            return
        self._closed = True
        self._agreement.close(orderly=orderly)
        if orderly:
            self._release()

    @abstractmethod
    def _open_line(self, lines: Lines, place: int | None) -> LineParts | None:
        """Builds this rank's end of a team's line; see `teams.OpenLine`."""

    @abstractmethod
    def _release(self) -> None:
        """Gives back what the library holds; every rank has taken its leave."""

    def _transfer(self, buf: Array, worker: int, *, receives: bool) -> None:
        agreement = self._agreement
        offer = agreement.admit(
            checks.check_point(buf, worker, self._worker_id, self._num_workers, receives=receives)
        )
        lane = self._pairs.get(worker)
        arrays = (None, buf) if receives else (buf, None)
        if lane is None:
            raise MismatchError((self._worker_id,), agreement.tell(offer, *arrays))
        source, target = agreement.stage(offer, buf, buf)
        agreement.enter(lane, offer, *arrays)
        if offer.elements:
            moves = self._world.moves_of(buf)
            if receives:
                moves.recv(target, worker)
                unstage(target, buf)
            else:
                moves.send(source, worker)
        agreement.notes.leave()
